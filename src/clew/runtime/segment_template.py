"""Segments for all sizes: plans whose shapes, grids and buffers are dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final

import numpy as np

from clew.codegen.artifact import KernelCode
from clew.ir.dims import Dim, Sizes
from clew.runtime.memory import ArenaTemplate
from clew.runtime.plan import BufferRef, BufferSpec, Flow, LoopPlan, SegmentPlan, Step, moving_of
from clew.support.budgets import check_kernel_operations, current
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property

_NONE: Final = Sizes({})


@dataclass(frozen=True)
class SizedSpec:
    """An input or output of a segment for all sizes; see `BufferSpec`."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    is_stack: bool = False

    @property
    def is_static(self) -> bool:
        """Whether the shape consists of numbers."""
        return all(isinstance(dim, int) for dim in self.shape)

    def at(self, sizes: Sizes) -> BufferSpec:
        """Returns the input or output at given sizes."""
        shape = tuple(sizes.value(d) for d in self.shape)
        return BufferSpec(self.name, shape, self.dtype, self.is_stack)


@dataclass(frozen=True)
class LoopTemplate:
    """A loop for all sizes; see `LoopPlan`."""

    first: int
    states_bytes: tuple[Dim, ...] = ()
    rows_bytes: tuple[Dim, ...] = ()
    trips: Dim | None = None
    reads_trips: bool = False

    @property
    def moving(self) -> int:
        """The number of its moving buffers."""
        return len(moving_of(self.states_bytes, self.rows_bytes))

    @property
    def is_static(self) -> bool:
        """Whether the loop is the same at all sizes."""
        sizes = (*self.states_bytes, *self.rows_bytes, self.trips or 0)
        return all(isinstance(size, int) for size in sizes)

    def at(self, sizes: Sizes) -> LoopPlan:
        """Returns the loop at given sizes."""
        states, rows = (
            tuple(map(sizes.value, part)) for part in (self.states_bytes, self.rows_bytes)
        )
        trips = None if self.trips is None else sizes.value(self.trips)
        return LoopPlan(self.first, states, rows, trips, self.reads_trips)


@dataclass(frozen=True)
class SegmentTemplate:
    """A segment for all sizes. `arena_bytes` holds the size of each arena buffer, and `copied` the
    bytes of copies whose size is not a number, by their place in the order. `written` are the
    inputs that kernels write to.
    """

    steps: tuple[Step, ...]
    inputs: tuple[SizedSpec, ...]
    outputs: tuple[SizedSpec, ...]
    constants: tuple[np.ndarray, ...]
    arena_bytes: tuple[Dim, ...]
    order: tuple[int | Flow, ...] = ()
    loops: tuple[LoopTemplate, ...] = ()
    copied: Mapping[int, Dim] = field(default_factory=dict)
    written: tuple[int, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether the segment is the same at all sizes."""
        return (
            all(spec.is_static for spec in (*self.inputs, *self.outputs))
            and all(isinstance(size, int) for size in self.arena_bytes)
            and not any(step.code.sizes for step in self.steps)
            and all(loop.is_static for loop in self.loops)
            and not self.copied
        )

    @property
    def parts(self) -> tuple[Any, ...]:
        """The arguments of `plan_segment` for a static segment."""
        specs = ([spec.at(_NONE) for spec in part] for part in (self.inputs, self.outputs))
        loops = tuple(loop.at(_NONE) for loop in self.loops)
        parts = (self.steps, *specs, self.constants, self.arena_bytes, self.order, loops)
        return (*parts, self.written)

    @property
    def entries(self) -> tuple[Step | Flow, ...]:
        """Steps and control flow, in order."""
        if not self.order:
            return self.steps
        return tuple(self.steps[n] if isinstance(n, int) else n for n in self.order)

    @cached_property
    def arena(self) -> ArenaTemplate:
        """The arena, which places its buffers."""
        return ArenaTemplate.of(self.entries, self.arena_bytes)

    def check_operations(self, sizes: Sizes) -> None:
        """Errors: C141 for a kernel that may take more operations than the budget allows."""
        if current().bounds_work:
            for step in self.steps:
                check_kernel_operations(step.label, sizes.value(step.code.operations))

    def at(self, sizes: Sizes, threads: int = 2) -> SegmentPlan:
        """Returns the plan at given sizes, to run on a number of threads."""
        # By object: after `meaning`, codes of one key have other sizes.
        known: dict[int, KernelCode] = {}
        steps: list[Step] = []
        for step in self.steps:
            code = step.code
            if not code.is_static:
                if id(step.code) not in known:
                    known[id(step.code)] = code.at(sizes, is_shared=threads > 1)
                code = known[id(step.code)]
            steps.append(Step(code, _at(step.args, sizes), step.label, step.checked))
        arena, total = self.arena.at(sizes)
        order = [
            replace(entry, args=_at(entry.args, sizes)) if isinstance(entry, Flow) else entry
            for entry in self.order
        ]
        for place, size in self.copied.items():
            copy = order[place]
            assert isinstance(copy, Flow)
            order[place] = replace(copy, size_bytes=sizes.value(size))
        return SegmentPlan(
            tuple(steps),
            tuple([spec.at(sizes) for spec in self.inputs]),
            tuple([spec.at(sizes) for spec in self.outputs]),
            self.constants,
            total,
            arena,
            tuple(order),
            tuple([loop.at(sizes) for loop in self.loops]),
            self.written,
        )


def _at(args: tuple[BufferRef, ...], sizes: Sizes) -> tuple[BufferRef, ...]:
    """Returns references at given sizes."""
    return tuple([ref.at(sizes) for ref in args])
