"""Segments whose plans depend on sizes, and how they get their numbers.

Without control flow, a run needs few numbers at given sizes: those that kernels take, grids, sizes
of buffers and, for several threads, costs. One generated function returns them. The plan is made
only on request, or to decide which phases are divided along their lines. All sizes with equal bit
lengths share that decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from clew.cost.policy.threads import SIMILAR_COSTS
from clew.ir.dim_code import DimLists
from clew.ir.dims import Dim, Sizes
from clew.machine.costs import FS_PER_NS
from clew.runtime.bound import Bound, Chunks, chunks_of, distances_of, uses_of
from clew.runtime.context import SharedMemory
from clew.runtime.division import Work, divide
from clew.runtime.flow import check_flow, check_stacks
from clew.runtime.grid import choose_cuts, lines_of, phases
from clew.runtime.guard import GuardSide
from clew.runtime.layout import Layout, SymbolTable
from clew.runtime.memory import limits_of
from clew.runtime.plan import BufferKind, BufferSpec, SegmentPlan
from clew.runtime.references import References
from clew.runtime.segment import NativeSegment, readable
from clew.runtime.segment_template import SegmentTemplate
from clew.runtime.threads import ThreadPool
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.lazy import cached_property
from clew.support.locks import Once
from clew.support.shown import Shown, counted

_KEPT_CHOICES: Final = 256


class SizedSegment(Shown):
    """A segment whose plan depends on sizes. The segments that it makes share its memory."""

    def __init__(
        self,
        template: SegmentTemplate,
        library: SymbolTable,
        pool: ThreadPool,
        *,
        guard: GuardSide | bool = False,
    ) -> None:
        """Asserts that the template's steps use existing buffers."""
        self.template = template
        self.pool = pool
        self._library = library
        self._guard = guard
        constants = [readable(constant) for constant in template.constants]
        self._memory = SharedMemory(constants, len(template.steps))
        self._latest: NativeSegment | None = None
        counts = {
            BufferKind.INPUT: len(template.inputs),
            BufferKind.OUTPUT: len(template.outputs),
            BufferKind.CONSTANT: len(template.constants),
            BufferKind.ARENA: len(template.arena_bytes),
            BufferKind.MOVING: sum(loop.moving for loop in template.loops),
        }
        self._references = References(template.entries, counts)
        sizes_bytes = [constant.nbytes for constant in template.constants]
        self._references.check(BufferKind.CONSTANT, sizes_bytes)

    def _about(self) -> str:
        return f"of {counted(len(self.template.steps), 'kernel')}, for all sizes"

    @property
    def has_stacks(self) -> bool:
        """Whether it has outputs of as many rows as the run finds."""
        return any(output.is_stack for output in self.template.outputs)

    @property
    def threads(self) -> int:
        """The maximum number of threads that share its kernels' grids."""
        return self.pool.threads

    @property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The weights that its kernels read."""
        return self._memory.constants.arrays

    def function_address(self, symbol: str) -> int:
        """Returns the address of an entry point of a kernel."""
        return self._library.address(symbol)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise AssertionError("a segment for all sizes runs only at given sizes")

    def at(self, sizes: Sizes) -> NativeSegment:
        """Returns the segment at given sizes. Asserts that its steps stay inside its buffers.

        Errors: C140 for too much memory, C141 for a kernel that may take more operations than the
        budget allows, ZeroDivisionError for a size that is divided by 0.
        """
        self.template.check_operations(sizes)
        plan: SegmentPlan | Callable[[], SegmentPlan]
        if self._numbers is not None:
            bound = self._numbers.at(sizes.by_name, self._references)
            plan = partial(self.template.at, sizes, self.threads)
        else:
            plan = self.template.at(sizes, self.threads)
            self._check(plan)
            bound = Bound.of(plan, self.threads, self._layout)
            bound.check_memory(self.threads)
        latest = self._latest
        if latest is not None and callable(plan) and latest.has_types_of(bound):
            made = latest.at(plan, bound)
        else:
            made = NativeSegment(
                plan, self._library, self.pool, guard=self._guard, bound=bound, memory=self._memory
            )
        self._latest = made
        return made

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.template.entries, len(self.template.inputs))

    @cached_property
    def _numbers(self) -> Numbers | None:
        """The numbers of a run, if it needs no more."""
        template = self.template
        is_plain = not (template.order or template.loops or template.copied)
        if not is_plain or any(o.is_stack for o in template.outputs):
            return None
        return Numbers(template, self._layout, self.threads)

    def _check(self, plan: SegmentPlan) -> None:
        """Asserts that steps of the plan stay inside its buffers on every path. Its arena needs no
        check, since `ArenaTemplate` placed the buffers.
        """
        limits = limits_of(plan)
        distances = distances_of(plan, self._layout)
        for kind, sizes_bytes in limits.items():
            self._references.check(kind, sizes_bytes, distances)
        if plan.order:
            check_flow(plan, limits)
        check_stacks(plan)


class _Latest(NamedTuple):
    """What the latest numbers were: the state of the run, and what it was made of. `arena` has the
    sizes of the arena's buffers in units of the alignment. The division of work was made for `work`
    and `costs`.
    """

    bound: Bound
    shapes: Sequence[list[int]]
    arena: list[int]
    work: Sequence[list[int]]
    costs: list[int]

    def divides(self, work: Sequence[list[int]], costs: list[int]) -> bool:
        """Whether its division serves this work: the same pieces, of about the same costs."""
        return work == self.work and (
            costs == self.costs
            or all(
                abs(cost - known) <= known * SIMILAR_COSTS
                for cost, known in zip(costs, self.costs, strict=True)
            )
        )

    @property
    def distances(self) -> Sequence[int]:
        """The bytes that sizes add to positions."""
        return self.bound.distances


class Numbers:
    """The numbers of a template's run without control flow."""

    def __init__(self, template: SegmentTemplate, layout: Layout, threads: int) -> None:
        self._template = template
        self._layout = layout
        self._threads = threads
        steps = template.steps
        phased = [phase for step in steps for phase in phases(step.code.entries)]
        entries = [entry for phase in phased for entry in phase]
        number = {symbol: n for n, symbol in enumerate(layout.symbols)}
        # A chunk for each entry point, and the chunks of each driver step.
        self._rows = np.zeros((len(entries), 5), np.int64)
        self._rows[:, 0] = [number[entry.symbol] for entry in entries]
        self._has_lines = np.array([bool(entry.lines) for entry in entries], bool)
        phase_of = [n for n, phase in enumerate(phased) for _ in phase]
        self._phase_of = np.array(phase_of, np.int64)
        self._counts = np.bincount(self._phase_of, minlength=layout.n_steps)
        self._line_costs = [[cost for _, cost in entry.lines] for entry in entries]
        # Whether each phase is divided along its lines, by the bit lengths of sizes.
        self._along: dict[tuple[int, ...], list[bool]] = {}
        self._latest: _Latest | None = None
        several = entries if threads > 1 else []  # one thread needs no costs
        shapes = [spec.shape for spec in (*template.inputs, *template.outputs)]
        self._lists = DimLists(
            [size for step in steps for size in step.code.sizes],
            [entry.grid for entry in entries],
            [lines_of(entry) for entry in entries],
            [step.code.scratch_bytes for step in steps],
            template.arena_bytes,
            [_cost(entry.cost_fs, entry.cost) for entry in several],
            [_cost(entry.repeated_fs, entry.repeated) for entry in several],
            [count for entry in several for count, _ in entry.lines],
            [sized.ref.sized_bytes for sized in layout.sized],
            *shapes,
        )

    def at(self, by_name: Mapping[str, int], references: References) -> Bound:
        """Returns the state of a run at given sizes. Asserts that all `references` of the template
        are inside of their buffers.

        What is made of numbers that the latest sizes have, too, is the same object as for these:
        consecutive lengths of a cache have most numbers in common.

        Errors: C140 for too much memory, ZeroDivisionError for a size that is divided by 0.
        """
        lists = self._lists.at(by_name)
        latest = self._latest
        sizes, grids, lines, scratch_bytes, arena_bytes, costs, repeated, groups, *rest = lists
        distances, *shapes = rest
        inputs, outputs = self._specs(shapes, latest)
        if latest is None or distances != latest.distances or inputs is not latest.bound.inputs:
            references.check(BufferKind.INPUT, [spec.size_bytes for spec in inputs], distances)
        if latest is None or distances != latest.distances or outputs is not latest.bound.outputs:
            references.check(BufferKind.OUTPUT, [spec.size_bytes for spec in outputs], distances)
        references.check(BufferKind.ARENA, arena_bytes, distances)
        rounded = [-(-size // ALIGNMENT_BYTES) for size in arena_bytes]
        if latest is not None and rounded == latest.arena:
            offsets, total = latest.bound.arena, latest.bound.arena_bytes
        else:
            offsets, total = self._template.arena.offsets(arena_bytes)
        work = [grids, lines]
        if self._threads > 1:
            repeats = [int(each > 0) for each in repeated]
            work += [groups, repeats, [size.bit_length() for size in by_name.values()]]
        make_chunks: Callable[[], Chunks]
        if latest is not None and latest.divides(work, costs):
            make_chunks, costs = latest.bound.make_chunks, latest.costs
        elif self._threads > 1:
            divided = partial(self._divided, by_name, grids, lines, costs, repeated, groups)
            make_chunks = Once(divided).get
        else:
            make_chunks = Once(partial(self._chunks, grids, lines)).get
        bound = Bound(
            self._layout,
            inputs,
            outputs,
            offsets,
            total,
            scratch_bytes,
            sizes,
            make_chunks,
            distances=distances,
        )
        bound.check_memory(self._threads)
        self._latest = _Latest(bound, shapes, rounded, work, costs)
        return bound

    def _specs(
        self, shapes: Sequence[list[int]], latest: _Latest | None
    ) -> tuple[tuple[BufferSpec, ...], tuple[BufferSpec, ...]]:
        """Returns the inputs and outputs with given shapes."""
        if latest is not None and shapes == latest.shapes:
            return latest.bound.inputs, latest.bound.outputs
        template = self._template
        specs = [
            BufferSpec(spec.name, tuple(shape), spec.dtype)
            for spec, shape in zip((*template.inputs, *template.outputs), shapes, strict=True)
        ]
        count = len(template.inputs)
        return tuple(specs[:count]), tuple(specs[count:])

    def _chunks(self, grids: Sequence[int], lines: Sequence[int]) -> Chunks:
        """Returns a chunk with all of its work for each entry point that has any."""
        rows = self._rows.copy()
        rows[:, 2], rows[:, 4] = grids, lines
        if 0 not in grids and 0 not in lines:
            return Chunks(rows, self._counts)
        is_empty = self._has_lines & (rows[:, 4] == 0)
        rows = rows[working := (rows[:, 2] != 0) & ~is_empty]
        counts = np.bincount(self._phase_of[working], minlength=self._layout.n_steps)
        return Chunks(rows, counts)

    def _divided(
        self,
        by_name: Mapping[str, int],
        grids: Sequence[int],
        lines: Sequence[int],
        costs: Sequence[int],
        repeated: Sequence[int],
        groups: Sequence[int],
    ) -> Chunks:
        """Returns the division of work among threads. The arguments hold, for each entry point, the
        pieces, the lines, the femtoseconds of a run and of the work that calls repeat, and the
        lines of each group.
        """
        pieces, n_lines = np.array(grids, np.int64), np.array(lines, np.int64)
        pieces[self._has_lines & (n_lines == 0)] = 0
        n_lines = np.maximum(n_lines, 1)
        nanoseconds = np.array(costs, np.float64) / FS_PER_NS
        work = Work(self._phase_of, nanoseconds, pieces, n_lines, np.array(repeated, np.int64) > 0)
        counts = iter(groups)
        line_costs = [[(next(counts), cost) for cost in own] for own in self._line_costs]
        along = self._along_lines(by_name, n_lines)
        divided = divide(work, line_costs, self._threads, along)
        return chunks_of(divided, self._rows[:, 0], self._layout)

    def _along_lines(self, by_name: Mapping[str, int], lines: np.ndarray) -> list[bool]:
        """Returns, for each phase, whether it is divided along its lines."""
        if not (lines >= self._threads).any():
            return [False] * len(self._counts)
        key = tuple([size.bit_length() for size in by_name.values()])
        found = self._along.get(key)
        if found is None:
            steps = self._template.at(Sizes(by_name), self._threads).steps
            if len(self._along) >= _KEPT_CHOICES:
                self._along.clear()
            found = self._along[key] = choose_cuts(uses_of(steps), self._threads)
        return found


def _cost(sized: Dim | None, nanoseconds: float) -> Dim:
    """Returns a cost in femtoseconds."""
    return round(nanoseconds * FS_PER_NS) if sized is None else sized
