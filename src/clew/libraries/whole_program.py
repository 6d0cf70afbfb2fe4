"""The part of a program that a library runs: its only segment, with the places of its inputs and
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Function
from clew.ir.types import to_numpy
from clew.libraries.model_layers import (
    growing_loops,
    listed_layers,
    sized_by_data,
)
from clew.runtime.counted_tables import CountedBody
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import (
    Branch,
    Instruction,
    Program,
    Repeat,
    RunHost,
    RunRegion,
    RunSegment,
    Stretch,
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
    the segment's inputs, and `outputs` those of the program's results. If sizes are data-dependent,
    the plan is that of `counted`, and `shapes` has the shapes of results that it computes.
    """

    plan: SegmentPlan | SegmentTemplate
    inputs: Sequence[Given | Kept]
    outputs: Sequence[Given | Kept | Made]
    counted: CountedBody | None = None
    shapes: Mapping[int, tuple[Dim, ...]] = MappingProxyType({})


_EMPTY = SegmentPlan((), (), (), (), 0)


def whole_program(program: Program, main: Function) -> WholeProgram:
    """Returns the part of a program that a library runs. `main` is the model's graph, whose inputs
    are tensors; errors name its layers.

    Errors: U080 if Python or another backend runs a part of the program, U081 if sizes are unknown
    before a run.
    """
    found: dict[int, Given | Kept | Made] = {
        slot: Given(number) for number, slot in enumerate(program.inputs)
    }
    itemsizes = [to_numpy(param.tensor.dtype).itemsize for param in main.params]
    sizes = dict(zip(program.inputs, itemsizes, strict=True))
    for slot, array in program.constants.items():
        found[slot], sizes[slot] = Kept(array), array.itemsize
    plan: SegmentPlan | SegmentTemplate = _EMPTY
    inputs: list[Given | Kept] = []
    segments = [i for i in program.instructions if isinstance(i, RunSegment)]
    only = program.stretches[0] if len(program.stretches) == 1 else None
    shapes: dict[int, tuple[Dim, ...]] = {}
    for number, instruction in enumerate(program.instructions):
        if only is not None and only.first <= number < only.end:
            if number == only.first:
                plan = only.native.body.segment
                inputs = [_outside(found[slot]) for slot in only.inputs[: len(plan.inputs)]]
                _add_results(only, found, sizes, shapes)
            continue
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
    outputs = [found[slot] for slot in program.outputs]
    if only is None:
        return WholeProgram(plan, inputs, outputs)
    own = {n: shapes[slot] for n, slot in enumerate(program.outputs) if slot in shapes}
    return WholeProgram(plan, inputs, outputs, only.native.body, own)


def _add_results(
    stretch: Stretch,
    found: dict[int, Given | Kept | Made],
    sizes: dict[int, int],
    shapes: dict[int, tuple[Dim, ...]],
) -> None:
    """Adds the places, element sizes and shapes of the results of counted instructions."""
    for slot, result in zip(stretch.outputs, stretch.native.body.results, strict=True):
        if isinstance(result.offset, SymDim):
            raise _free("a result whose offset depends on a data-dependent size")
        found[slot] = Made(result.output, result.offset)
        sizes[slot], shapes[slot] = result.dtype.itemsize, result.shape


def _plan_of(instruction: RunSegment, main: Function) -> SegmentPlan | SegmentTemplate:
    segment = instruction.segment
    if isinstance(segment, SizedSegment):
        return segment.template
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
            return _free("a model with data-dependent sizes", layers)
    return UnsupportedError(
        "U080",
        f"{what}, but a library is one segment of native code",
        hint="docs/c-libraries.md lists the limitations of libraries",
        layer=layers,
    )
