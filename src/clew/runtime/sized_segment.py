"""Segments whose plans depend on sizes, and how they get their numbers.

One thread runs whole kernels one after the other, so without control flow a run needs few numbers
at given sizes: those that kernels take, grids, and sizes of buffers. One generated function returns
them, and the plan is made only if it is asked for. Control flow, and the division of work among
threads, need the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from clew.codegen.artifact import EntryPoint
from clew.ir.dim_code import DimLists
from clew.ir.dims import Dim, Sizes, SymDim
from clew.runtime.bound import Bound, Chunks
from clew.runtime.context import SharedMemory
from clew.runtime.flow import check_flow, check_stacks
from clew.runtime.grid import phases
from clew.runtime.guard import GuardSide
from clew.runtime.layout import Layout, SymbolTable
from clew.runtime.memory import limits_of
from clew.runtime.plan import BufferKind, BufferSpec, SegmentPlan
from clew.runtime.references import References
from clew.runtime.segment import NativeSegment, readable
from clew.runtime.segment_template import SegmentTemplate
from clew.runtime.threads import ThreadPool
from clew.support.lazy import cached_property
from clew.support.shown import Shown, counted


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
        self._memory = SharedMemory([readable(constant) for constant in template.constants])
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
    def threads(self) -> int:
        """The maximum number of threads that share its kernels' grids."""
        return self.pool.threads

    @property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The weights that its kernels read."""
        return self._memory.constants.arrays

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
        return NativeSegment(
            plan, self._library, self.pool, guard=self._guard, bound=bound, memory=self._memory
        )

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.template.entries, len(self.template.inputs))

    @cached_property
    def _numbers(self) -> Numbers | None:
        """The numbers of a run, if it needs no more."""
        template = self.template
        is_plain = not (template.order or template.loops or template.copied)
        if not is_plain or self.threads > 1 or any(o.is_stack for o in template.outputs):
            return None
        return Numbers(template, self._layout)

    def _check(self, plan: SegmentPlan) -> None:
        """Asserts that steps of the plan stay inside its buffers on every path. Its arena needs no
        check, since `ArenaTemplate` placed the buffers.
        """
        limits = limits_of(plan)
        for kind, sizes_bytes in limits.items():
            self._references.check(kind, sizes_bytes)
        if plan.order:
            check_flow(plan, limits)
        check_stacks(plan)


class Numbers:
    """The numbers of a template's run on one thread, without control flow."""

    def __init__(self, template: SegmentTemplate, layout: Layout) -> None:
        self._template = template
        self._layout = layout
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
        shapes = [spec.shape for spec in (*template.inputs, *template.outputs)]
        self._lists = DimLists(
            [SymDim.symbol(name) for step in steps for name in step.code.sizes],
            [entry.grid for entry in entries],
            [_lines(entry) for entry in entries],
            [step.code.scratch_bytes for step in steps],
            template.arena_bytes,
            *shapes,
        )

    def at(self, by_name: Mapping[str, int], references: References) -> Bound:
        """Returns what a run at given sizes needs. Asserts that all `references` of the template
        are inside of their buffers.

        Errors: C140 for too much memory, ZeroDivisionError for a size that is divided by 0.
        """
        template = self._template
        sizes, grids, lines, scratch_bytes, arena_bytes, *shapes = self._lists.at(by_name)
        specs = [
            BufferSpec(spec.name, tuple(shape), spec.dtype)
            for spec, shape in zip((*template.inputs, *template.outputs), shapes, strict=True)
        ]
        inputs, outputs = specs[: len(template.inputs)], specs[len(template.inputs) :]
        references.check(BufferKind.INPUT, [spec.size_bytes for spec in inputs])
        references.check(BufferKind.OUTPUT, [spec.size_bytes for spec in outputs])
        references.check(BufferKind.ARENA, arena_bytes)
        offsets, total = template.arena.offsets(arena_bytes)
        bound = Bound(
            self._layout,
            tuple(inputs),
            tuple(outputs),
            offsets,
            total,
            scratch_bytes,
            sizes,
            lambda: self._chunks(grids, lines),
        )
        bound.check_memory(threads=1)
        return bound

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


def _lines(entry: EntryPoint) -> Dim:
    """Returns the number of lines of an entry point; 1 if it has none."""
    total: Dim = 0
    for count, _ in entry.lines:
        total = total + count
    return total if entry.lines else 1
