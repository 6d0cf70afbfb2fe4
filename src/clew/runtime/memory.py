"""Aligned buffers, and the static plan of the arena."""

from __future__ import annotations

import bisect
import contextlib
import heapq
import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clew.ir.dims import TYPICAL_SIZES, Dim, Sizes, SymDim, expected_sizes
from clew.runtime.flow import check_flow, check_stacks
from clew.runtime.plan import (
    ArenaBuffer,
    BufferKind,
    BufferSpec,
    Flow,
    FlowKind,
    LoopPlan,
    SegmentPlan,
    Step,
)
from clew.runtime.references import References
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.calling import picker
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.support.lazy import cached_property

HUGE_PAGE_BYTES = 2 << 20
# From this size, a buffer gets its own mapping, which the OS may back with huge pages.
_MAPPED_FROM_BYTES = 2 * HUGE_PAGE_BYTES
# Addresses per byte that memory which may grow needs at first.
_ROOM_TO_GROW = 8
# Up to this many pairs of buffers per buffer that are live together, the arena is planned from the
# pairs: time linear in the buffers. Beyond, comparing with all buffers as arrays is faster.
_FEW_BESIDE = 16


def round_up(value: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def private_pages(size_bytes: int) -> mmap.mmap:
    """Returns zeroed private pages; a forked child gets a copy."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def aligned_bytes(size_bytes: int, *, zero: bool = False) -> np.ndarray:
    """Returns u8[size_bytes] that starts at a multiple of 64, zeroed if `zero`.

    The array owns its memory. Large arrays start at a huge page and are always zeroed.
    """
    if size_bytes >= _MAPPED_FROM_BYTES:
        pages = private_pages(size_bytes + HUGE_PAGE_BYTES)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(pages, np.uint8)
        start = -address_of(whole) % HUGE_PAGE_BYTES
    else:
        make = np.zeros if zero else np.empty
        whole = make(size_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -address_of(whole) % ALIGNMENT_BYTES
    return whole[start : start + size_bytes]


def growing_bytes(size_bytes: int) -> np.ndarray:
    """Returns `aligned_bytes` of at least this size. Large arrays are longer, so that more may be
    used later: pages that were never used take no memory.
    """
    if size_bytes < _MAPPED_FROM_BYTES:
        return aligned_bytes(size_bytes)
    with contextlib.suppress(OSError):  # the system may limit addresses
        return aligned_bytes(_ROOM_TO_GROW * size_bytes)
    return aligned_bytes(size_bytes)


def mapping_of(array: np.ndarray) -> mmap.mmap | None:
    """Returns the mapping that contains an array, if there is one."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return owner if isinstance(owner, mmap.mmap) else None


def release_pages(
    array: np.ndarray,
    mapping: mmap.mmap,
    unit_bytes: int = mmap.PAGESIZE,
    *,
    lazily: bool = False,
) -> None:
    """Gives the memory of an array's whole units back to the system. Private memory is zeros
    afterwards, and memory of a file is read again. With `lazily`, the system takes pages only when
    memory is short, and until then writing to a page keeps it.
    """
    base, start = address_of(np.frombuffer(mapping, np.uint8)), address_of(array)
    first = round_up(start, unit_bytes) - base
    last = (start + array.nbytes) // unit_bytes * unit_bytes - base
    advice = getattr(mmap, "MADV_FREE" if lazily else "MADV_DONTNEED", None)
    if last > first and advice is not None:
        mapping.madvise(advice, first, last - first)


@dataclass(frozen=True)
class Lifetime:
    """The size of an arena buffer, and the first and last step during which it holds a value."""

    size_bytes: int
    first_step: int
    last_step: int


def plan_arena(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Returns an offset for each buffer, and the bytes of the arena.

    Each buffer in turn goes into the smallest sufficient gap between the buffers that are live at
    the same time, or behind them. The order is by size or, if that gives a smaller arena, by size
    times steps, largest first. Offsets are multiples of 64. Deterministic.

    Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020.
    """
    filled = [i for i, lifetime in enumerate(lifetimes) if lifetime.size_bytes]
    by_size = sorted(filled, key=lambda i: (-lifetimes[i].size_bytes, lifetimes[i].first_step, i))
    plans = [_place_in_order(lifetimes, by_size)]
    if plans[0][1] > most_alive_bytes(lifetimes):
        by_area = sorted(by_size, key=lambda i: -lifetimes[i].size_bytes * _steps(lifetimes[i]))
        plans.append(_place_in_order(lifetimes, by_area))
    return min(plans, key=lambda plan: plan[1])


def _steps(lifetime: Lifetime) -> int:
    return lifetime.last_step - lifetime.first_step + 1


def most_alive_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Returns the most bytes that are live at any step, a lower bound for the arena."""
    changes: dict[int, int] = {}
    for lifetime in lifetimes:
        size = round_up(lifetime.size_bytes, ALIGNMENT_BYTES)
        changes[lifetime.first_step] = changes.get(lifetime.first_step, 0) + size
        changes[lifetime.last_step + 1] = changes.get(lifetime.last_step + 1, 0) - size
    return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)


def _place_in_order(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Returns an offset for each buffer, placed in this order, and the bytes of the arena."""
    few = _FEW_BESIDE * len(order)
    pairs = list(itertools.islice(_live_together(lifetimes, order), few + 1))
    if len(pairs) <= few:
        return _place_beside(lifetimes, order, pairs)
    offsets = [0] * len(lifetimes)
    # Columns are placed buffers by offset; rows are offset, end, first step, last step.
    placed = np.empty((4, len(lifetimes)), np.int64)
    total = 0
    for count, index in enumerate(order):
        lifetime = lifetimes[index]
        size = round_up(lifetime.size_bytes, ALIGNMENT_BYTES)
        starts, ends, first, last = placed[:, :count]
        alive = (first <= lifetime.last_step) & (last >= lifetime.first_step)
        offset = offsets[index] = _best_fit(size, starts[alive], ends[alive])
        total = max(total, offset + size)
        column = int(np.searchsorted(starts, offset))
        placed[:, column + 1 : count + 1] = placed[:, column:count]
        placed[:, column] = offset, offset + size, lifetime.first_step, lifetime.last_step
    return offsets, total


def _place_beside(
    lifetimes: Sequence[Lifetime], order: Sequence[int], pairs: Iterable[tuple[int, int]]
) -> tuple[list[int], int]:
    """Does what `_place_in_order` does, given the pairs of buffers that are live together."""
    beside: dict[int, list[int]] = {number: [] for number in order}
    for number, other in pairs:
        beside[number].append(other)
        beside[other].append(number)
    offsets, ends = [0] * len(lifetimes), dict[int, int]()
    for number in order:
        size = round_up(lifetimes[number].size_bytes, ALIGNMENT_BYTES)
        near = sorted((offsets[other], ends[other]) for other in beside[number] if other in ends)
        starts_and_ends = np.array(near, np.int64).reshape(-1, 2).T
        offsets[number] = _best_fit(size, *starts_and_ends)
        ends[number] = offsets[number] + size
    return offsets, max(ends.values(), default=0)


def _best_fit(size: int, starts: np.ndarray, ends: np.ndarray) -> int:
    """Returns the start of the smallest gap of at least `size` bytes between ranges, or their end.

    `starts` ascends. Ranges may overlap each other.
    """
    if not len(starts):
        return 0
    free_from = np.concatenate(([0], np.maximum.accumulate(ends)))
    gaps = starts - free_from[:-1]
    gaps[gaps < size] = np.iinfo(np.int64).max
    best = int(gaps.argmin())
    return int(free_from[best if gaps[best] < np.iinfo(np.int64).max else -1])


@dataclass(frozen=True)
class ArenaTemplate:
    """The arena of a segment for all sizes: the size of each buffer, the order in which they are
    placed, and, for each, the buffers placed before it that are live at the same time.

    Each buffer is placed in the first gap between those. The order is the one of some orders that
    takes least memory at a few sizes.
    """

    sizes: tuple[Dim, ...]
    order: tuple[int, ...]
    beside: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(entries: Sequence[Step | Flow], sizes: Sequence[Dim]) -> ArenaTemplate:
        """Returns the arena of a segment's entries, given the sizes of its buffers in bytes."""
        spans = arena_lifetimes(entries, [1 if isinstance(s, SymDim) else s for s in sizes])
        tried = [
            [replace(span, size_bytes=size if span.size_bytes else 0) for span, size in both]
            for both in (list(zip(spans, at, strict=True)) for at in _some_sizes(sizes))
        ]
        least = [max(1, most_alive_bytes(lifetimes)) for lifetimes in tried]
        found: list[tuple[float, ArenaTemplate]] = []
        for order in _orders(spans, tried):
            made = ArenaTemplate(tuple(sizes), order, _beside(spans, order))
            totals = [made.offsets([span.size_bytes for span in each])[1] for each in tried]
            cost = sum(total / low for total, low in zip(totals, least, strict=True))
            found.append((cost, made))
            if totals == least:
                break
        return min(found, key=lambda pair: pair[0])[1]

    def at(self, sizes: Sizes) -> tuple[tuple[ArenaBuffer, ...], int]:
        """Returns the buffers at given sizes, and the bytes of the arena."""
        sizes_bytes = [sizes.value(size) for size in self.sizes]
        offsets, total = self.offsets(sizes_bytes)
        return tuple(map(ArenaBuffer, sizes_bytes, offsets)), total

    def offsets(self, sizes_bytes: Sequence[int]) -> tuple[list[int], int]:
        """Returns the offset of each buffer, given their sizes in bytes, and the bytes of the
        arena.
        """
        ranges = [(0, 0)] * len(sizes_bytes)
        total = 0
        for number, ranges_of_others in self._turns:
            size = -(-sizes_bytes[number] // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            at = 0
            for start, end in sorted(ranges_of_others(ranges)):
                if start - at >= size:
                    break
                if end > at:
                    at = end
            ranges[number] = at, at + size
            if at + size > total:
                total = at + size
        return [start for start, _ in ranges], total

    @cached_property
    def _turns(self) -> list[tuple[int, Callable[[list[Any]], tuple[Any, ...]]]]:
        """The buffers in order, each with a function that returns the items for those beside it."""
        return [
            (number, picker(others)) for number, others in zip(self.order, self.beside, strict=True)
        ]


def _some_sizes(sizes: Sequence[Dim]) -> list[list[int]]:
    """Returns the sizes of buffers in bytes where all free sizes are small, larger, and large."""
    names = {name for size in sizes if isinstance(size, SymDim) for name in size.symbols}
    expected = {name: size for name, size in expected_sizes() if name in names}
    found: list[list[int]] = []
    for number in TYPICAL_SIZES if names else TYPICAL_SIZES[:1]:
        with contextlib.suppress(GraphTypeError):  # a divisor may be 0 at small sizes
            at = Sizes({**dict.fromkeys(names, number), **expected})
            found.append([max(0, at.value(size)) for size in sizes])
    return found


def _orders(
    spans: Sequence[Lifetime], tried: Sequence[Sequence[Lifetime]]
) -> Iterator[tuple[int, ...]]:
    """Yields orders in which to place buffers, for each of the `tried` sizes: by size, then by size
    times steps, largest first.
    """
    filled = [n for n, span in enumerate(spans) if span.size_bytes]
    seen: set[tuple[int, ...]] = set()
    for steps_of in (lambda _: 1, _steps):
        for at in tried:
            keys = {n: (-at[n].size_bytes * steps_of(at[n]), at[n].first_step, n) for n in filled}
            order = tuple(sorted(filled, key=keys.__getitem__))
            if order not in seen:
                seen.add(order)
                yield order


def _beside(spans: Sequence[Lifetime], order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns, for each buffer of an order, those before it that are live at the same time."""
    places = {number: place for place, number in enumerate(order)}
    beside: list[list[int]] = [[] for _ in order]
    for number, other in _live_together(spans, order):
        earlier, later = sorted((places[number], places[other]))
        beside[later].append(earlier)
    return tuple(tuple(order[place] for place in sorted(found)) for found in beside)


def _live_together(spans: Sequence[Lifetime], numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields the pairs of buffers that are live at the same time, each once."""
    live: dict[int, None] = {}
    ends: list[tuple[int, int]] = []
    for number in sorted(numbers, key=lambda n: spans[n].first_step):
        span = spans[number]
        while ends and ends[0][0] < span.first_step:
            del live[heapq.heappop(ends)[1]]
        for other in live:
            yield number, other
        live[number] = None
        heapq.heappush(ends, (span.last_step, number))


def arena_lifetimes(entries: Sequence[Step | Flow], sizes_bytes: Sequence[int]) -> list[Lifetime]:
    """Returns the lifetime of each arena buffer, from its first to its last use.

    A buffer that was set before a loop and is used in it lives until the loop ends; so do the
    buffers that the loop's states move between. Unused buffers get no bytes.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    began: dict[int, int] = {}
    for position, entry in enumerate(entries):
        for ref in entry.args:
            if ref.kind is BufferKind.ARENA:
                first.setdefault(ref.index, position)
                last[ref.index] = position
        if isinstance(entry, Flow) and entry.kind is FlowKind.BEGIN:
            began[entry.loop] = position
        elif isinstance(entry, Flow) and entry.kind is FlowKind.END and entry.loop >= 0:
            begin = began[entry.loop]  # inner loops have already ended
            inside = (ref for part in entries[begin : position + 1] for ref in part.args)
            for index in {ref.index for ref in inside if ref.kind is BufferKind.ARENA}:
                if first[index] <= begin:
                    last[index] = position
    return [
        Lifetime(size if index in first else 0, first.get(index, 0), last.get(index, 0))
        for index, size in enumerate(sizes_bytes)
    ]


def plan_segment(
    steps: Sequence[Step],
    inputs: Sequence[BufferSpec],
    outputs: Sequence[BufferSpec],
    constants: Sequence[np.ndarray],
    arena_sizes_bytes: Sequence[int],
    order: Sequence[int | Flow] = (),
    loops: Sequence[LoopPlan] = (),
    written: Sequence[int] = (),
) -> SegmentPlan:
    """Returns the plan of a segment. Arena references in `steps` are indices into
    `arena_sizes_bytes`.

    Each value and each kernel's workspace is a separate arena buffer there. Buffers share memory if
    their lifetimes do not overlap.
    """
    plan = SegmentPlan(
        tuple(steps),
        tuple(inputs),
        tuple(outputs),
        tuple(constants),
        0,
        order=tuple(order),
        loops=tuple(loops),
        written=tuple(written),
    )
    offsets, total = plan_arena(arena_lifetimes(plan.entries, arena_sizes_bytes))
    arena = tuple(map(ArenaBuffer, arena_sizes_bytes, offsets))
    plan = replace(plan, arena_bytes=total, arena=arena)
    check_plan(plan)
    return plan


def limits_of(plan: SegmentPlan) -> dict[BufferKind, list[int]]:
    """Returns the sizes in bytes of all buffers of a plan."""
    return {
        BufferKind.INPUT: [spec.size_bytes for spec in plan.inputs],
        BufferKind.OUTPUT: [spec.size_bytes for spec in plan.outputs],
        BufferKind.CONSTANT: [constant.nbytes for constant in plan.constants],
        BufferKind.ARENA: [buffer.size_bytes for buffer in plan.arena_buffers],
        BufferKind.MOVING: [size for loop in plan.loops for size in loop.moving_bytes],
    }


def check_plan(plan: SegmentPlan) -> None:
    """Asserts that all references are valid, and that no two live arena buffers overlap."""
    limits = limits_of(plan)
    counts = {kind: len(sizes_bytes) for kind, sizes_bytes in limits.items()}
    references = References(plan.entries, counts)
    for kind, sizes_bytes in limits.items():
        references.check(kind, sizes_bytes)
    if plan.order:
        check_flow(plan, limits)
    check_stacks(plan)
    if plan.arena:
        _check_overlaps(plan)


def _check_overlaps(plan: SegmentPlan) -> None:
    """Asserts that arena buffers are aligned, inside the arena, and disjoint while live."""
    entries = plan.entries
    lifetimes = arena_lifetimes(entries, [buffer.size_bytes for buffer in plan.arena])
    begin: list[list[int]] = [[] for _ in entries]
    for index, (buffer, lifetime) in enumerate(zip(plan.arena, lifetimes, strict=True)):
        if lifetime.size_bytes == 0:
            continue
        stop = buffer.offset_bytes + buffer.size_bytes
        if buffer.offset_bytes % ALIGNMENT_BYTES != 0:
            raise AssertionError(f"arena buffer {index} is misaligned")
        if buffer.offset_bytes < 0:
            raise AssertionError(f"arena buffer {index} is outside the arena")
        if stop > plan.arena_bytes:
            raise AssertionError(f"arena buffer {index} is outside the arena")
        begin[lifetime.first_step].append(index)
    ending: list[list[tuple[int, int, int]]] = [[] for _ in range(len(entries) + 1)]
    alive: list[tuple[int, int, int]] = []  # start, stop, index; by start
    for position, fresh in enumerate(begin):
        for ended in ending[position]:
            del alive[bisect.bisect_left(alive, ended)]
        for index in fresh:
            start = plan.arena[index].offset_bytes
            entry = (start, start + plan.arena[index].size_bytes, index)
            place = bisect.bisect_left(alive, entry)
            before, after = alive[max(0, place - 1) : place], alive[place : place + 1]
            for below, above in itertools.pairwise([*before, entry, *after]):
                if below[1] > above[0]:
                    raise AssertionError(
                        f"arena buffers {below[2]} and {above[2]} overlap at step {position}"
                    )
            alive.insert(place, entry)
            ending[lifetimes[index].last_step + 1].append(entry)
