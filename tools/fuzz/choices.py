"""Where a graph's decisions come from: whole numbers, of which the smallest is the plainest.

A seed draws them fast and the same on every machine; hypothesis draws them when it looks for a
smaller graph that fails alike. Both ask for the same numbers in the same order, so the numbers of a
seed are where hypothesis begins.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(ABC):
    """A source of decisions."""

    @abstractmethod
    def integer(self, low: int, high: int) -> int:
        """Returns a number from `low` to `high`, both included."""

    def pick(self, options: Sequence[T]) -> T:
        """Returns one of the options; the first is the plainest."""
        return options[self.integer(0, len(options) - 1)]

    def one_in(self, count: int) -> bool:
        """Returns True once in `count` times; False is the plain answer."""
        return self.integer(0, count - 1) == count - 1

    def order(self, count: int) -> list[int]:
        """Returns the numbers below `count` in some order."""
        left = list(range(count))
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(count)]

    def some(self, options: Sequence[T], low: int, high: int) -> list[T]:
        """Returns between `low` and `high` different options, in some order."""
        order = self.order(len(options))
        return [options[n] for n in order[: self.integer(low, min(high, len(options)))]]


class Seeded(Choices):
    """Decisions that follow from a seed; `made` keeps them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.made: list[int] = []

    def integer(self, low: int, high: int) -> int:
        value = self._random.randint(low, high)
        self.made.append(value)
        return value


class Drawn(Choices):
    """Decisions that hypothesis makes."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))
