"""Time that simulated devices take, instead of the time that their simulation takes.

A compiled region with an attribute `seconds` (of one call) is simulated: the clock here counts
these seconds for a call of it, not those that pass meanwhile. Threads have their own counts.
"""

from __future__ import annotations

import time
from threading import local


class _Counts(local):
    def __init__(self) -> None:
        self.ahead_ns = 0.0


_counts = _Counts()


def passed(wall_ns: float, seconds: float) -> None:
    """Counts `seconds` for a call during which `wall_ns` nanoseconds passed."""
    _counts.ahead_ns += seconds * 1e9 - wall_ns


def now_ns() -> int:
    """Returns `time.perf_counter_ns()`, with the time of simulated devices in place of that of
    their simulation.
    """
    return time.perf_counter_ns() + round(_counts.ahead_ns)
