"""The native form of the call of a program that is one segment."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.runtime.native_call import Input, NativeCall, Result, State
from clew.runtime.program import Program, RunSegment, View
from clew.runtime.segment import NativeSegment
from clew.support.shown import Shown

InputType: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]]"


def only_segment(program: Program) -> NativeSegment | None:
    """Returns the segment that does all the work of a program, if one does. The other instructions
    only give the whole of a value another shape.
    """
    steps = [step for step in program.instructions if not isinstance(step, View)]
    if len(steps) != 1 or not isinstance(steps[0], RunSegment):
        return None
    segment = steps[0].segment
    return segment if isinstance(segment, NativeSegment) else None


class NativeForm(Shown):
    """The native form of a program of one segment: `call` takes a tuple of inputs, and returns the
    list of outputs, or None if the call is left to Python.
    """

    def __init__(
        self,
        segment: NativeSegment,
        inputs: Sequence[Input],
        results: Sequence[Result],
        ahead: ctypes.c_int64 | None,
        call: NativeCall,
    ) -> None:
        """Made by `native_form`."""
        self.call = call
        self._segment = segment
        self._inputs, self._results = inputs, results
        self._ahead = ahead

    def with_state(self, state: State, outputs: Sequence[int]) -> NativeCall | None:
        """Returns the native form of a session's calls: of the other inputs, for the other outputs.
        `outputs` are the numbers of those that are the next state. None if one is so twice.
        """
        if len(set(outputs)) < len(outputs):
            return None
        shown = [each for n, each in enumerate(self._results) if n not in outputs]
        results = [*shown, *(self._results[n] for n in outputs)]
        return self._segment.native_call(self._inputs, results, self._ahead, state)


def native_form(
    program: Program, inputs: Sequence[InputType], ahead: ctypes.c_int64 | None
) -> NativeForm | None:
    """Returns the native form of a program of one segment, for inputs of these shapes and dtypes.
    None if inputs or outputs of the segment are not those of the program, each once and whole.

    `ahead` is the number of calls that it may answer; None for all.
    """
    segment = only_segment(program)
    assert segment is not None, "a program of one segment"
    (step,) = (each for each in program.instructions if isinstance(each, RunSegment))
    views = [each for each in program.instructions if isinstance(each, View)]
    read = _numbers(program.inputs, views)
    reads = [read.get(slot, -1) for slot in step.inputs]
    made = _numbers(step.outputs, views)
    shown = [made.get(slot, -1) for slot in program.outputs]
    if len({*reads, -1}) != len(reads) + 1 or sorted(shown) != list(range(len(step.outputs))):
        return None
    types, shapes = segment.types, {v.target: v.numbers[0] for v in views if v.is_static}
    given = [
        Input(shape, dtype, reads.index(number) if number in reads else -1)
        for number, (shape, dtype) in enumerate(inputs)
    ]
    results = []
    for slot, number in zip(program.outputs, shown, strict=True):
        base = len(step.inputs) + number
        shape, dtype = types[base]
        results.append(Result(shapes.get(slot, shape), dtype, base))
    values: list[Input | Result] = [*given, *results]
    if not all(each.base < 0 or _is_whole(each, types[each.base]) for each in values):
        return None
    call = segment.native_call(given, results, ahead)
    return None if call is None else NativeForm(segment, given, results, ahead, call)


def _numbers(slots: Sequence[int], views: Sequence[View]) -> Mapping[int, int]:
    """Returns the number of the value that each slot shows whole, among those in `slots`."""
    found = {slot: number for number, slot in enumerate(slots)}
    for view in views:  # in their order, so that one of another is after it
        if view.source in found and view.is_static and view.numbers[1] == 0:
            found[view.target] = found[view.source]
    return found


def _is_whole(value: Input | Result, of: InputType) -> bool:
    """Whether a value has the dtype and all elements of a buffer."""
    shape, dtype = of
    return value.dtype is dtype and math.prod(value.shape) == math.prod(shape)
