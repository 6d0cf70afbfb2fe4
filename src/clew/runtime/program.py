"""A compiled function: native segments, and between them what only the host can do.

Values live in numbered slots. A fully static graph is one `RunSegment`; control flow, host
operators and shapes that only the run tells come between segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class Runnable(Protocol):
    """What runs as a segment."""

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns the outputs for the inputs."""
        ...


@dataclass(frozen=True)
class RunSegment:
    """Runs native code."""

    segment: Runnable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class RunHost:
    """Runs a function of numpy arrays (and sequences); its results go to `outputs`.

    `label` and `layers` say what it is: an operator, and the model's layers that it works for.
    """

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """The same memory, or a piece of it that begins at element `offset`, under another shape."""

    source: int
    target: int
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Branch:
    """Runs one of two programs."""

    cond: int
    then: Program
    orelse: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Repeat:
    """Runs `body(i, *state)` while `cond(i, *state)` holds; stacks the last `scans` results."""

    cond: Program
    body: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scans: int
    empty: tuple[Array, ...]


# Is told of a segment that is about to run, and of its inputs.
Observer: TypeAlias = Callable[[Runnable, Sequence[Any]], None]
Instruction: TypeAlias = RunSegment | RunHost | View | Branch | Repeat


class Program:
    """A function's instructions. `inputs` and `outputs` are slots; constants are preset slots.

    May be called from several threads at once: all state is local to a call.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        slots: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        constants: dict[int, Array],
    ) -> None:
        self.instructions = tuple(instructions)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.constants = constants
        self.slots = slots
        self._frame: list[Any] = [None] * slots
        for slot, value in constants.items():
            self._frame[slot] = value
        self._whole = self._single_segment()

    def _single_segment(self) -> Runnable | None:
        """Returns the segment that is the whole program, if one is."""
        if len(self.instructions) == 1:
            only = self.instructions[0]
            if (
                isinstance(only, RunSegment)
                and only.inputs == self.inputs
                and only.outputs == self.outputs
            ):
                return only.segment
        return None

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns the outputs."""
        if self._whole is not None:
            return self._whole(arrays)
        return self.observed(arrays, None)

    def observed(self, arrays: Sequence[Any], note: Observer | None) -> list[Any]:
        """Returns the outputs, telling `note` of each native segment and what it is given."""
        frame = list(self._frame)
        for slot, array in zip(self.inputs, arrays, strict=True):
            frame[slot] = array
        for instruction in self.instructions:
            _execute(instruction, frame, note)
        return [frame[slot] for slot in self.outputs]

    def walk(self) -> list[Program]:
        """Returns this program and those of its branches and loops."""
        found = [self]
        for instruction in self.instructions:
            if isinstance(instruction, Branch):
                found += instruction.then.walk() + instruction.orelse.walk()
            elif isinstance(instruction, Repeat):
                found += instruction.cond.walk() + instruction.body.walk()
        return found


def _execute(instruction: Instruction, frame: list[Any], note: Observer | None) -> None:
    match instruction:
        case RunSegment():
            arrays = [frame[s] for s in instruction.inputs]
            if note is not None:
                note(instruction.segment, arrays)
            _put(frame, instruction.outputs, instruction.segment(arrays))
        case View():
            frame[instruction.target] = _view(frame[instruction.source], instruction)
        case RunHost():
            result = instruction.function(*[frame[s] for s in instruction.inputs])
            many = isinstance(result, tuple)
            _put(frame, instruction.outputs, result if many else (result,))
        case Branch():
            taken = instruction.then if bool(frame[instruction.cond]) else instruction.orelse
            arrays = [frame[s] for s in instruction.inputs]
            _put(frame, instruction.outputs, taken.observed(arrays, note))
        case Repeat():
            _put(frame, instruction.outputs, _repeat(instruction, frame, note))


def _view(source: Array, view: View) -> Array:
    count = math.prod(view.shape)
    if count != source.size:
        source = source.reshape(-1)[view.offset : view.offset + count]
    return source.reshape(view.shape)


def _repeat(loop: Repeat, frame: list[Any], note: Observer | None) -> list[Any]:
    state = [frame[s] for s in loop.inputs]
    stacks: list[list[Any]] = [[] for _ in range(loop.scans)]
    step = 0
    while True:
        counter = np.asarray(step, np.int64)
        if not bool(loop.cond.observed([counter, *state], note)[0]):
            break
        results = loop.body.observed([counter, *state], note)
        state = list(results[: len(state)])
        for stack, value in zip(stacks, results[len(state) :], strict=True):
            stack.append(value)
        step += 1
    stacked = [np.stack(s) if s else e for s, e in zip(stacks, loop.empty, strict=True)]
    return [*state, *stacked]


def _put(frame: list[Any], slots: Sequence[int], values: Sequence[Any]) -> None:
    for slot, value in zip(slots, values, strict=True):
        frame[slot] = value
