"""Values of the model's layers, read from the optimized program as it runs.

`where.py` tells which values are in memory, and why the others are not; `read.py` runs and gives
values back as the layers have them; `force.py` breaks a fusion so that a value comes to be.
"""

from clew.tap.force import Forced
from clew.tap.read import Taps, tap, tap_states
from clew.tap.where import Refusal, State

__all__ = ["Forced", "Refusal", "State", "Taps", "tap", "tap_states"]
