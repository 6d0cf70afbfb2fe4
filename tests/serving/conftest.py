"""The fakes, and the models of the tests of builds, are imported by name."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "build")]

from often_builds import clock, fake, soon  # noqa: E402, F401  fixtures
