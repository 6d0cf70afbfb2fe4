"""A clock that counts the time of simulated devices in place of the time of their simulation.

A compiled region with an attribute `seconds` is simulated: for a call of it, the clock counts these
seconds, not those of the simulation. Each thread has its own count.
"""

from __future__ import annotations

import time
from threading import local


class _Counts(local):
    def __init__(self) -> None:
        self.ahead_ns = 0.0


_counts = _Counts()


def passed(wall_ns: float, seconds: float) -> None:
    """Counts `seconds` for a call whose simulation took `wall_ns` nanoseconds."""
    _counts.ahead_ns += seconds * 1e9 - wall_ns


def now_ns() -> int:
    """Returns `time.perf_counter_ns()`, with the time of simulated devices in place of that of
    their simulation.
    """
    return time.perf_counter_ns() + round(_counts.ahead_ns)
