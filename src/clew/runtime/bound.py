"""The numbers that a run of a segment needs, and that depend on the sizes of its buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from clew.runtime.division import Division, Work, divide
from clew.runtime.grid import Use, choose_cuts, phases
from clew.runtime.layout import Layout
from clew.runtime.memory import round_up
from clew.runtime.plan import BufferSpec, Flow, LoopPlan, SegmentPlan, Step
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.budgets import current, exceeded
from clew.support.dataclass import dataclass
from clew.support.errors import CompileError
from clew.support.lazy import cached_property


class Chunks(NamedTuple):
    """The division of work: `rows` is i64[n, 5], for each chunk the number of its function among
    the layout's symbols, then the ranges of the grid and of the lines. `counts` is i64[steps], the
    number of chunks of each driver step. Divisions of a layout that share one array `counts` differ
    only in ranges.
    """

    rows: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Bound:
    """A segment whose buffers have known sizes, as far as a run needs it.

    `arena` holds the offset of each arena buffer, `scratch_bytes` the memory that a thread needs
    for each step, and `size_values` the sizes that kernels take, in the order of their slots.
    `distances` holds the bytes that sizes add to the positions of the layout's `sized` references.
    `stacks` and `flows` hold the plan's stacks that grow, and its control flow by position.
    `make_chunks` divides the work.
    """

    layout: Layout
    inputs: tuple[BufferSpec, ...]
    outputs: tuple[BufferSpec, ...]
    arena: Sequence[int]
    arena_bytes: int
    scratch_bytes: Sequence[int]
    size_values: Sequence[int]
    make_chunks: Callable[[], Chunks]
    loops: tuple[LoopPlan, ...] = ()
    stacks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    flows: dict[int, Flow] = field(default_factory=dict)
    distances: Sequence[int] = ()

    @staticmethod
    def of(plan: SegmentPlan, threads: int, layout: Layout | None = None) -> Bound:
        """Returns the state of a run of a plan. `layout` is that of its template, if it has one."""
        if layout is None:
            layout = Layout(plan.entries, len(plan.inputs))
        steps, known = plan.steps, layout
        return Bound(
            layout,
            plan.inputs,
            plan.outputs,
            [buffer.offset_bytes for buffer in plan.arena_buffers],
            plan.arena_bytes,
            [step.code.scratch for step in steps],
            [value for step in steps for value in step.code.size_values],
            lambda: _divided(steps, known, threads),
            plan.loops,
            plan.stacks,
            {place: entry for place, entry in enumerate(plan.order) if isinstance(entry, Flow)},
            distances_of(plan, layout),
        )

    @cached_property
    def chunks(self) -> Chunks:
        """The division of work."""
        return self.make_chunks()

    @property
    def most_scratch_bytes(self) -> int:
        """The scratch memory that a thread needs for any step; 0 without steps."""
        return max(self.scratch_bytes, default=0)

    @cached_property
    def scratch_stride_bytes(self) -> int:
        """The distance between the scratch memory of two threads, which suffices for any step."""
        return round_up(self.most_scratch_bytes, ALIGNMENT_BYTES)

    def working_bytes(self, threads: int) -> int:
        """Returns the bytes of the arena and of the scratch memory of all threads."""
        return round_up(self.arena_bytes, ALIGNMENT_BYTES) + self.scratch_stride_bytes * threads

    def check_memory(self, threads: int) -> None:
        """Errors: C140 if a run needs more memory than the budget or the machine allows."""
        made = self.arena_bytes + sum([spec.size_bytes for spec in self.outputs])
        total = made + threads * self.most_scratch_bytes
        budgets, kernels = current(), len(self.layout.places)
        if total > budgets.run_bytes:
            what = f"bytes that {kernels} kernels need together"
            raise exceeded(CompileError, "C140", what, total, "run_bytes", budgets.run_bytes)
        if total > budgets.allocated_bytes:
            raise CompileError(
                "C140",
                f"{kernels} kernels need {total} bytes together, but this machine has only "
                f"{budgets.allocated_bytes}",
                hint="use a machine with more memory, or smaller inputs",
            )


def distances_of(plan: SegmentPlan, layout: Layout) -> list[int]:
    """Returns the bytes that a plan's sizes add to the positions of `layout.sized`."""
    if not layout.sized:
        return []
    entries = plan.entries
    return [
        entries[sized.entry].args[sized.number].offset_bytes - sized.ref.offset_bytes
        for sized in layout.sized
    ]


def _divided(steps: Sequence[Step], layout: Layout, threads: int) -> Chunks:
    """Returns the division of the work of steps among threads."""
    uses = uses_of(steps)
    along = choose_cuts(uses, threads)
    entries = [entry for use in uses for entry in use.phase]
    work = Work.of([use.phase for use in uses])
    divided = divide(work, [entry.line_costs for entry in entries], threads, along)
    number = {symbol: n for n, symbol in enumerate(layout.symbols)}
    return chunks_of(divided, np.array([number[e.symbol] for e in entries], np.int64), layout)


def uses_of(steps: Sequence[Step]) -> list[Use]:
    """Returns the phases of steps in order."""
    return [Use(tuple(phase), s.args) for s in steps for phase in phases(s.code.entries)]


def chunks_of(divided: Division, functions: np.ndarray, layout: Layout) -> Chunks:
    """Returns a division as tables of a layout. `functions` holds, for each entry point, the number
    of its function among the layout's symbols.
    """
    divided.rows[:, 0] = functions[divided.rows[:, 0]]
    counts = np.zeros(layout.n_steps, np.int64)
    counts[layout.step_of >= 0] = divided.counts
    return Chunks(divided.rows, counts)
