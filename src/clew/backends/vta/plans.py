"""How the simulator runs the steps of a GEMM or ALU instruction with few NumPy calls.

A plan depends on the micro-ops and the loops only, not on values, and is kept for the instructions
that have the same. For GEMM it gathers all steps of one destination: their products are a single
row times column, and destinations that use the same weights are rows of one matrix product. Sums
of int8 products in f32 are exact up to 2**24, which bounds the products of one sum. For ALU it
makes levels: no step of a level needs the result of another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from clew.backends.vta.config import Config
from clew.backends.vta.isa import Alu, Gemm, uop_indices

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

MOST_STEPS: Final = 1 << 17
"""Instructions with more steps run in pieces."""
_MOST_BATCHED: Final = 4096
_F32_BITS: Final = 24
_F64_BITS: Final = 53
_FEW_ROWS: Final = 4


@dataclass(frozen=True)
class Group:
    """Destinations whose sums have the same number of terms.

    `dst` is `[u]`, `src` `[u, terms]`. `wgt` is `[terms]` if all destinations use the same weights,
    else `[u, terms]`.
    """

    dst: Ints
    src: Ints
    wgt: Ints


@dataclass(frozen=True)
class Level:
    """Steps of ALU that are independent of each other."""

    dst: Ints
    src: Ints


@dataclass(frozen=True)
class Plan:
    """The steps of one piece of an instruction, and each index that they use once."""

    dst: Ints
    src: Ints
    wgt: Ints
    groups: tuple[Group, ...] = ()
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Reach:
    """The largest indices that an instruction uses; an instruction without steps has none."""

    dst: int
    src: int
    wgt: int


def reach_of(instruction: Gemm | Alu, words: np.ndarray[Any, Any], config: Config) -> Reach:
    """Returns the largest indices of an instruction with steps; `words` are its micro-ops."""
    uops = uop_indices(words, config)
    outer, inner = instruction.iter_out - 1, instruction.iter_in - 1

    def most(indices: Ints, factors: tuple[int, int]) -> int:
        return int(indices.max()) + outer * factors[0] + inner * factors[1]

    dst, src, wgt = factors_of(instruction)
    return Reach(most(uops[0], dst), most(uops[1], src), most(uops[2], wgt))


def factors_of(instruction: Gemm | Alu) -> tuple[tuple[int, int], ...]:
    """Returns the factors of the outer and the inner loop for destinations, sources and weights."""
    weights = (instruction.wgt_out, instruction.wgt_in) if isinstance(instruction, Gemm) else (0, 0)
    return (
        (instruction.dst_out, instruction.dst_in),
        (instruction.src_out, instruction.src_in),
        weights,
    )


class Planner:
    """Makes plans, and keeps the last ones."""

    _MOST_KEPT: Final = 1 << 22
    """Steps of all plans that are kept."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._kept: dict[tuple[object, ...], tuple[Plan, ...]] = {}
        self._steps = 0

    def plans(self, instruction: Gemm | Alu, words: np.ndarray[Any, Any]) -> tuple[Plan, ...]:
        """Returns the plans of an instruction's pieces, in order; `words` are its micro-ops."""
        is_gemm = isinstance(instruction, Gemm)
        kind = instruction.reset if isinstance(instruction, Gemm) else instruction.use_imm
        loops = (instruction.iter_out, instruction.iter_in)
        key = (is_gemm, kind, loops, factors_of(instruction), words.tobytes())
        found = self._kept.get(key)
        if found is None:
            found = tuple(self._made(instruction, words))
            self._steps += instruction.steps
            if self._steps > self._MOST_KEPT:
                self._kept.clear()
                self._steps = instruction.steps
            self._kept[key] = found
        return found

    def _made(self, instruction: Gemm | Alu, words: np.ndarray[Any, Any]) -> Iterator[Plan]:
        for dst, src, wgt in _pieces(instruction, uop_indices(words, self._config)):
            if isinstance(instruction, Alu):
                reads = np.unique(dst if instruction.use_imm else np.concatenate((dst, src)))
                levels = tuple(_levels(dst, dst if instruction.use_imm else src))
                yield Plan(np.unique(dst), reads, wgt[:0], levels=levels)
            elif instruction.reset:
                yield Plan(np.unique(dst), src[:0], wgt[:0])
            else:
                groups = tuple(_groups(dst, src, wgt, most_terms(self._config)))
                yield Plan(np.unique(dst), np.unique(src), np.unique(wgt), groups)


def most_terms(config: Config) -> int:
    """Returns how many micro-ops may add to a sum that floats hold exactly."""
    bits = _F32_BITS if config.exact_in_f32 else _F64_BITS
    return max(1, (1 << bits) // (config.block_in << (config.inp_bits + config.wgt_bits - 2)))


def _pieces(instruction: Gemm | Alu, uops: tuple[Ints, ...]) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yields the indices of all steps in order, some iterations at a time."""
    factors = factors_of(instruction)
    inner = max(1, min(instruction.iter_in, MOST_STEPS // len(uops[0])))
    outer = max(1, MOST_STEPS // (len(uops[0]) * inner)) if inner == instruction.iter_in else 1
    for first in range(0, instruction.iter_out, outer):
        for second in range(0, instruction.iter_in, inner):
            out = np.arange(first, min(first + outer, instruction.iter_out))[:, None, None]
            into = np.arange(second, min(second + inner, instruction.iter_in))[None, :, None]
            dst, src, wgt = (
                (out * by_out + into * by_in + indices).ravel()
                for indices, (by_out, by_in) in zip(uops, factors, strict=True)
            )
            yield dst, src, wgt


def _groups(dst: Ints, src: Ints, wgt: Ints, most: int) -> Iterator[Group]:
    """Yields the sums of a GEMM, grouped by the number of their terms and by their weights."""
    order = np.argsort(dst, kind="stable")
    dst, src, wgt = dst[order], src[order], wgt[order]
    starts = np.flatnonzero(np.concatenate(([True], dst[1:] != dst[:-1])))
    counts = np.diff(np.append(starts, len(dst)))
    for count in np.unique(counts):
        begin = starts[counts == count]
        for first in range(0, count, most):
            terms = begin[:, None] + np.arange(first, min(first + most, count))
            yield from _by_weights(dst[begin], src[terms], wgt[terms])


def _by_weights(dst: Ints, src: Ints, wgt: Ints) -> Iterator[Group]:
    """Yields sums of as many terms in groups that share all weights, or in one if few do."""
    order = np.lexsort(wgt.T[::-1])
    dst, src, wgt = dst[order], src[order], wgt[order]
    new = np.concatenate(([True], (wgt[1:] != wgt[:-1]).any(axis=1)))
    starts = np.flatnonzero(new)
    if len(dst) < _FEW_ROWS * len(starts) and len(starts) > 1:
        for first in range(0, len(dst), max(1, _MOST_BATCHED // wgt.shape[1])):
            part = slice(first, first + max(1, _MOST_BATCHED // wgt.shape[1]))
            yield Group(dst[part], src[part], wgt[part])
        return
    for begin, end in zip(starts, np.append(starts[1:], len(dst)), strict=True):
        yield Group(dst[begin:end], src[begin:end], wgt[begin])


def _levels(dst: Ints, src: Ints) -> Iterator[Level]:
    """Yields the steps of an ALU instruction in levels. A step reads `dst` and `src`, and writes
    `dst`; within a level, all reads come before the writes.
    """
    same = src == dst
    if len(np.unique(dst)) == len(dst) and not np.isin(src[~same], dst).any():
        yield Level(dst, src)
        return
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    levels = np.zeros(len(dst), np.int64)
    for at, (to, of) in enumerate(zip(dst.tolist(), src.tolist(), strict=True)):
        level = max(written.get(to, -1) + 1, written.get(of, -1) + 1, read.get(to, 0))
        levels[at] = written[to] = level
        read[of] = max(read.get(of, 0), level)
        read[to] = max(read.get(to, 0), level)
    for level in range(int(levels.max()) + 1):
        chosen = levels == level
        yield Level(dst[chosen], src[chosen])
