"""Reads values of the model's layers from the optimized program as it runs.

`where.py` determines which values are in memory and why others are not; `read.py` runs the model
and converts values to the layers' layouts; `force.py` breaks a fusion to put a value in memory.
"""

from clew.tap.force import Forced
from clew.tap.read import Taps, tap, tap_states
from clew.tap.where import Refusal, State

__all__ = ["Forced", "Refusal", "State", "Taps", "tap", "tap_states"]
