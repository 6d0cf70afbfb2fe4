"""The cache lines that a kernel's loops touch, and how many come from beyond a cache.

Every access is a sum of loop counters times strides, so the lines that a loop touches are known,
and with them the innermost loops whose data fits in a cache: data stays there from one iteration to
the next. Lines also differ by the *run* they are in, the length of consecutive memory that is read
before the address jumps: processors prefetch long runs, while those of a few lines wait for memory.

Source: the layer conditions of stencils; Hammer et al., Kerncraft, 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from clew.predict.addresses import SCRATCH, Address, Counter

Array = np.ndarray[Any, Any]
LINE_BYTES: Final = 64
RUNS: Final = (4 * LINE_BYTES, 64 * LINE_BYTES)
"""Bounds of the classes of runs, in bytes: a few lines, up to a page, and longer."""
_MOST_PIECES: Final = 1024
_SCRATCH_BYTES: Final = 1 << 18


@dataclass
class Nest:
    """A loop, or a branch of a loop's body: its trips, the share of iterations that enter it, its
    accesses (with their sizes in bytes), and the loops inside.
    """

    loop: int
    trips: float = 1.0
    share: float = 1.0
    accesses: list[tuple[Address, int]] = field(default_factory=list)
    inner: list[Nest] = field(default_factory=list)


@dataclass(frozen=True)
class _Level:
    """A loop, or a part of one whose counter is divided."""

    loop: int
    divisor: int
    trips: int


class _Pieces:
    """Memory as pieces of consecutive bytes, `times` over."""

    def __init__(self, starts: Array, ends: Array, times: float = 1.0) -> None:
        self.starts, self.ends, self.times = starts, ends, times

    @classmethod
    def of(cls, starts: Array, ends: Array, times: float = 1.0) -> _Pieces:
        """Returns pieces, those that touch or overlap joined."""
        order = np.argsort(starts, kind="stable")
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        first = np.ones(len(starts), bool)
        first[1:] = starts[1:] > reached[:-1]
        last = np.append(first[1:], True)
        return cls(starts[first], reached[last], times)

    def repeated(self, stride: int, trips: int) -> _Pieces:
        """Returns the memory that a loop touches, moving by `stride` in each iteration."""
        if trips <= 1 or not stride:
            return self
        step = abs(stride)
        if step <= int((self.ends - self.starts).min()):
            return _Pieces.of(self.starts, self.ends + step * (trips - 1), self.times)
        if len(self.starts) * trips > _MOST_PIECES:
            return _Pieces(self.starts, self.ends, self.times * trips)
        moved = step * np.arange(trips)[:, None]
        return _Pieces.of((self.starts + moved).ravel(), (self.ends + moved).ravel(), self.times)

    @property
    def lines(self) -> float:
        """The number of cache lines."""
        count = (self.ends - 1) // LINE_BYTES - self.starts // LINE_BYTES + 1
        return float(count.sum()) * self.times


class _Group:
    """Accesses of an argument that differ by constants only, inside the same loops."""

    def __init__(
        self,
        terms: dict[Counter, int],
        pieces: _Pieces,
        levels: Sequence[_Level],
        share: float,
        most_bytes: int,
    ) -> None:
        most = max(1, -(-most_bytes // LINE_BYTES))
        strides = [_stride(terms, level) for level in levels]
        self.share = share
        # Lines of one iteration of each level; the last is one iteration of the innermost.
        self.lines = [pieces.lines]
        run, growing = float((pieces.ends - pieces.starts).max()), True
        for level, stride in zip(reversed(levels), reversed(strides), strict=True):
            if stride and growing and level.trips > 1:
                growing = abs(stride) <= run + LINE_BYTES
                run += abs(stride) * (level.trips - 1) if growing else 0
            pieces = pieces.repeated(stride, level.trips)
            self.lines.append(min(pieces.lines, float(most)))
        self.lines = [min(n, float(most)) for n in self.lines[::-1]]
        self.run = int(np.searchsorted(RUNS, run))


def _stride(terms: dict[Counter, int], level: _Level) -> int:
    found = 0
    for counter, factor in terms.items():
        if counter.loop != level.loop:
            continue
        # A level covers the values of the counter from its divisor to that of the next level.
        if counter.divisor <= level.divisor and (
            not counter.modulus or counter.divisor * counter.modulus > level.divisor
        ):
            found += factor * (level.divisor // counter.divisor)
    return found


@dataclass(frozen=True)
class Footprint:
    """Lines from beyond caches of several sizes, by class of run: f64[caches, runs]; for each
    argument, the share of its lines in each class of run: f64[runs].
    """

    lines: Array
    runs: dict[int, Array]


def footprint(
    roots: Sequence[Nest], argument_bytes: Sequence[int], caches: Sequence[int]
) -> Footprint:
    """Returns the footprint of a kernel's phases."""
    lines = np.zeros((len(caches), len(RUNS) + 1))
    runs: dict[int, Array] = {}
    for root in roots:
        groups: list[tuple[int, tuple[int, ...], Sequence[_Level], _Group]] = []
        _collect(root, (), (), 1.0, _divisors(root), argument_bytes, groups)
        # Lines of everything that an iteration of each loop touches, by the path of levels.
        sets: dict[tuple[int, ...], float] = {}
        for _, path, _, group in groups:
            for depth in range(len(path) + 1):
                key = path[:depth]
                sets[key] = sets.get(key, 0.0) + group.lines[depth]
        for argument, path, levels, group in groups:
            own = runs.setdefault(argument, np.zeros(len(RUNS) + 1))
            own[group.run] += group.lines[0]
            for number, cache in enumerate(caches):
                times, found = group.share, group.lines[0]
                for depth in range(len(path) + 1):
                    found = group.lines[max(0, depth - 1)]
                    if sets[path[:depth]] * LINE_BYTES <= cache:
                        break
                    if depth:
                        times *= levels[depth - 1].trips
                else:
                    found = group.lines[-1]
                # The last level passed is not repeated: its iterations share what fits.
                lines[number, group.run] += times * found
    return Footprint(lines, {a: n / max(n.sum(), 1.0) for a, n in runs.items()})


def _divisors(root: Nest) -> dict[int, list[int]]:
    """Returns the divisors of each loop's counter, the largest first."""
    found: dict[int, set[int]] = {}

    def visit(nest: Nest) -> None:
        for address, _ in nest.accesses:
            for counter, _ in address.terms:
                own = found.setdefault(counter.loop, {1})
                own.add(counter.divisor)
                if counter.modulus:
                    own.add(counter.divisor * counter.modulus)
        for inner in nest.inner:
            visit(inner)

    visit(root)
    return {loop: sorted(own, reverse=True) for loop, own in found.items()}


def _levels(nest: Nest, divisors: Sequence[int]) -> list[_Level]:
    left = max(1, round(nest.trips))
    levels = []
    for divisor in divisors:
        trips = -(-left // divisor)
        if trips > 1 or divisor == 1:
            levels.append(_Level(nest.loop, divisor, trips))
            left = min(left, divisor)
    return levels


def _collect(
    nest: Nest,
    path: tuple[int, ...],
    levels: tuple[_Level, ...],
    share: float,
    divisors: dict[int, list[int]],
    argument_bytes: Sequence[int],
    groups: list[tuple[int, tuple[int, ...], Sequence[_Level], _Group]],
) -> None:
    if nest.loop:
        own = _levels(nest, divisors.get(nest.loop, [1]))
        path = (*path, *((nest.loop << 8) + n for n in range(len(own))))
        levels = (*levels, *own)
    share *= nest.share
    alike: dict[tuple[int, tuple[tuple[Counter, int], ...]], list[tuple[int, int]]] = {}
    for address, size in nest.accesses:
        alike.setdefault((address.argument, address.terms), []).append(
            (address.offset, address.offset + size)
        )
    for (argument, terms), ranges in alike.items():
        bounds = np.array(ranges, np.int64)
        pieces = _Pieces.of(bounds[:, 0], bounds[:, 1])
        known = argument != SCRATCH and argument < len(argument_bytes)
        most = argument_bytes[argument] if known else _SCRATCH_BYTES
        group = _Group(dict(terms), pieces, levels, share, max(1, most))
        groups.append((argument, path, levels, group))
    for inner in nest.inner:
        _collect(inner, path, levels, share, divisors, argument_bytes, groups)
