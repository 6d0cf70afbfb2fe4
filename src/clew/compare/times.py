"""How long kernels and layers take in either build, measured in turns: what else happens on the
machine slows both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.compare.state import Side

# A turn runs a model at least so often, and all turns together take about so long.
_RUNS: Final = 3
_SECONDS: Final = 8.0
_LEAST_ROUNDS: Final = 5
# Differences below are no finding, however steady: the same code at other addresses differs so.
_SMALLEST: Final = 0.03


@dataclass(frozen=True)
class Timing:
    """A time in both builds, in microseconds: medians over the rounds.

    `spread` is the interquartile range of the difference B - A, round by round; `differs` whether
    the median difference is larger than that, and than 3 % of the time.
    """

    a: float
    b: float
    spread: float = 0.0
    differs: bool = False

    @property
    def ratio(self) -> float:
        """B's time over A's; NaN where A's is nothing."""
        return self.b / self.a if self.a else float("nan")


@dataclass(frozen=True)
class Times:
    """What was measured: whole runs, and each kernel, a number a round, in microseconds."""

    wall: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    kernels: tuple[Mapping[str, np.ndarray[Any, Any]], Mapping[str, np.ndarray[Any, Any]]]
    sides: Sequence[Side]

    @property
    def rounds(self) -> int:
        """The number of turns that either build had."""
        return len(self.wall[0])

    @property
    def whole(self) -> Timing:
        """The time of whole runs."""
        return timing(*self.wall)

    def of_kernels(self, a: Sequence[str], b: Sequence[str]) -> Timing:
        """Returns the time of some kernels of A and some of B together."""
        return timing(self._sum(0, a), self._sum(1, b))

    def of_layers(self, a: str, b: str) -> Timing:
        """Returns the time of a layer of A and of one of B; an empty name stands for none."""
        return timing(self._layer(0, a), self._layer(1, b))

    def _layer(self, side: int, layer: str) -> np.ndarray[Any, Any]:
        total = np.zeros(self.rounds)
        if layer:
            for part in self.sides[side].states[layer].kernels:
                share = 1 / len(part.layers)
                total += share * self.kernels[side].get(part.kernel, 0.0)
        return total

    def _sum(self, side: int, kernels: Sequence[str]) -> np.ndarray[Any, Any]:
        found = [self.kernels[side][k] for k in kernels if k in self.kernels[side]]
        return np.sum(found, axis=0) if found else np.zeros(self.rounds)


def timing(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Timing:
    """Returns the medians of two series of rounds, and whether they differ beyond the noise."""
    difference = b - a
    low, middle, high = np.quantile(difference, (0.25, 0.5, 0.75))
    spread = float(high - low)
    base, other = float(np.median(a)), float(np.median(b))
    differs = abs(middle) > max(spread, _SMALLEST * min(base, other))
    return Timing(base, other, spread, bool(differs))


def measure(
    sides: Sequence[Side],
    arrays: Sequence[Sequence[Any]],
    rounds: int | None,
    say: Callable[[str], None],
) -> Times:
    """Returns the times of both builds over rounds in which each has a turn, A B, B A, A B ...

    Without a number of rounds there are as many as fit into some seconds, at least five.
    """
    turns = [_Turn(side, given) for side, given in zip(sides, arrays, strict=True)]
    first = sum(turn.run() for turn in turns) / 1e6  # warm, and for the number of rounds
    if rounds is None:
        rounds = min(30, max(_LEAST_ROUNDS, int(_SECONDS / max(first * 1.2, 1e-3))))
    for turn in turns:
        turn.forget()
    for number in range(rounds):
        say(f"timing, round {number + 1} of {rounds}")
        for turn in turns if number % 2 == 0 else turns[::-1]:
            turn.run()
    walls = tuple(np.array(turn.wall) for turn in turns)
    kernels = tuple({k: np.array(v) for k, v in turn.kernels.items()} for turn in turns)
    return Times(walls, kernels, sides)  # type: ignore[arg-type]


class _Turn:
    """One build's turns."""

    def __init__(self, side: Side, arrays: Sequence[Any]) -> None:
        self._model = side.compiled
        self._arrays = arrays
        self.forget()

    def forget(self) -> None:
        """Starts anew."""
        self.wall: list[float] = []
        self.kernels: dict[str, list[float]] = {}

    def run(self) -> float:
        """Takes a turn; returns the microseconds that it took in all."""
        began = time.perf_counter_ns()
        self._model(*self._arrays)
        walls = []
        for _ in range(_RUNS):
            start = time.perf_counter_ns()
            self._model(*self._arrays)
            walls.append((time.perf_counter_ns() - start) / 1e3)
        self.wall.append(float(np.median(walls)))
        for found in self._model.time_kernels(*self._arrays, repeats=_RUNS):
            self.kernels.setdefault(found.kernel.name, []).append(found.median_ns / 1e3)
        return (time.perf_counter_ns() - began) / 1e3
