"""The state of the caches for a kernel: where its operands will come from in the program.

Kernels run in a known order on planned memory, so the bytes touched between two uses of a place are
known. This *distance* determines the memory level that still holds the place. Weights are read once
per run, so their distance is the size of everything a run touches.

Source: Mattson et al., Evaluation Techniques for Storage Hierarchies, 1970 (here, bytes between two
uses count each time they are touched).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.backends.cpu.lowering import KernelSource
from clew.build.result import KernelUse
from clew.ir.types import bits
from clew.runtime.plan import BufferKind, BufferRef, SegmentPlan
from clew.te.analysis import extents_of
from clew.te.tensor import stages
from clew.te.walk import loads

Array = np.ndarray[Any, Any]

DISTANCES: Final = (1 << 18, 1 << 19, 1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Bounds of the classes of distances, in bytes; the last class is beyond all of them."""
KINDS: Final = ("constant", "value", "written")
"""The kinds of bytes touched: weights, other operands, results and temporaries."""
_PAGE: Final = 1 << 12


@dataclass(frozen=True)
class Surroundings:
    """Bytes that a kernel touches, by kind and class of distance, and the program's size: bytes of
    weights, of intermediate values, and of everything a run touches.
    """

    touched: dict[str, list[int]]
    constant_bytes: int
    arena_bytes: int
    program_bytes: int
    position: float
    kernels: int


@dataclass(frozen=True)
class _Touch:
    """A place in a memory space that a step touches."""

    kind: str
    space: tuple[Any, ...]
    start: int
    size: int


def surroundings(uses: Sequence[KernelUse], plans: Sequence[SegmentPlan]) -> list[Surroundings]:
    """Returns the surroundings of each kernel use; uses are in the order in which they run."""
    sizes: dict[str, list[int]] = {}
    steps = []
    for use in uses:
        key = use.source.key
        if key not in sizes:
            sizes[key] = _reads(use.source)
        steps.append(_touches(use, plans[use.segment], sizes[key]))
    memory = _Memory(plans)
    whole = 0
    for touches in steps:  # everything was touched in the previous run
        whole += sum(t.size for t in touches)
        for touch in touches:
            memory.touch(touch, whole)
    constants = {t.space: t.size for touches in steps for t in touches if t.kind == "constant"}
    found, at = [], whole
    for number, touches in enumerate(steps):
        classes = {kind: [0] * (len(DISTANCES) + 1) for kind in KINDS}
        for touch in touches:
            for distance, size in memory.distances(touch, at):
                classes[touch.kind][int(np.searchsorted(DISTANCES, distance))] += size
        at += sum(t.size for t in touches)
        for touch in touches:
            memory.touch(touch, at)
        found.append(
            Surroundings(
                classes,
                sum(constants.values()),
                sum(plan.arena_bytes for plan in plans),
                whole,
                number / max(1, len(steps) - 1),
                len(steps),
            )
        )
    return found


def _touches(use: KernelUse, plan: SegmentPlan, reads: Sequence[int]) -> list[_Touch]:
    args = plan.steps[use.step].args
    found = []
    for number, ref in enumerate(args):
        whole = _whole_bytes(plan, ref)
        reading = number < len(reads)
        size = min(whole, reads[number]) if reading else whole - ref.offset_bytes
        if reading and ref.kind is BufferKind.CONSTANT:
            kind = "constant"
        else:
            kind = "value" if reading else "written"
        if ref.kind is BufferKind.ARENA:
            start = plan.arena_buffers[ref.index].offset_bytes + ref.offset_bytes
            found.append(_Touch(kind, (use.segment,), start, size))
        else:
            space = (use.segment, ref.kind.value, ref.index, ref.offset_bytes)
            found.append(_Touch(kind, space, 0, size))
    return found


def _whole_bytes(plan: SegmentPlan, ref: BufferRef) -> int:
    match ref.kind:
        case BufferKind.INPUT:
            return plan.inputs[ref.index].size_bytes
        case BufferKind.OUTPUT:
            return plan.outputs[ref.index].size_bytes
        case BufferKind.CONSTANT:
            return plan.constants[ref.index].nbytes
        case BufferKind.MOVING:
            return [size for loop in plan.loops for size in loop.moving_bytes][ref.index]
    return plan.arena_buffers[ref.index].size_bytes


class _Memory:
    """The last time each place was touched: per page in arenas, per buffer elsewhere. Time is
    measured in bytes touched.
    """

    def __init__(self, plans: Sequence[SegmentPlan]) -> None:
        self._pages = [np.zeros(plan.arena_bytes // _PAGE + 1, np.int64) for plan in plans]
        self._wholes: dict[tuple[Any, ...], int] = {}

    def _range(self, touch: _Touch) -> Array:
        pages = self._pages[touch.space[0]]
        held: Array = pages[touch.start // _PAGE : -(-(touch.start + touch.size) // _PAGE)]
        return held

    def touch(self, touch: _Touch, now: int) -> None:
        """Records that a place is touched."""
        if len(touch.space) == 1:
            self._range(touch)[...] = now
        else:
            self._wholes[touch.space] = now

    def distances(self, touch: _Touch, now: int) -> list[tuple[int, int]]:
        """Returns pairs of a distance and the number of bytes at it."""
        if len(touch.space) > 1:
            return [(now - self._wholes[touch.space], touch.size)]
        times, pages = np.unique(self._range(touch), return_counts=True)
        total = int(pages.sum()) or 1
        return [
            (now - int(t), touch.size * int(n) // total) for t, n in zip(times, pages, strict=True)
        ]


def _reads(source: KernelSource) -> list[int]:
    """Returns the bytes that a kernel reads of each argument, counting each element once."""
    counts: dict[int, int] = {}
    for stage in stages(source.stages.outputs):
        body = stage.body
        assert body is not None
        points = _size(extents_of(stage))
        for load in loads(body):
            counts[id(load.source)] = counts.get(id(load.source), 0) + points
    return [
        min(counts.get(id(t), 0) * max(8, bits(t.dtype)) // 8, t_bytes)
        for t, t_bytes in (
            (t, _size(t.shape) * max(8, bits(t.dtype)) // 8) for t in source.stages.inputs
        )
    ]


def _size(shape: Sequence[object]) -> int:
    size = 1
    for extent in shape:
        size *= extent if isinstance(extent, int) else 1
    return size
