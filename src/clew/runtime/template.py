"""Programs for all sizes: what a program is before a call brings the sizes of its inputs.

A template has the instructions of a program. Shapes, grids and buffers in it are dimensions, from
which `at` makes the program for given sizes. Nothing is compiled then: the kernels take sizes as
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clew.ir.dims import Dim, value_at
from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferSpec, Flow, LoopPlan, SegmentPlan, Step
from clew.runtime.program import Branch, Instruction, Program, Repeat, RunSegment, View
from clew.runtime.segment import NativeSegment
from clew.support.shown import Shown, counted


@dataclass(frozen=True)
class SizedSpec:
    """An input or output of a segment: its name, shape and dtype (NumPy's name, or `bfloat16`)."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    @property
    def is_static(self) -> bool:
        """Whether the shape consists of numbers."""
        return all(isinstance(dim, int) for dim in self.shape)

    def at(self, sizes: Mapping[str, int]) -> BufferSpec:
        """Returns the input or output at given sizes."""
        return BufferSpec(self.name, tuple(value_at(d, sizes) for d in self.shape), self.dtype)


@dataclass(frozen=True)
class SegmentTemplate:
    """A segment for all sizes. `arena_bytes` holds the size of each arena buffer."""

    steps: tuple[Step, ...]
    inputs: tuple[SizedSpec, ...]
    outputs: tuple[SizedSpec, ...]
    constants: tuple[np.ndarray, ...]
    arena_bytes: tuple[Dim, ...]
    order: tuple[int | Flow, ...] = ()
    loops: tuple[LoopPlan, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether the segment is the same at all sizes."""
        return (
            all(spec.is_static for spec in (*self.inputs, *self.outputs))
            and all(isinstance(size, int) for size in self.arena_bytes)
            and not any(step.code.sizes for step in self.steps)
        )

    def at(self, sizes: Mapping[str, int]) -> SegmentPlan:
        """Returns the plan at given sizes."""
        codes = {step.code.key: step.code for step in self.steps}
        known = {key: code.at(sizes) for key, code in codes.items()}
        return plan_segment(
            [replace(step, code=known[step.code.key]) for step in self.steps],
            [spec.at(sizes) for spec in self.inputs],
            [spec.at(sizes) for spec in self.outputs],
            self.constants,
            [value_at(size, sizes) for size in self.arena_bytes],
            self.order,
            self.loops,
        )


class SizedSegment(Shown):
    """A segment whose plan depends on sizes. `make` returns the segment of a plan."""

    def __init__(
        self, template: SegmentTemplate, make: Callable[[SegmentPlan], NativeSegment]
    ) -> None:
        self.template = template
        self._make = make

    def _about(self) -> str:
        return f"of {counted(len(self.template.steps), 'kernel')}, for all sizes"

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise AssertionError("a segment for all sizes runs only at given sizes")

    def at(self, sizes: Mapping[str, int]) -> NativeSegment:
        """Returns the segment at given sizes."""
        return self._make(self.template.at(sizes))


def program_at(
    program: Program, sizes: Mapping[str, int], made: dict[int, NativeSegment]
) -> Program:
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
            case View():
                return replace(before, shape=tuple(value_at(d, sizes) for d in before.shape))
            case Branch():
                then, orelse = (program_at(p, sizes, made) for p in (before.then, before.orelse))
                return replace(before, then=then, orelse=orelse)
            case Repeat():
                cond, body = (program_at(p, sizes, made) for p in (before.cond, before.body))
                return replace(before, cond=cond, body=body)
        return before

    return program.with_instructions([instruction(i) for i in program.instructions])
