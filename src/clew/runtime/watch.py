"""The native driver's record of the times of steps."""

from __future__ import annotations

import numpy as np

from clew.codegen.driver import driver as native
from clew.runtime.driver import driver
from clew.support.addresses import address_of


class Watch:
    """Times of a segment's steps, summed over the calls since it was cleared.

    Only a range of steps is timed, initially all. Only one run at a time.
    """

    def __init__(self, steps: int) -> None:
        self._ticks = np.zeros(max(1, steps), np.int64)
        self._steps = steps
        self._words = np.zeros(native.WATCH_BYTES // 8, np.int64)
        self._counts = np.zeros_like(self._ticks)
        self._words[native.WATCH_TICKS // 8] = address_of(self._ticks)
        self._words[native.WATCH_COUNTS // 8] = address_of(self._counts)
        self.address = address_of(self._words)
        self.time(0, steps)

    def time(self, first: int, last: int) -> None:
        """Selects the steps from `first` to before `last` for timing."""
        self._words[native.WATCH_FIRST // 8] = first
        self._words[native.WATCH_LAST // 8] = last

    @property
    def calls(self) -> int:
        """The number of calls since it was cleared."""
        return int(self._words[native.WATCH_CALLS // 8])

    @property
    def whole_ns(self) -> float:
        """Nanoseconds of all calls, from their first step to their last, timed or not."""
        return int(self._words[native.WATCH_WHOLE // 8]) * driver().ns_per_tick()

    def clear(self) -> None:
        """Resets times and calls to zero."""
        self._ticks[:] = 0
        self._counts[:] = 0
        self._words[native.WATCH_CALLS // 8] = 0
        self._words[native.WATCH_WHOLE // 8] = 0

    def ns(self) -> np.ndarray:
        """Returns f64[steps]: nanoseconds of each step in all calls, including its stamps."""
        return self._ticks[: self._steps] * driver().ns_per_tick()

    @property
    def counts(self) -> np.ndarray:
        """i64[steps]: how often each step was timed; steps in loops are timed in each iteration."""
        return self._counts[: self._steps].copy()
