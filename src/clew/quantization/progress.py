"""Progress of passes over calibration data, with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
_MINUTE: Final = 60


class Progress:
    """Reports the progress of passes over data to `say`."""

    def __init__(
        self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.say, self._now = say, now

    def over(
        self, what: str, items: Sequence[T], noun: str = "sample", *, at_most: bool = False
    ) -> Iterator[T]:
        """Yields the items; says which it is and, from the second on, how long the rest will take,
        at the mean time of the items so far. `at_most`: the pass may end sooner.
        """
        bound = "at most " if at_most else ""
        start, count = self._now(), len(items)
        for number, item in enumerate(items):
            taken = self._now() - start
            left = f", {bound}{_duration(taken / number * (count - number))} left" if number else ""
            self.say(f"{what}: {noun} {number + 1} of {count}{left}")
            yield item


def _duration(seconds: float) -> str:
    """Returns a duration in the units of a clock."""
    whole = max(1, round(seconds))
    return f"{whole} s" if whole < 2 * _MINUTE else f"{round(whole / _MINUTE)} min"
