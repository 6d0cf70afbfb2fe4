"""Programs for all sizes: programs before a call brings the sizes of its inputs.

A template has the instructions of a program. Shapes, grids and buffers in it are dimensions, from
which `at` makes the program for given sizes. Nothing is compiled then: the kernels take sizes as
arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from clew.ir.dim_code import DimCode, DimLists
from clew.ir.dims import TYPICAL_SIZES, Sizes, SymDim
from clew.runtime.program import (
    Branch,
    Instruction,
    Program,
    Repeat,
    RunHost,
    RunSegment,
    Stretch,
    View,
)
from clew.runtime.segment import NativeSegment
from clew.runtime.sized_segment import SizedSegment
from clew.support.errors import ClewError
from clew.support.shown import Shown


@runtime_checkable
class AtSizes(Protocol):
    """A function of a program whose attributes may name sizes."""

    def at(self, sizes: Mapping[str, int], /) -> Callable[..., Any]:
        """Returns the function at given sizes."""
        ...


class ProgramTemplate(Shown):
    """A program for all sizes. It is valid at sizes at which all `conditions` are at least 0. The
    sizes named in `from_zero` may be 0; all others are at least 1.
    """

    def __init__(
        self,
        program: Program,
        segments: Sequence[NativeSegment | SizedSegment],
        conditions: Sequence[SymDim],
        from_zero: Iterable[str] = (),
    ) -> None:
        self.program = program
        self.segments = tuple(segments)
        self.conditions = tuple(conditions)
        self.from_zero = frozenset(from_zero)
        # By id of a function, because `isinstance` of a protocol takes longer than `at`.
        self._at_sizes = {id(f): f.at for f in _functions(program) if isinstance(f, AtSizes)}
        self._code: DimCode | None = None  # of all dimensions, once a program has been made
        # What each program needs of sizes, besides its segments, and host functions.
        views = [i for i in program.instructions if isinstance(i, View)]
        self._lists = DimLists(self.conditions, [d for v in views for d in (*v.shape, v.offset)])
        # The positions of the instructions that may change although all views stay the same.
        self._changing = [n for n, i in enumerate(program.instructions) if self._changes(i)]
        # The latest program, and the numbers of its views.
        self._latest: tuple[list[int], Program] | None = None

    def _about(self) -> str:
        return f"{self.program._about()}, for all sizes"

    def _changes(self, instruction: Instruction) -> bool:
        """Whether an instruction depends on sizes besides those of the views."""
        match instruction:
            case RunSegment():
                return isinstance(instruction.segment, SizedSegment)
            case RunHost():
                return id(instruction.function) in self._at_sizes
        return isinstance(instruction, (Branch, Repeat))

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
        if any(size < (name not in self.from_zero) for name, size in by_name.items()):
            return None
        made: dict[int, NativeSegment] = {}
        try:
            conditions, views = self._lists.at(by_name)
            if min(conditions, default=0) < 0:
                return None
            sizes = Sizes(by_name) if self._code is None else self._code.at(by_name)
            latest = self._latest
            if latest is not None and latest[0] != views:
                latest = None
            program = self._program_at(self.program, sizes, made, latest and latest[1])
        except ZeroDivisionError:  # a size is divided by 0
            return None
        self._latest = views, program
        if self._code is None:
            self._code = DimCode(sizes.computed)
        return program, [made[id(s)] if isinstance(s, SizedSegment) else s for s in self.segments]

    def _program_at(
        self,
        program: Program,
        sizes: Sizes,
        made: dict[int, NativeSegment],
        latest: Program | None = None,
    ) -> Program:
        """Returns a program at given sizes. `made` holds segments that were already made, by the
        id of the `SizedSegment`, and receives the others. `latest` is the whole program at other
        sizes with the same views.
        """

        def segment(sized: SizedSegment) -> NativeSegment:
            if id(sized) not in made:
                made[id(sized)] = sized.at(sizes)
            return made[id(sized)]

        def instruction(before: Instruction) -> Instruction:
            match before:
                case RunSegment(segment=SizedSegment() as sized):
                    return RunSegment(segment(sized), before.inputs, before.outputs)
                case RunHost():
                    at = self._at_sizes.get(id(before.function))
                    return before if at is None else replace(before, function=at(sizes.by_name))
                case View():
                    shape = tuple(sizes.value(d) for d in before.shape)
                    return replace(before, shape=shape, offset=sizes.value(before.offset))
                case Branch():
                    then, orelse = (
                        self._program_at(p, sizes, made) for p in (before.then, before.orelse)
                    )
                    return replace(before, then=then, orelse=orelse)
                case Repeat():
                    cond, body = (
                        self._program_at(p, sizes, made) for p in (before.cond, before.body)
                    )
                    empty = tuple(e.at(sizes) for e in before.empty)
                    native = before.native and before.native.at(sizes.by_name)
                    return replace(before, cond=cond, body=body, empty=empty, native=native)
            return before

        def stretches(made: Program) -> list[Stretch]:
            return [
                replace(stretch, native=stretch.native.at(sizes.by_name))
                for stretch in program.stretches
            ]

        if latest is None:
            found = [instruction(i) for i in program.instructions]
        else:
            found = list(latest.instructions)
            for n in self._changing:
                found[n] = instruction(program.instructions[n])
            if not program.stretches and latest.differs_in_segments(found):
                return latest.with_segments(found)
        return program.with_instructions(found, stretches)


def _functions(program: Program) -> list[object]:
    """Returns the functions that a program calls on the host."""
    parts = (i for part in program.walk() for i in part.instructions)
    return [i.function for i in parts if isinstance(i, RunHost)]
