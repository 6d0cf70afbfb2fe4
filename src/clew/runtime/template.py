"""Programs for all sizes: what a program is before a call brings the sizes of its inputs.

A template has the instructions of a program. Shapes, grids and buffers in it are dimensions, from
which `at` makes the program for given sizes. Nothing is compiled then: the kernels take sizes as
arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from clew.codegen.artifact import KernelCode
from clew.ir.dim_code import DimCode
from clew.ir.dims import TYPICAL_SIZES, Dim, Sizes, SymDim
from clew.runtime.context import SharedMemory
from clew.runtime.memory import ArenaTemplate
from clew.runtime.plan import BufferSpec, Flow, LoopPlan, SegmentPlan, Step, moving_of
from clew.runtime.program import Branch, Instruction, Program, Repeat, RunHost, RunSegment, View
from clew.runtime.segment import NativeSegment, readable
from clew.support.budgets import check_kernel_operations, current
from clew.support.errors import ClewError, GraphTypeError
from clew.support.lazy import cached_property
from clew.support.shown import Shown, counted

_NONE: Final = Sizes({})


@runtime_checkable
class AtSizes(Protocol):
    """A function of a program whose attributes may name sizes."""

    def at(self, sizes: Mapping[str, int], /) -> Callable[..., Any]:
        """Returns the function at given sizes."""
        ...


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
    bytes of copies whose size is no number, by their place in the order.
    """

    steps: tuple[Step, ...]
    inputs: tuple[SizedSpec, ...]
    outputs: tuple[SizedSpec, ...]
    constants: tuple[np.ndarray, ...]
    arena_bytes: tuple[Dim, ...]
    order: tuple[int | Flow, ...] = ()
    loops: tuple[LoopTemplate, ...] = ()
    copied: Mapping[int, Dim] = field(default_factory=dict)

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
        return (self.steps, *specs, self.constants, self.arena_bytes, self.order, loops)

    @cached_property
    def _arena(self) -> ArenaTemplate:
        entries = [self.steps[n] if isinstance(n, int) else n for n in self.order] or self.steps
        return ArenaTemplate.of(entries, self.arena_bytes)

    def at(self, sizes: Sizes, threads: int = 2) -> SegmentPlan:
        """Returns the plan at given sizes, to run on a number of threads.

        Errors: C141 for a kernel that may take more operations than the budget allows.
        """
        known: dict[str, KernelCode] = {}
        steps: list[Step] = []
        bounds_work = current().bounds_work
        for step in self.steps:
            code = step.code
            if bounds_work:
                check_kernel_operations(step.label, sizes.value(code.operations))
            if code.sizes:
                if code.key not in known:
                    known[code.key] = code.at(sizes, is_shared=threads > 1)
                step = Step(known[code.key], step.args, step.label, step.checked)
            steps.append(step)
        arena, total = self._arena.at(sizes)
        order = list(self.order)
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
        )


class SizedSegment(Shown):
    """A segment whose plan depends on sizes. `make` returns the segment of a plan."""

    def __init__(
        self,
        template: SegmentTemplate,
        make: Callable[[SegmentPlan, SharedMemory], NativeSegment],
        threads: int,
    ) -> None:
        self.template = template
        self._make = make
        self.threads = threads
        self._memory = SharedMemory([readable(constant) for constant in template.constants])

    def _about(self) -> str:
        return f"of {counted(len(self.template.steps), 'kernel')}, for all sizes"

    @property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The weights that its kernels read."""
        return tuple(self._memory.constants)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise AssertionError("a segment for all sizes runs only at given sizes")

    def at(self, sizes: Sizes) -> NativeSegment:
        """Returns the segment at given sizes."""
        plan = self.template.at(sizes, self.threads)
        return self._make(replace(plan, constants=tuple(self._memory.constants)), self._memory)


class ProgramTemplate(Shown):
    """A program for all sizes. It is valid at sizes at which all `conditions` are at least 0."""

    def __init__(
        self,
        program: Program,
        segments: Sequence[NativeSegment | SizedSegment],
        conditions: Sequence[SymDim],
    ) -> None:
        self.program = program
        self.segments = tuple(segments)
        self.conditions = tuple(conditions)
        self._code: DimCode | None = None  # of all dimensions, once a program has been made

    def _about(self) -> str:
        return f"{self.program._about()}, for all sizes"

    @property
    def constants(self) -> list[np.ndarray]:
        """The constants in memory that programs at all sizes share."""
        return [constant for segment in self.segments for constant in segment.constants]

    def prepare(self, names: Iterable[str], expected: Mapping[str, int]) -> None:
        """Makes the program at likely sizes, so that the first call is no slower than later ones.
        `names` lists all sizes; `expected` maps some to likely values.
        """
        for size in TYPICAL_SIZES:
            sizes = {name: expected.get(name, size) for name in names}
            with contextlib.suppress(ClewError):  # these sizes may exceed a budget
                if sizes and self.at(sizes) is not None:
                    return

    def at(self, by_name: Mapping[str, int]) -> tuple[Program, list[NativeSegment]] | None:
        """Returns the program at given sizes, and its segments; None if it is not valid there."""
        if any(size < 1 for size in by_name.values()):
            return None
        try:
            sizes = Sizes(by_name) if self._code is None else self._code.at(by_name)
            if any(sizes.value(condition) < 0 for condition in self.conditions):
                return None
        except (GraphTypeError, ZeroDivisionError):  # a size is divided by 0
            return None
        made: dict[int, NativeSegment] = {}
        program = program_at(self.program, sizes, made)
        if self._code is None:
            self._code = DimCode(sizes.computed)
        return program, [made[id(s)] if isinstance(s, SizedSegment) else s for s in self.segments]


def program_at(program: Program, sizes: Sizes, made: dict[int, NativeSegment]) -> Program:
    """Returns a program at given sizes. `made` holds segments that were already made, by the id of
    the `SizedSegment`, and receives the others.
    """

    def segment(sized: SizedSegment) -> NativeSegment:
        if id(sized) not in made:
            made[id(sized)] = sized.at(sizes)
        return made[id(sized)]

    def instruction(before: Instruction) -> Instruction:
        match before:
            case RunSegment(segment=SizedSegment() as sized):
                return replace(before, segment=segment(sized))
            case RunHost():
                function: object = before.function
                if isinstance(function, AtSizes):
                    return replace(before, function=function.at(sizes.by_name))
            case View():
                return replace(before, shape=tuple(sizes.value(d) for d in before.shape))
            case Branch():
                then, orelse = (program_at(p, sizes, made) for p in (before.then, before.orelse))
                return replace(before, then=then, orelse=orelse)
            case Repeat():
                cond, body = (program_at(p, sizes, made) for p in (before.cond, before.body))
                empty = tuple(e.at(sizes) for e in before.empty)
                return replace(before, cond=cond, body=body, empty=empty)
        return before

    return program.with_instructions([instruction(i) for i in program.instructions])
