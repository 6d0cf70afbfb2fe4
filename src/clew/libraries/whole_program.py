"""The part of a program that a library runs: its only segment, with the places of its inputs and
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clew.ir.dims import SymDim
from clew.ir.expr import Function
from clew.libraries.model_layers import (
    branches_and_loops,
    growing_loops,
    listed_layers,
    sized_by_data,
)
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import (
    Branch,
    Instruction,
    Program,
    Repeat,
    RunHost,
    RunRegion,
    RunSegment,
    View,
)
from clew.runtime.segment import NativeSegment
from clew.runtime.segment_template import SegmentTemplate
from clew.runtime.sized_segment import SizedSegment
from clew.support.arrays import number_dtype
from clew.support.errors import UnsupportedError


class Given(NamedTuple):
    """The caller's memory: the number of an input, and an offset in it."""

    number: int
    offset_bytes: int = 0


class Kept(NamedTuple):
    """A constant of the program that is not among the constants of its segment."""

    array: np.ndarray[Any, Any]
    offset_bytes: int = 0


class Made(NamedTuple):
    """The number of an output of the segment, and an offset in it."""

    number: int
    offset_bytes: int = 0


class WholeProgram(NamedTuple):
    """The plan of a program's only segment, which may have free sizes. `inputs` are the places of
    the segment's inputs, and `outputs` those of the program's results.
    """

    plan: SegmentPlan | SegmentTemplate
    inputs: Sequence[Given | Kept]
    outputs: Sequence[Given | Kept | Made]


_EMPTY = SegmentPlan((), (), (), (), 0)


def whole_program(program: Program, itemsizes: Sequence[int], main: Function) -> WholeProgram:
    """Returns the part of a program that a library runs. `itemsizes` are the element sizes of the
    inputs in bytes. Errors name layers of `main`, the model's graph.

    Errors: U080 if Python or another backend runs a part of the program, U081 if sizes are unknown
    before a run.
    """
    found: dict[int, Given | Kept | Made] = {
        slot: Given(number) for number, slot in enumerate(program.inputs)
    }
    sizes = dict(zip(program.inputs, itemsizes, strict=True))
    for slot, array in program.constants.items():
        found[slot], sizes[slot] = Kept(array), array.itemsize
    plan: SegmentPlan | SegmentTemplate = _EMPTY
    inputs: list[Given | Kept] = []
    segments = [i for i in program.instructions if isinstance(i, RunSegment)]
    for instruction in program.instructions:
        if isinstance(instruction, View):
            if isinstance(instruction.offset, SymDim):
                raise _free("a view whose offset depends on free sizes")
            size = sizes[instruction.target] = sizes[instruction.source]
            place = found[instruction.source]
            offset = place.offset_bytes + instruction.offset * size
            found[instruction.target] = place._replace(offset_bytes=offset)
        elif isinstance(instruction, RunSegment) and len(segments) == 1:
            plan = _plan_of(instruction, main)
            inputs = [_outside(found[slot]) for slot in instruction.inputs]
            for number, slot in enumerate(instruction.outputs):
                spec = plan.outputs[number]
                found[slot], sizes[slot] = Made(number), number_dtype(spec.dtype).itemsize
        else:
            raise _refused(instruction, main)
    return WholeProgram(plan, inputs, [found[slot] for slot in program.outputs])


def _plan_of(instruction: RunSegment, main: Function) -> SegmentPlan | SegmentTemplate:
    segment = instruction.segment
    if isinstance(segment, SizedSegment):
        template = segment.template
        if template.order or template.loops or template.copied:
            layers = branches_and_loops(main)
            raise _free("branches or loops together with free sizes", layers)
        return template
    assert isinstance(segment, NativeSegment)
    if segment.plan.stacks:
        raise _free("a loop that stacks a data-dependent number of rows", growing_loops(main))
    return segment.plan


def _outside(place: Given | Kept | Made) -> Given | Kept:
    assert not isinstance(place, Made), "an input of the only segment"
    return place


def _free(what: str, layer: str = "") -> UnsupportedError:
    return UnsupportedError(
        "U081",
        f"cannot export {what}",
        hint="compile the model for fixed sizes: inputs={...}, or --sizes NAME=N",
        layer=layer,
    )


def _refused(instruction: Instruction, main: Function) -> UnsupportedError:
    what, layers = "the program has several native segments", ""
    if isinstance(instruction, RunRegion):
        what = f"backend {instruction.backend!r} runs {instruction.label}"
    elif isinstance(instruction, RunHost):
        what = f"Python runs {instruction.label}"
    elif isinstance(instruction, Branch | Repeat):
        kind = "branch" if isinstance(instruction, Branch) else "loop"
        what = f"Python runs a {kind}"
    if isinstance(instruction, RunHost):
        layers = listed_layers(instruction.layers)
        if not sized_by_data(main).isdisjoint(instruction.layers):
            return _free("a model in which data decide a size", layers)
    return UnsupportedError(
        "U080",
        f"{what}, but a library is one segment of native code",
        hint="docs/c-libraries.md lists the limitations of libraries",
        layer=layers,
    )
