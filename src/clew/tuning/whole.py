"""Compares whole calls of two programs: the ratio of their times, with an interval.

In each round both run once, in random order. If they are equally fast, it is a matter of the draw
which of the two meets the slower moment of the machine: the logarithm of the ratio of their times
is distributed symmetrically about 0, independent of other programs and of clock changes, and
otherwise about the logarithm of the true ratio. The estimate and the interval follow from this
symmetry alone. Undisturbed times (`runtime/pieces.py`) make the interval narrow, but it is valid
without them: where there are too few, all times count.

Source: Hodges and Lehmann, Estimates of location based on rank tests, 1963; Wilcoxon, Individual
comparisons by ranking methods, 1945.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from clew.tuning.sequential import Verdict

Array = np.ndarray[Any, Any]
Turn = Callable[[bool], tuple[Array, Array]]
"""Runs a program, with or without waiting for undisturbed moments. Returns f64[kernels] twice: the
nanoseconds of each kernel, and the same with NaN where something disturbed it.
"""

LEVEL: Final = 0.95
"""The probability that an interval contains the true ratio."""
_MOST_FILLED: Final = 0.2  # of the time of an undisturbed round, from other rounds
_MOST_TURNS: Final = 6  # of a program in a round
_LEAST_ROUNDS: Final = 8  # undisturbed ones, without which all count
_TIMES_ROUNDS: Final = 8  # the largest number, in those wanted


@dataclass(frozen=True)
class Whole:
    """Two programs in a number of rounds: the median time of the old one, the ratio of the new
    one's time to it, and the interval of this ratio at `LEVEL`. Without enough rounds there is no
    ratio. `undisturbed` is the number of rounds, if only undisturbed ones count. `problem` says how
    outputs differ, if they do.
    """

    old_ns: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    undisturbed: int = 0
    problem: str = ""

    @property
    def new_ns(self) -> float | None:
        """The time of the new program."""
        return None if self.old_ns is None or self.ratio is None else self.ratio * self.old_ns

    @property
    def verdict(self) -> Verdict:
        """Whether the new program takes less time; undecided if the interval includes 1."""
        if self.low is None or self.high is None or self.low <= 1.0 <= self.high:
            return "undecided"
        return "won" if self.high < 1.0 else "lost"

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON values."""
        return {**asdict(self), "new_ns": self.new_ns, "verdict": self.verdict}

    def __str__(self) -> str:
        if self.old_ns is None or self.new_ns is None or self.low is None or self.high is None:
            return "whole calls were not compared: there was no time for enough of them"
        after = f"{self.old_ns / 1e6:.3f} → {self.new_ns / 1e6:.3f} ms"
        low, high = 100 * (1 - self.high), 100 * (1 - self.low)
        if self.verdict == "undecided":
            return (
                f"whole calls show no gain: {self.old_ns / 1e6:.3f} ms, between {-low:.1f} % more "
                f"and {high:.1f} % less with the best choices"
            )
        if self.verdict == "lost":
            return f"whole calls became slower: {after} ({-high:.1f} to {-low:.1f} % more)"
        return f"whole calls: {after} ({low:.1f} to {high:.1f} % saved)"


def compared(old: Turn, new: Turn, rounds: int, seconds: float, seed: int = 0) -> Whole:
    """Returns how two programs compare, in some undisturbed rounds, or those that there are after
    some seconds.
    """
    order = np.random.default_rng(seed)
    turns = old, new
    rows: tuple[list[tuple[Array, Array]], list[tuple[Array, Array]]] = ([], [])
    undisturbed = 0
    began = time.perf_counter()
    for number in range(_TIMES_ROUNDS * rounds):
        passed = time.perf_counter() - began
        if number and (passed > seconds or undisturbed >= rounds):
            break
        waits = rounds * passed <= seconds * number  # it is behind otherwise
        for side in order.permutation(2):
            rows[side].append(_completed(turns[side], waits))
        undisturbed += all(_missing(*side[-1]) <= _MOST_FILLED for side in rows)
    return of_rounds(*rows)


def _completed(turn: Turn, waits: bool) -> tuple[Array, Array]:
    """Returns the times of a turn; if it waits, with undisturbed ones of further turns for kernels
    that something disturbed.
    """
    taken, clean = turn(waits)
    for _ in range(_MOST_TURNS - 1 if waits else 0):
        if _missing(taken, clean) <= _MOST_FILLED / 2:
            break
        clean = filled(clean, turn(waits)[1])
    return taken, clean


def _missing(taken: Array, clean: Array) -> float:
    """Returns the share of the time that something disturbed."""
    return float(np.nansum(taken[np.isnan(clean)]) / np.nansum(taken))


def of_rounds(old: Sequence[tuple[Array, Array]], new: Sequence[tuple[Array, Array]]) -> Whole:
    """Returns how two programs compare by what `Turn` returns for each round. Only undisturbed
    rounds count if there are enough: those in which few kernels were disturbed, which count with
    their program's median of the other rounds. Otherwise all rounds count as they were.
    """
    sides = [_sums([clean for _, clean in rows]) for rows in (old, new)]
    good = np.maximum(sides[0][1], sides[1][1]) <= _MOST_FILLED
    undisturbed = int(good.sum())
    if undisturbed >= _LEAST_ROUNDS:
        old_ns, new_ns = (sums[good] for sums, _ in sides)
    else:
        old_ns, new_ns = (
            np.array([float(np.nansum(taken)) for taken, _ in rows]) for rows in (old, new)
        )
        undisturbed = 0
    center, *ends = estimate(np.log(new_ns / old_ns))
    if not np.isfinite(ends).all():
        return Whole(rounds=len(old_ns))
    low, high = map(math.exp, ends)
    return Whole(
        old_ns=float(np.median(old_ns)),
        ratio=math.exp(center),
        low=low,
        high=high,
        rounds=len(old_ns),
        undisturbed=undisturbed,
    )


def _sums(rows: Sequence[Array]) -> tuple[Array, Array]:
    """Returns f64[rounds] twice: nanoseconds, and the share of them from other rounds; 1 if it is
    unknown, because a kernel was disturbed in all.
    """
    table, medians = np.array(rows), quantiles(rows)
    if np.isnan(medians).any():
        return np.ones(len(rows)), np.ones(len(rows))
    missing = np.where(np.isnan(table), medians, 0.0).sum(axis=1)
    whole = np.nansum(table, axis=1) + missing
    return whole, missing / whole


def estimate(values: Array, level: float = LEVEL) -> tuple[float, float, float]:
    """Returns the center of values that are distributed symmetrically about it, and the ends of its
    interval; infinite for too few values.

    The center is the median of the means of all pairs (a value and itself included). The ranks of
    the ends among these means are those at which the signed-rank test rejects.
    """
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    below = _rejected(len(values), (1.0 - level) / 2)
    if not below:
        return float(np.median(means)), -math.inf, math.inf
    return float(np.median(means)), float(means[below - 1]), float(means[-below])


def _rejected(count: int, share: float) -> int:
    """Returns how many of the least sums of signed ranks of `count` values have a probability of at
    most `share` together.
    """
    ways = np.ones(1)
    for rank in range(1, count + 1):  # the sums of subsets of the ranks so far
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    return int(np.searchsorted(np.cumsum(ways) / 2.0**count, share, side="right"))


def filled(row: Array, others: Array) -> Array:
    """Returns a row with others' values in place of NaN."""
    return np.where(np.isnan(row), others, row)


def quantiles(rows: Sequence[Array], share: float = 0.5) -> Array:
    """Returns the medians, or other quantiles, of columns without NaN; NaN for a column of nothing
    else.
    """
    table = np.sort(np.array(rows, float), axis=0)  # NaN last
    places = share * np.maximum(np.count_nonzero(~np.isnan(table), axis=0) - 1, 0)
    below, columns = places.astype(int), np.arange(table.shape[1])
    low, high = table[below, columns], table[np.ceil(places).astype(int), columns]
    found: Array = low + (places - below) * (high - low)
    return found
