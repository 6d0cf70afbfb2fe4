"""The state of the caches for a kernel: where its operands will come from in the program.

Kernels run in a known order on planned memory, so the bytes touched between two uses of a place are
known. This *distance* determines the memory level that still holds the place. Weights are read once
per run, so their distance is the size of everything a run touches. A kernel is assumed to touch all
of its operands at the same pace from their beginning to their end: between the uses of a place in
two consecutive kernels lie the rest of the first and the beginning of the second.

The last-level cache is often shared with other programs, whose data displace ours in the course of
time. So the *age* matters as well: how long the kernels between two uses compute.

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

DISTANCES: Final = tuple(1 << n for n in range(13, 27))
"""Bounds of the classes of distances, in bytes; the last class is beyond all of them."""
AGES: Final = (30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
"""Bounds of the classes of ages, in cycles; the last class is beyond all of them."""
KINDS: Final = ("constant", "value", "written")
"""The kinds of bytes touched: weights, other operands, results and temporaries."""
AGED: Final = ("value", "written")
"""The kinds whose ages matter. Weights are as old as a run."""
_PAGE: Final = 1 << 12
_SHORTEST: Final = 1000  # kernel, in cycles: each takes some time to start


@dataclass(frozen=True)
class Surroundings:
    """Bytes that a kernel touches, by kind and class of distance (`touched`) and, as far as they
    are beyond the second-level cache, of age (`aged`); the program's size: bytes of weights, of
    intermediate values, and of everything a run touches.
    """

    touched: dict[str, list[int]]
    aged: dict[str, list[int]]
    constant_bytes: int
    arena_bytes: int
    program_bytes: int
    position: float
    kernels: int


@dataclass(frozen=True)
class Touch:
    """A place in a memory space that a step touches."""

    kind: str
    space: tuple[Any, ...]
    start: int
    size: int


def surroundings(
    uses: Sequence[KernelUse],
    plans: Sequence[SegmentPlan],
    cycles: Sequence[float],
    near_bytes: int,
) -> list[Surroundings]:
    """Returns the surroundings of each kernel use; uses are in the order in which they run.

    `cycles` are those of each use; `near_bytes` is the size of the second-level cache.
    """
    sizes: dict[str, tuple[list[int], list[int]]] = {}
    steps = []
    for use in uses:
        key = use.source.key
        if key not in sizes:
            sizes[key] = _reads(use.source), _writes(use.source)
        steps.append(_touches(use, plans[use.segment], *sizes[key]))
    return surroundings_of(steps, [plan.arena_bytes for plan in plans], cycles, near_bytes)


def surroundings_of(
    steps: Sequence[Sequence[Touch]],
    arena_bytes: Sequence[int],
    cycles: Sequence[float],
    near_bytes: int,
) -> list[Surroundings]:
    """Returns the surroundings of some steps, by the memory that they touch."""
    constants = {t.space: t.size for touches in steps for t in touches if t.kind == "constant"}
    lengths = [sum(t.size for t in touches) for touches in steps]
    distances = _since_last_use(steps, lengths, arena_bytes)
    ages = _since_last_use(steps, [max(_SHORTEST, int(c)) for c in cycles], arena_bytes)
    found = []
    for number, touches in enumerate(steps):
        touched = {kind: [0] * (len(DISTANCES) + 1) for kind in KINDS}
        aged = {kind: [0] * (len(AGES) + 1) for kind in KINDS}
        for touch, far, old in zip(touches, distances[number], ages[number], strict=True):
            beyond = sum(size for distance, size in far if distance > near_bytes)
            for distance, size in far:
                touched[touch.kind][int(np.searchsorted(DISTANCES, distance))] += size
            for age, size in old:
                share = beyond / max(1, touch.size)
                aged[touch.kind][int(np.searchsorted(AGES, age))] += int(size * share)
        found.append(
            Surroundings(
                touched,
                aged,
                sum(constants.values()),
                sum(arena_bytes),
                sum(lengths),
                number / max(1, len(steps) - 1),
                len(steps),
            )
        )
    return found


def _since_last_use(
    steps: Sequence[Sequence[Touch]], lengths: Sequence[int], arena_bytes: Sequence[int]
) -> list[list[list[tuple[int, int]]]]:
    """Returns, for each touch of each step, pairs of the time since the last use and the number of
    bytes. `lengths` are the times that steps take.
    """
    memory = _Memory(arena_bytes)
    found = []
    at = 0
    for repeated in (False, True):  # everything was touched in the previous run
        for touches, length in zip(steps, lengths, strict=True):
            began, at = at, at + length
            if repeated:
                found.append([memory.since(touch, began, at) for touch in touches])
            for touch in touches:
                memory.touch(touch, began, at)
    return found


def _touches(
    use: KernelUse, plan: SegmentPlan, reads: Sequence[int], writes: Sequence[int]
) -> list[Touch]:
    args = plan.steps[use.step].args
    found = []
    for number, ref in enumerate(args):
        whole = _whole_bytes(plan, ref)
        reading = number < len(reads)
        # Workspaces follow the results.
        known = [*reads, *writes]
        size = min(whole - ref.offset_bytes, known[number] if number < len(known) else whole)
        if reading and ref.kind is BufferKind.CONSTANT:
            kind = "constant"
        else:
            kind = "value" if reading else "written"
        if ref.kind is BufferKind.ARENA:
            start = plan.arena_buffers[ref.index].offset_bytes + ref.offset_bytes
            found.append(Touch(kind, (use.segment,), start, size))
        else:
            space = (use.segment, ref.kind.value, ref.index, ref.offset_bytes)
            found.append(Touch(kind, space, 0, size))
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
    """The last step that touched each place, as the times when it began and ended: per page in
    arenas, per buffer elsewhere.
    """

    def __init__(self, arena_bytes: Sequence[int]) -> None:
        self._pages = [np.zeros((size // _PAGE + 1, 2), np.int64) for size in arena_bytes]
        self._wholes: dict[tuple[Any, ...], tuple[int, int]] = {}

    def _range(self, touch: Touch) -> Array:
        pages = self._pages[touch.space[0]]
        held: Array = pages[touch.start // _PAGE : -(-(touch.start + touch.size) // _PAGE)]
        return held

    def touch(self, touch: Touch, began: int, ended: int) -> None:
        """Records that a step touches a place."""
        if len(touch.space) == 1:
            self._range(touch)[...] = began, ended
        else:
            self._wholes[touch.space] = began, ended

    def since(self, touch: Touch, begins: int, ends: int) -> list[tuple[int, int]]:
        """Returns pairs of the time since the last use and the number of bytes, for a step that
        begins and ends at these times: half of the bytes each as the first and the last.
        """
        if len(touch.space) > 1:
            times, counts = np.array([self._wholes[touch.space]]), np.ones(1, np.int64)
        else:
            times, counts = np.unique(self._range(touch), axis=0, return_counts=True)
        total = int(counts.sum()) or 1
        found = []
        for (began, ended), count in zip(times, counts, strict=True):
            first = touch.size * int(count) // (2 * total)
            found.append((begins - int(began), first))
            found.append((ends - int(ended), touch.size * int(count) // total - first))
        return found


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


def _writes(source: KernelSource) -> list[int]:
    """Returns the bytes of a kernel's results."""
    return [_size(t.shape) * max(8, bits(t.dtype)) // 8 for t in source.stages.outputs]


def _size(shape: Sequence[object]) -> int:
    size = 1
    for extent in shape:
        size *= extent if isinstance(extent, int) else 1
    return size
