"""A compiled function: native segments and, between them, steps that only the host can run.

Values are in numbered slots. A fully static graph is one `RunSegment`. Host operators, kernels with
data-dependent shapes, and the control flow around them run between segments. Each instruction says
whose memory its results are (`memory`, see `ownership.py`).

The file is longer than others: branches and loops are instructions that hold programs, and a
program is a list of instructions, so that neither half stands without the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from clew.ir.dims import Dim, Sizes
from clew.runtime.ownership import (
    ANY,
    NOTHING_HELD,
    OTHER,
    Borders,
    Held,
    Memory,
    Owner,
    copied_value,
    joined,
    within,
)
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.budgets import check_loop_steps, check_run_bytes, current
from clew.support.calling import picker
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, RunError
from clew.support.lazy import cached_property
from clew.support.shown import Shown, counted

if TYPE_CHECKING:  # imported with models that hold loops or regions
    from clew.runtime.counted import CountedSegment
    from clew.runtime.native_loop import NativeLoop
    from clew.runtime.regions import RegionCall, ValueType

Array: TypeAlias = "np.ndarray[Any, Any]"


class Runnable(Protocol):
    """A function of arrays."""

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns the outputs for the inputs."""
        ...


class Segment(Runnable, Protocol):
    """Native code that runs as one step."""

    @property
    def has_stacks(self) -> bool:
        """Whether it has outputs of as many rows as the run finds."""
        ...


NO_NODE: Final = -1
_NOTHING: Final = nullcontext()
# After this many iterations that a native loop left to Python, it is not asked again in the call.
_MOST_REFUSED: Final = 4


@dataclass(frozen=True)
class RunSegment:
    """Runs native code."""

    segment: Segment
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns that of new arrays."""
        return [Memory(Owner.RUN, slot) for slot in self.outputs]


@dataclass(frozen=True)
class RunHost:
    """Runs a function of NumPy arrays (and sequences); its results go to `outputs`.

    `label` names the operator, and `layers` the model's layers that it serves. `node` is the id of
    its node in the last stage, or `NO_NODE` in a loaded model.
    """

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    label: str
    layers: tuple[str, ...] = ()
    node: int = NO_NODE

    @property
    def collects(self) -> bool:
        """Whether the function only puts elements in new arrays (`Traits.collects`)."""
        return getattr(self.function, "collects", False)

    @property
    def is_quiet(self) -> bool:
        """Whether NumPy gives no warnings about the function."""
        return getattr(self.function, "is_quiet", False)

    @property
    def only_moves(self) -> bool:
        """Whether the function runs no kernel and computes nothing."""
        return getattr(self.function, "only_moves", False)

    @property
    def reinterprets(self) -> bool:
        """Whether the function only reads memory as another dtype (`Traits.reinterprets`)."""
        return getattr(self.function, "reinterprets", False)

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns that of new arrays, or of the arguments."""
        if getattr(self.function, "owns_results", False):
            return [Memory(Owner.RUN, slot) for slot in self.outputs]
        if getattr(self.function, "splits", False):
            return [given[0]]
        passed = OTHER if any(m.owner is Owner.OTHER for m in given) else ANY
        return [passed] * len(self.outputs)


@dataclass(frozen=True)
class RunRegion(RunHost):
    """Runs a region of the graph on a backend. Its inputs and outputs are in the backend's memory
    space.
    """

    function: RegionCall
    backend: str = ""

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns that of the backend, unless it promises new buffers."""
        if not self.function.owns_results:
            return [OTHER] * len(self.outputs)
        return [Memory(Owner.RUN, slot) for slot in self.outputs]


@dataclass(frozen=True)
class Copy:
    """Copies a value from one memory space to another."""

    source: int
    target: int
    source_space: MemorySpace
    target_space: MemorySpace
    type: ValueType
    layers: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[int, ...]:
        """The slot it reads."""
        return (self.source,)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot it writes."""
        return (self.target,)

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns that of the memory space, whose arrays may be views of its buffers."""
        return [OTHER]


@dataclass(frozen=True)
class View:
    """A view of a value's memory, or of its part from element `offset`, with another shape."""

    source: int
    target: int
    shape: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def is_static(self) -> bool:
        """Whether its shape and offset are numbers."""
        return all(isinstance(d, int) for d in (*self.shape, self.offset))

    @property
    def numbers(self) -> tuple[tuple[int, ...], int]:
        """The shape and the offset as numbers."""
        dims = (*self.shape, self.offset)
        assert all(isinstance(d, int) for d in dims), "a view at unknown sizes"
        return self.shape, self.offset  # type: ignore[return-value]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The slot of the original value."""
        return (self.source,)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The slot of the view."""
        return (self.target,)

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns the part of the original value."""
        return [given[0].part(self.offset, math.prod(self.shape))]


@dataclass(frozen=True)
class Branch:
    """Runs one of two programs. The first input is the condition; the others are the inputs of
    both programs.
    """

    then: Program
    orelse: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    node: int = NO_NODE

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns that of the results of either program."""
        inside = within(given[1:])
        return joined(self.outputs, [p.memory(inside) for p in (self.then, self.orelse)])


@dataclass(frozen=True)
class NoIterations:
    """The stacked results of a loop that ran no iterations. Each size is a dimension, or the size
    of a state: (index of the state, axis).
    """

    shape: tuple[Dim | tuple[int, int], ...]
    dtype: np.dtype[Any]

    def at(self, sizes: Sizes) -> NoIterations:
        """Returns the results at given sizes."""
        shape = (s if isinstance(s, tuple) else sizes.value(s) for s in self.shape)
        return NoIterations(tuple(shape), self.dtype)

    def array(self, state: Sequence[Any]) -> Array:
        """Returns an array of this shape, which has no elements."""
        sizes = (np.shape(state[s[0]])[s[1]] if isinstance(s, tuple) else s for s in self.shape)
        return np.empty(tuple(sizes), self.dtype)


@dataclass(frozen=True)
class Repeat:
    """Runs `body(i, *state)` while `cond(i, *state)` holds; stacks the last `scans` results.

    `native` runs iterations without Python in between, where that is possible. `types` is the
    record of the types of its states, from which native steps are made.
    """

    cond: Program
    body: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scans: int
    empty: tuple[NoIterations, ...]
    node: int = NO_NODE
    native: NativeLoop | None = None
    types: Mapping[str, Any] | None = None

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns that of the initial states or of the body's results; stacks are new arrays."""
        inside = within(given)
        count = len(self.outputs) - self.scans
        after = within(self.body.memory([ANY, *inside])[:count])
        state = OTHER if OTHER in (*inside, *after) else ANY
        return [state] * count + [Memory(Owner.RUN, slot) for slot in self.outputs[count:]]


@dataclass(frozen=True)
class Stretch:
    """Consecutive instructions, from number `first` to `end`, that may run as one native call:
    `native` takes the values of the slots in `inputs`, of which it reads the first, and returns
    those of `outputs`.
    """

    first: int
    end: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    native: CountedSegment


# The number of an array, and what shows it in another way (`_shower`), if anything does.
_Read: TypeAlias = tuple[int, Callable[[Any], Any] | None]
_NOWHERE: Final[_Read] = (-1, None)

Instruction: TypeAlias = RunSegment | RunHost | Copy | View | Branch | Repeat
# What runs an instruction on its inputs, what picks these from the slots, its output if it has only
# one (otherwise -1), and its outputs.
_Step: TypeAlias = (
    "tuple[Callable[[Sequence[Any]], Sequence[Any]], Callable[[list[Any]], Sequence[Any]], int, "
    "tuple[int, ...]]"
)
# Called around each instruction of a run with the instruction, its inputs, and a function that runs
# it; returns its results. Calls for instructions inside a branch or loop are nested in its call.
Observer: TypeAlias = Callable[
    [Instruction, Sequence[Any], Callable[[], Sequence[Any]]], Sequence[Any]
]


class Program(Shown):
    """The instructions of a function. `inputs` and `outputs` are slots; constants are preset slots.

    `spaces` holds the memory space of each slot that is not in host memory. Inputs, outputs and
    constants are always in host memory. Only `Copy` reads one space and writes another.

    The results of a call own their memory. Programs of branches and loops run by `observed`, whose
    results may share memory with inputs, constants and each other.

    Several threads may call a program at once, because all state is local to a call.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        slots: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        constants: dict[int, Array],
        spaces: Mapping[int, MemorySpace] | None = None,
        borders: Callable[[], Borders] | None = None,
        join: Callable[[Program], Sequence[Stretch]] | None = None,
    ) -> None:
        """`borders` returns those of a program that differs only in sizes. `join` returns the parts
        of the program that may run as one native call each.
        """
        self.instructions = tuple(instructions)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.constants = constants
        self.slots = slots
        self.spaces = dict(spaces or {})
        self._frame: list[Any] = [None] * slots
        for slot, value in constants.items():
            self._frame[slot] = value
        self.whole = self._single_step()
        """What runs the whole program in one call, if there is one. Its results are new arrays."""
        # Whether it runs no kernel, and nothing else that takes longer for sizes that vary.
        self.only_collects = all(
            isinstance(i, View) or (isinstance(i, RunHost) and i.only_moves)
            for i in self.instructions
        )
        # Whether NumPy may give warnings in host steps, which kernels do not.
        self.may_warn = any(map(_may_warn, self.instructions))
        self._steps = [
            (_runner(i), picker(i.inputs), i.outputs[0] if len(i.outputs) == 1 else -1, i.outputs)
            for i in self.instructions
        ]
        self._like = borders
        self._join = join

    def _about(self) -> str:
        return f"of {counted(len(self.instructions), 'instruction')}"

    def space_of(self, slot: int) -> MemorySpace:
        """Returns the memory space of a slot's value."""
        return self.spaces.get(slot, HOST)

    def with_instructions(
        self,
        instructions: Sequence[Instruction],
        join: Callable[[Program], Sequence[Stretch]] | None = None,
    ) -> Program:
        """Returns the program with other instructions over the same slots."""
        return Program(
            instructions,
            self.slots,
            self.inputs,
            self.outputs,
            self.constants,
            self.spaces,
            lambda: self.borders,
            join,
        )

    def differs_in_segments(self, instructions: Sequence[Instruction]) -> bool:
        """Whether these are its own instructions, except for segments at other sizes, so that
        `with_segments` makes the program of them. The program has no stretches.
        """
        return (
            self.whole is None
            and self._only is None
            and all(
                made is own or (type(made) is RunSegment and type(own) is RunSegment)
                for own, made in zip(self.instructions, instructions, strict=True)
            )
        )

    def with_segments(self, instructions: Sequence[Instruction]) -> Program:
        """Returns the program with segments at other sizes, which takes less time than
        `with_instructions`.
        """
        made = copy(self)
        made.instructions = tuple(instructions)
        made._steps = [
            (new.segment, *step[1:]) if isinstance(new, RunSegment) else step
            for step, new in zip(self._steps, instructions, strict=True)
        ]
        joined = made.__dict__.pop("_joined_steps", None)
        if joined is not None:  # views are as before, so the same ones cut arrays into parts
            steps = zip(self._steps, made._steps, strict=True)
            changed = {id(before): after for before, after in steps}
            made.__dict__["_joined_steps"] = [changed.get(id(step), step) for step in joined]
        return made

    @cached_property
    def stretches(self) -> Sequence[Stretch]:
        """The parts that may run as one native call each, in order."""
        return () if self._join is None else self._join(self)

    @cached_property
    def _only(self) -> Callable[[Sequence[Any]], list[Any] | None] | None:
        """What computes all outputs in one native call, or returns None if it cannot."""
        found = self._one_step()
        loop = None
        if found is not None and isinstance(found[0], Repeat):
            loop = self._whole_loop(found[0], *found[1:])
        stretch = self._whole_stretch()
        if stretch is None or loop is None:
            return stretch or loop
        return lambda arrays: stretch(arrays) or loop(arrays)

    def _whole_stretch(self) -> Callable[[Sequence[Any]], list[Any] | None] | None:
        """Returns `_only` of a program that is one stretch, besides views of inputs before it."""
        if len(self.stretches) != 1:
            return None
        (only,) = self.stretches
        given: dict[int, _Read] = {slot: (n, None) for n, slot in enumerate(self.inputs)}
        for instruction in self.instructions[: only.first]:
            show = _shower(instruction)
            number, shown_before = given.get(instruction.inputs[0] if show else -1, _NOWHERE)
            if show is None or number < 0 or shown_before is not None:
                return None
            given[instruction.outputs[0]] = number, show
        is_whole = only.end == len(self.instructions)
        is_whole = is_whole and sorted(only.outputs) == sorted(self.outputs)
        if not is_whole or not only.native.owns_results:
            return None
        run = self._from_inputs(only.native.run, only.inputs, given)
        if run is None or only.outputs == self.outputs:
            return run
        of, inner = picker([only.outputs.index(slot) for slot in self.outputs]), run

        def in_order(arrays: Sequence[Any]) -> list[Any] | None:
            found = inner(arrays)
            return None if found is None else list(of(found))

        return in_order

    def _whole_loop(
        self, loop: Repeat, given: Mapping[int, _Read], made: Mapping[int, _Read]
    ) -> Callable[[Sequence[Any]], list[Any] | None] | None:
        """Returns `_only` of a program that consists of a loop, and of what shows its arrays in
        another way; None if some output may be an initial state.
        """
        native = loop.native
        if native is None:
            return None
        count = len(loop.outputs) - loop.scans
        shown = [made[slot] for slot in self.outputs]
        places = [place for place, _ in shown]
        changes = all(place >= count or place in native.body.moving for place in places)
        if not changes or len(set(places)) < len(places):
            return None

        def outputs(states: Sequence[Any]) -> list[Any] | None:
            found = _iterated(loop, native, states, only_natively=True)
            return None if found is None else _taken(found, shown)

        return self._from_inputs(outputs, loop.inputs, given)

    def _from_inputs(
        self,
        run: Callable[[Sequence[Any]], list[Any] | None],
        slots: Sequence[int],
        given: Mapping[int, _Read],
    ) -> Callable[[Sequence[Any]], list[Any] | None] | None:
        """Returns a function of the program's inputs; None if some slot is neither given by one of
        them nor a constant.
        """
        if not given.keys() | self.constants.keys() >= set(slots):
            return None
        if given.keys() >= set(slots):
            reads = [given[slot] for slot in slots]
            if all(show is None for _, show in reads):
                of = picker([number for number, _ in reads])
                return lambda arrays: run(of(arrays))
            return lambda arrays: run(_taken(arrays, reads))
        values = [self.constants.get(slot) for slot in slots]
        read = [(n, *given[slot]) for n, slot in enumerate(slots) if slot in given]

        def with_constants(arrays: Sequence[Any]) -> list[Any] | None:
            states = values.copy()
            for place, number, show in read:
                states[place] = arrays[number] if show is None else show(arrays[number])
            return run(states)

        return with_constants

    @cached_property
    def _joined_steps(self) -> list[_Step]:
        """The steps of a run, with those of each stretch as one."""
        steps: list[_Step] = []
        done = 0
        for stretch in self.stretches:
            steps += self._cut(done, stretch.first)
            own = self._steps[stretch.first : stretch.end]
            run = partial(self._stretch, stretch, own)
            outputs = stretch.outputs
            only = outputs[0] if len(outputs) == 1 else -1
            steps.append((run, picker(stretch.inputs), only, outputs))
            done = stretch.end
        return [*steps, *self._cut(done, len(self.instructions))]

    def _cut(self, first: int, end: int) -> list[_Step]:
        """Returns the steps of some instructions, with the views that cut an array into equal parts
        as one.
        """
        steps: list[_Step] = []
        while first < end:
            parts = _equal_parts(self.instructions[first:end])
            if len(parts) > 1:
                view = parts[0]
                targets = tuple(part.target for part in parts)
                cut = _cutter(*view.numbers, len(parts))
                steps.append((cut, picker(view.inputs), -1, targets))
            else:
                steps.append(self._steps[first])
            first += max(len(parts), 1)
        return steps

    def _stretch(
        self, stretch: Stretch, steps: Sequence[_Step], inputs: Sequence[Any]
    ) -> Sequence[Any]:
        """Returns the results of a stretch, from one native call if possible."""
        found = stretch.native.run(inputs)
        if found is None:
            frame = self._frame.copy()
            for slot, value in zip(stretch.inputs, inputs, strict=True):
                frame[slot] = value
            _run_steps(steps, frame)
            found = [frame[slot] for slot in stretch.outputs]
        return found

    @cached_property
    def borders(self) -> Borders:
        """How the results of a call get their own memory."""
        if self._like is not None:
            return self._like()
        given = [Memory(Owner.INPUT, slot) for slot in self.inputs]
        constants = [c for program in self.walk() for c in program.constants.values()]
        return Borders(self.memory(given), self.inputs, constants)

    def memory(self, given: Sequence[Memory]) -> list[Memory]:
        """Returns whose memory the outputs are, given that of the inputs."""
        found = dict(zip(self.inputs, given, strict=True))
        found.update((slot, Memory(Owner.CONSTANT, slot)) for slot in self.constants)
        for instruction in self.instructions:
            made = instruction.memory([found[slot] for slot in instruction.inputs])
            found.update(zip(instruction.outputs, made, strict=True))
        return [found[slot] for slot in self.outputs]

    def _single_step(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """Returns what runs a program of one step, if that makes new arrays. The program may leave
        inputs unread, have its outputs in another order, and show both in another way.
        """
        found = self._one_step()
        if found is None:
            return None
        step, given, made = found
        run = self._reading(step, given)
        if run is None or step.outputs == self.outputs:
            return run
        whole, shown = run, [made[slot] for slot in self.outputs]
        places = [place for place, _ in shown]
        again = [n for n, place in enumerate(places) if place in places[:n]]
        if again and any(show is not None for _, show in shown):
            return None  # parts that are apart need no copies, which the border knows
        return lambda arrays: _chosen(whole(arrays), shown, again)

    def _one_step(self) -> tuple[Instruction, dict[int, _Read], dict[int, _Read]] | None:
        """Returns the step of a program of one step, besides those that show an array in another
        way: with the values that it may read, by slot, from the program's inputs, and those that
        the outputs are, from its results.
        """
        step: Instruction | None = None
        given: dict[int, _Read] = {slot: (n, None) for n, slot in enumerate(self.inputs)}
        made: dict[int, _Read] = {}
        for instruction in self.instructions:
            show = _shower(instruction)
            if show is not None:
                (source,), (target,) = instruction.inputs, instruction.outputs
                values = made if source in made else given
                number, shown_before = values.get(source, _NOWHERE)
                if number < 0 or shown_before is not None:
                    return None
                values[target] = number, show
            elif step is None:
                step = instruction
                made = {slot: (n, None) for n, slot in enumerate(step.outputs)}
            else:
                return None
        if step is None or not made.keys() >= set(self.outputs):
            return None
        return step, given, made

    def _reading(self, only: Instruction, given: Mapping[int, _Read]) -> Runnable | None:
        """Returns what runs an instruction on the program's inputs; None if it reads anything else,
        or if its results may not be new arrays.
        """
        if isinstance(only, RunHost) and only.collects:
            constants = [self.constants.get(slot) for slot in only.inputs]
            read = [(n, *given[slot]) for n, slot in enumerate(only.inputs) if slot in given]
            return partial(_collected, only, constants, read)
        if not isinstance(only, RunSegment) or not given.keys() >= set(only.inputs):
            return None
        if only.segment.has_stacks:
            return None  # a stretch takes less time
        reads = [given[slot] for slot in only.inputs]
        return only.segment if only.inputs == self.inputs else _reordered(only.segment, reads)

    def __call__(self, arrays: Sequence[Any], held: Held = NOTHING_HELD) -> list[Any]:
        """Returns the outputs, which own their memory except the held ones."""
        whole = self.whole
        if whole is not None:
            return whole(arrays)
        only = self._only
        if only is not None:
            found = only(arrays)
            if found is not None:
                return found
        if self.may_warn:
            with self._quiet():
                results = self.run_inside(arrays)
        else:
            results = self.run_inside(arrays)
        return self.borders.of(held).owned(arrays, results)

    def run_inside(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns the outputs as they are. Host steps may give warnings: this is part of a run that
        suppresses them.
        """
        if self.whole is not None:
            return self.whole(arrays)
        frame = self._frame.copy()
        for slot, array in zip(self.inputs, arrays):  # noqa: B905 - faster
            frame[slot] = array
        for run, inputs_of, only, outputs in self._joined_steps:  # as `_run_steps`, faster
            results = run(inputs_of(frame))
            if only >= 0:
                (frame[only],) = results
                continue
            for slot, value in zip(outputs, results, strict=True):
                frame[slot] = value
        return [frame[slot] for slot in self.outputs]

    def inside(self, arrays: Sequence[Any], observer: Observer | None) -> list[Any]:
        """Runs the program of a branch or loop in a run of another program, which suppresses
        warnings; otherwise as `observed`.
        """
        return self.run_inside(arrays) if observer is None else self.observed(arrays, observer)

    def observed(self, arrays: Sequence[Any], observer: Observer | None) -> list[Any]:
        """Returns the outputs of a run with an observer around each instruction. They may share
        memory with inputs, constants and each other.
        """
        if observer is None:
            with self._quiet():
                return self.run_inside(arrays)
        frame = self._begun(arrays)
        with self._quiet():
            for instruction in self.instructions:
                inputs = [frame[s] for s in instruction.inputs]
                run = partial(_results, instruction, observer, inputs)
                results = observer(instruction, inputs, run)
                for slot, value in zip(instruction.outputs, results, strict=True):
                    frame[slot] = value
        return [frame[slot] for slot in self.outputs]

    def _quiet(self) -> AbstractContextManager[object]:
        """Returns a context that suppresses NumPy's floating-point warnings in host steps, since
        kernels give none.
        """
        return np.errstate(all="ignore") if self.may_warn else _NOTHING

    def _begun(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns the slots at the start of a run with these inputs."""
        frame = list(self._frame)
        for slot, array in zip(self.inputs, arrays, strict=True):
            frame[slot] = array
        return frame

    def walk(self) -> list[Program]:
        """Returns this program and the programs of its branches and loops."""
        found = [self]
        for instruction in self.instructions:
            if isinstance(instruction, Branch):
                found += instruction.then.walk() + instruction.orelse.walk()
            elif isinstance(instruction, Repeat):
                found += instruction.cond.walk() + instruction.body.walk()
        return found


def _run_steps(steps: Sequence[_Step], frame: list[Any]) -> None:
    """Runs steps on the values in a frame."""
    for run, inputs_of, only, outputs in steps:
        results = run(inputs_of(frame))
        if only >= 0:  # takes half the time
            (frame[only],) = results
            continue
        for slot, value in zip(outputs, results, strict=True):
            frame[slot] = value


def _may_warn(instruction: Instruction) -> bool:
    match instruction:
        case RunSegment() | View():
            return False
        case RunHost():
            return not instruction.is_quiet
        case Branch():
            return instruction.then.may_warn or instruction.orelse.may_warn
        case Repeat():
            return instruction.cond.may_warn or instruction.body.may_warn
    return True


def _shower(instruction: Instruction) -> Callable[[Any], Any] | None:
    """Returns what shows an array in another way, on the same memory; None for other steps."""
    if isinstance(instruction, RunHost) and instruction.reinterprets:
        return partial(_shown_on_host, instruction)
    if isinstance(instruction, View) and instruction.is_static:
        return _viewer(*instruction.numbers)
    return None


def _taken(arrays: Sequence[Array], reads: Sequence[_Read]) -> list[Array]:
    return [arrays[n] if show is None else show(arrays[n]) for n, show in reads]


def _reordered(run: Runnable, reads: Sequence[_Read]) -> Runnable:
    return lambda arrays: run(_taken(arrays, reads))


def _collected(
    step: RunHost,
    constants: list[Any],
    read: Sequence[tuple[int, int, Callable[[Any], Any] | None]],
    arrays: Sequence[Any],
) -> list[Any]:
    """Returns the results of a host step whose arguments are constants, except those at places that
    `read` lists with the program's inputs.
    """
    inputs = constants.copy()
    for place, number, show in read:
        inputs[place] = arrays[number] if show is None else show(arrays[number])
    return list(_on_host(step, inputs))


def _chosen(values: Sequence[Any], shown: Sequence[_Read], again: list[int]) -> list[Any]:
    """Returns the shown values. Those with a number in `again` are copies, because another one is
    the same value.
    """
    chosen = _taken(values, shown)
    for number in again:
        chosen[number] = copied_value(chosen[number])
    return chosen


def _runner(instruction: Instruction) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Returns the function that runs an instruction on its inputs, without an observer."""
    match instruction:
        case RunSegment():
            return instruction.segment
        case RunHost():
            return _host_runner(instruction)
        case View() if instruction.is_static:
            view = _viewer(*instruction.numbers)
            return lambda inputs: (view(inputs[0]),)
        case Branch():
            then, orelse = instruction.then, instruction.orelse
            return lambda inputs: (then if inputs[0] else orelse).run_inside(inputs[1:])
        case _:
            return partial(_results, instruction, None)


def _results(
    instruction: Instruction, observer: Observer | None, inputs: Sequence[Any]
) -> Sequence[Any]:
    """Returns an instruction's results, one for each of its outputs."""
    match instruction:
        case RunSegment():
            return instruction.segment(inputs)
        case View():
            return (_viewer(*instruction.numbers)(inputs[0]),)
        case Copy():
            return (_copy(instruction, inputs[0]),)
        case RunHost():
            return _on_host(instruction, inputs)
        case Branch():
            taken = instruction.then if bool(inputs[0]) else instruction.orelse
            return taken.inside(inputs[1:], observer)
        case Repeat():
            return _repeat(instruction, inputs, observer)


def _shown_on_host(step: RunHost, array: Any) -> Any:
    """Returns the only result of a host step of one argument."""
    return _on_host(step, (array,))[0]


def _host_runner(step: RunHost) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Returns the function that runs a host step on its inputs."""
    function = step.function

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            result = function(*inputs)
        except ClewError as error:
            error.layer = error.layer or ", ".join(step.layers[:3])
            raise
        return result if isinstance(result, tuple) else (result,)

    return run


def _on_host(step: RunHost, inputs: Sequence[Any]) -> Sequence[Any]:
    """Returns the results of a host step. Errors: those of its function, with the layer added."""
    return _host_runner(step)(inputs)


def _copy(copy: Copy, value: Any) -> Any:
    """Returns a value copied to the other space. Errors: I362, with the layer added."""
    from clew.runtime.regions import copied  # noqa: PLC0415 - imported with the type of a `Copy`

    try:
        return copied(value, copy.source_space, copy.target_space, copy.type)
    except ClewError as error:
        error.layer = error.layer or ", ".join(copy.layers[:3])
        raise


def _viewer(shape: tuple[int, ...], offset: int) -> Callable[[Array], Array]:
    """Returns a function that views the part of an array from `offset` on in a shape."""
    count = math.prod(shape)
    end = offset + count

    def view(source: Array) -> Array:
        if count != source.size:
            source = source.reshape(-1)[offset:end]
        return source.reshape(shape)

    return view


def _equal_parts(instructions: Sequence[Instruction]) -> list[View]:
    """Returns the views at the start of instructions that show equal parts of one value, each of
    which begins where the one before ends.
    """
    found: list[View] = []
    for instruction in instructions:
        # The parts of an array are arrays, except for those of a vector.
        if not isinstance(instruction, View) or not instruction.is_static or not instruction.shape:
            break
        shape, offset = instruction.numbers
        if found:
            first, start = found[0], found[0].numbers[1]
            follows = offset == start + len(found) * math.prod(shape)
            if (instruction.source, shape) != (first.source, first.shape) or not follows:
                break
        found.append(instruction)
    return found


def _cutter(
    shape: tuple[int, ...], offset: int, count: int
) -> Callable[[Sequence[Array]], list[Array]]:
    """Returns what shows consecutive parts of one shape, from an element on."""
    size = count * math.prod(shape)
    whole = count, *shape

    def cut(inputs: Sequence[Array]) -> list[Array]:
        (source,) = inputs
        if size != source.size:
            source = source.reshape(-1)[offset : offset + size]
        return list(source.reshape(whole))

    return cut


def _repeat(loop: Repeat, inputs: Sequence[Any], observer: Observer | None) -> list[Any]:
    native = loop.native if observer is None else None
    found = _iterated(loop, native, inputs, observer)
    assert found is not None
    return found


def _iterated(
    loop: Repeat,
    native: NativeLoop | None,
    inputs: Sequence[Any],
    observer: Observer | None = None,
    *,
    only_natively: bool = False,
) -> list[Any] | None:
    """Returns the results of a loop. With `only_natively`, returns None if there are no iterations,
    or if Python must run some.
    """
    state = list(inputs)
    stacks = _Stacks(loop.scans)
    step = refused = 0
    if native is None and observer is None:
        return _in_python(loop, state, stacks, step)
    while True:
        check_loop_steps(step)
        trips = None if native is None else native.trips(state)
        if not (_goes_on(loop, step, state, observer) if trips is None else step < trips):
            break
        ran = None if native is None else native.run(state, step, trips)
        if ran is not None:
            state, step = ran.states, step + ran.iterations
            if loop.scans:
                stacks.add_rows(ran.stacks)
            if ran.is_over:
                break
            continue
        if only_natively:
            return None
        results = loop.body.inside([np.asarray(step, np.int64), *state], observer)
        state = list(results[: len(state)])
        stacks.add(results[len(state) :])
        step += 1
        refused += 1
        if refused == _MOST_REFUSED and observer is None:
            return _in_python(loop, state, stacks, step)
    if only_natively and not step:
        return None
    return [*state, *stacks.joined(loop.empty, state)] if loop.scans else state


def _in_python(loop: Repeat, state: list[Any], stacks: _Stacks, step: int) -> list[Any]:
    """Returns the results of a loop from iteration `step` on, run in Python."""
    cond, body, count = loop.cond.run_inside, loop.body.run_inside, len(state)
    most = current().loop_steps
    while True:
        if step >= most:
            check_loop_steps(step)
        given = [np.asarray(step, np.int64), *state]
        if not cond(given)[0]:
            break
        state = body(given)
        if loop.scans:
            stacks.add(state[count:])
            del state[count:]
        step += 1
    return [*state, *stacks.joined(loop.empty, state)] if loop.scans else state


def _goes_on(loop: Repeat, step: int, state: Sequence[Any], observer: Observer | None) -> bool:
    """Whether the condition of a loop holds."""
    return bool(loop.cond.inside([np.asarray(step, np.int64), *state], observer)[0])


class _Stacks:
    """The values that the iterations of a loop stack."""

    def __init__(self, count: int) -> None:
        self._blocks: list[list[Array]] = [[] for _ in range(count)]
        self._held = 0

    def add(self, values: Sequence[Any]) -> None:
        """Adds the values of an iteration."""
        self.add_rows([np.asarray(value)[None] for value in values])

    def add_rows(self, rows: Sequence[Array]) -> None:
        """Adds the values of some iterations. Errors: I265 for too many bytes."""
        if not self._blocks:
            return
        for block, value in zip(self._blocks, rows, strict=True):
            block.append(value)
            self._held += value.nbytes
        check_run_bytes("values that a loop stacks", self._held)

    def joined(self, empty: Sequence[NoIterations], state: Sequence[Any]) -> list[Array]:
        """Returns the stacks, or those of no iterations. Errors: I271."""
        return [
            _stack(blocks) if blocks else none.array(state)
            for blocks, none in zip(self._blocks, empty, strict=True)
        ]


def _stack(blocks: Sequence[Array]) -> Array:
    """Returns the rows of blocks as one array.

    Errors: I271 for rows of different shapes.
    """
    if len(blocks) == 1 and len(blocks[0]) > 1:
        return blocks[0]
    try:
        return np.concatenate(blocks)
    except ValueError as error:
        shapes = ", ".join(dict.fromkeys(str(list(block.shape[1:])) for block in blocks))
        raise RunError("I271", f"a loop stacks values of different shapes: {shapes}") from error
