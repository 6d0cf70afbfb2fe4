"""Joins the parts of a loop to one sequence of native steps, if all of them are kernels for all
sizes, and the sizes grow by the same numbers in each iteration (`runtime.loop_body`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.flow_writer import COUNTER_BYTES
from clew.backends.cpu.joined_steps import (
    Functions,
    Part,
    Refused,
    StepsJoiner,
    Value,
    parameter_count,
)
from clew.backends.loop_types import LoopTypes
from clew.ir.dims import Dim, SymDim, substitute
from clew.ir.expr import Call, Function
from clew.ir.late_sizes import plain_size
from clew.ir.types import TensorType, Type, is_native, to_numpy
from clew.ops.registry import Op
from clew.runtime.guard import GuardSide
from clew.runtime.loop_body import Growth, LoopBody
from clew.runtime.native_loop import NativeLoop
from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind
from clew.runtime.program import Instruction, Program, Repeat, RunHost
from clew.runtime.segment_template import LoopTemplate, SegmentTemplate, SizedSpec
from clew.runtime.threads import ThreadPool

_SIZE = TensorType((), "i64")


def with_native_steps(
    loop: Repeat, types: LoopTypes, pool: ThreadPool, guard: GuardSide | bool = False
) -> Repeat:
    """Returns a loop with its types, and with native steps if these can replace those of its
    programs.
    """
    loop = replace(loop, types=types.to_record())
    try:
        joiner = _Joiner(loop, types)
        body = joiner.joined()
    except Refused:
        return loop
    return replace(loop, native=NativeLoop(body, Functions(joiner.functions), pool, guard=guard))


def saved_loop(loop: Repeat, record: Mapping[str, Any], pool: ThreadPool) -> Repeat:
    """Returns a loop of a saved model with its native steps. `record` has the types of its states.

    Errors: KeyError, TypeError and ParseError for a record that is none.
    """
    return with_native_steps(loop, LoopTypes.of_record(record), pool)


class _Joiner(StepsJoiner):
    def __init__(self, loop: Repeat, types: LoopTypes) -> None:
        """Errors: Refused."""
        super().__init__()
        self._loop, self._types = loop, types
        self._growth = _growth(types)
        _check(types, self._growth)
        self._names = {growth.name for growth in self._growth}
        params, results = loop.body.inputs[1:], loop.body.outputs
        self._states = len(params)
        self._moving = [n for n in range(self._states) if results[n] != params[n]]
        # By number of an instruction of the body: the state that it appends to.
        self._appends = dict(appends(loop.body))
        self._inputs: dict[int, BufferRef] = {}
        # By step: whether it is the condition's, the number of the instruction, and the step there.
        self._origins: list[tuple[bool, int, int]] = []
        self._at = False, 0
        rows = tuple([self._row(type_).memory_bytes for type_ in types.rows])
        self._loops = [LoopTemplate(0, (0,) * len(self._moving), rows)]
        self._buffers = self._loops[0].moving

    def _row(self, type_: Type) -> TensorType:
        grows = {g.name for g in self._growth if g.step}
        if not isinstance(type_, TensorType) or not is_native(type_):
            raise Refused
        if any(isinstance(dim, SymDim) and dim.symbols & grows for dim in type_.shape):
            raise Refused
        return type_

    def joined(self) -> LoopBody:
        """Returns the loop. Errors: Refused."""
        clock, now, following = (self._room(COUNTER_BYTES) for _ in range(3))
        appended = set(self._appends.values())
        outputs: list[SizedSpec] = []
        begin = [clock]
        for state in self._moving:
            spec = _spec(f"state{state}", _state(self._types, state))
            first = self._input(state)
            own = [BufferRef(BufferKind.OUTPUT, len(outputs))]
            outputs.append(spec)
            if state in appended:
                begin += [own[0]] * 3
            else:
                begin += [first, own[0], BufferRef(BufferKind.OUTPUT, len(outputs))]
                outputs.append(spec)
        for number, type_ in enumerate(self._types.rows):
            begin.append(BufferRef(BufferKind.OUTPUT, len(outputs)))
            outputs.append(_spec(f"row{number}", self._row(type_)))
        self._flow(Flow(FlowKind.BEGIN, tuple(begin), loop=0))
        head = self._flow(Flow(FlowKind.ROW, (now, following)))
        self._body(now)
        self._flow(Flow(FlowKind.NEXT, (clock,), target=len(self._order) + 1, loop=0))
        ends = [head]
        limit = self._types.limit
        if limit in self._moving:
            limit = None
        if limit is None:
            ends.append(self._condition(clock, following))
        self._flow(Flow(FlowKind.JUMP, target=head))
        rows = self._order[head]
        assert isinstance(rows, Flow)
        self._order[head] = replace(rows, args=(*rows.args, *(ref for ref, _ in self._shapes)))
        for place in ends:
            self._aim(place)
        self._flow(Flow(FlowKind.END, loop=0))
        self._check_places()
        template = SegmentTemplate(
            tuple(self._steps),
            tuple(_spec(f"state{n}", _state(self._types, n)) for n in self._inputs),
            tuple(outputs),
            tuple(self._constants),
            tuple(self._arena),
            tuple(self._order),
            tuple(self._loops),
            self._copied,
        )
        body = LoopBody(
            template,
            tuple(self._inputs),
            tuple(self._moving),
            head,
            tuple(shape for _, shape in self._shapes),
            tuple(self._growth),
            tuple(self._needs),
            tuple(self._origins),
            limit,
            frozenset(appended),
        )
        if not body.names <= self._names or body.divides_by_sizes:
            raise Refused
        return body

    def _check_places(self) -> None:
        """Errors: Refused if a size moves a position in an input or output: the driver does not
        write these in each iteration.
        """
        fixed = (BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.CONSTANT)
        args = (ref for e in self._order if isinstance(e, Flow) for ref in e.args)
        for ref in (*args, *(ref for step in self._steps for ref in step.args)):
            if ref.kind in fixed and not isinstance(ref.sized_bytes, int):
                raise Refused

    # --- parts ---

    def _body(self, now: BufferRef) -> None:
        program = self._loop.body
        wanted: dict[int, BufferRef] = {}
        goals: list[tuple[int, BufferRef]] = []
        appended = set(self._appends.values())
        for number, state in enumerate(self._moving):
            goals.append((program.outputs[state], _moved(3 * number + (state not in appended))))
        first = 3 * len(self._moving)
        for number, slot in enumerate(program.outputs[self._states :]):
            goals.append((slot, _moved(first + number)))
        for slot, ref in goals:
            wanted.setdefault(slot, ref)
        part = Part(program, {}, self._values(program, now), wanted)
        self._add(part)
        for slot, ref in goals:
            value = self._value(part, slot)
            self._copy(ref, value.ref, value.size_bytes)

    def _condition(self, clock: BufferRef, following: BufferRef) -> int:
        """Adds the condition of the next iteration; returns the place of its test."""
        program = self._loop.cond
        if any(isinstance(instruction, RunHost) for instruction in program.instructions):
            raise Refused  # its sizes would be those of the iteration before
        part = Part(program, {}, self._values(program, following), {})
        self._add(part)
        decides = self._value(part, program.outputs[0]).ref
        return self._flow(Flow(FlowKind.TEST, (clock, decides), loop=0))

    def _values(self, program: Program, counter: BufferRef) -> dict[int, Value]:
        """Returns the values of a program's inputs: the iteration's number, and the states that it
        reads.
        """
        count, *states = program.inputs
        read = {slot for i in program.instructions for slot in i.inputs} | set(program.outputs)
        values = {count: Value(counter, np.dtype(np.int64), ())}
        for state, slot in enumerate(states):
            if slot not in read or (state >= len(self._types.before) and state not in self._moving):
                continue  # sizes are no values in memory
            if not isinstance(self._types.before[state], TensorType):
                continue
            type_ = _state(self._types, state)
            ref = self._input(state)
            if state in self._moving:
                ref = _moved(3 * self._moving.index(state))
            values[slot] = Value(ref, to_numpy(type_.dtype), type_.shape)
        return values

    def _instruction(self, part: Part, number: int, instruction: Instruction) -> None:
        if part.program in (self._loop.body, self._loop.cond):
            self._at = part.program is self._loop.cond, number
        if part.program is self._loop.body and number in self._appends:
            assert isinstance(instruction, RunHost)
            self._append(part, instruction, self._appends[number])
        else:
            super()._instruction(part, number, instruction)

    def _began(self, step: int) -> None:
        self._origins.append((*self._at, step))

    def _append(self, part: Part, host: RunHost, state: int) -> None:
        """Adds copies of values to the end of a state."""
        place = _moved(3 * self._moving.index(state))
        parts = [self._value(part, slot) for slot in host.inputs[: parameter_count(host)]]
        whole: Dim = parts[0].size_bytes
        for value in parts[1:]:
            self._copy(place.beyond(whole), value.ref, value.size_bytes)
            whole = whole + value.size_bytes
        kernel = host.function
        assert isinstance(kernel, DeferredKernel)
        shape = kernel.function.body.tensor.shape
        part.values[host.outputs[0]] = Value(place, parts[0].dtype, shape)

    # --- memory ---

    def _input(self, state: int) -> BufferRef:
        if state not in self._inputs:
            _state(self._types, state)
            self._inputs[state] = BufferRef(BufferKind.INPUT, len(self._inputs))
        return self._inputs[state]


def _moved(number: int) -> BufferRef:
    return BufferRef(BufferKind.MOVING, number)


def _spec(name: str, type_: TensorType) -> SizedSpec:
    return SizedSpec(name, type_.shape, to_numpy(type_.dtype).name)


def appends(body: Program) -> Iterable[tuple[int, int]]:
    """Yields the instructions that only append to a state: the next state consists of the elements
    of the state and, behind them in memory, those of other values.
    """
    states = {slot: state for state, slot in enumerate(body.inputs[1:])}
    for number, host in enumerate(body.instructions):
        if not isinstance(host, RunHost) or not isinstance(host.function, DeferredKernel):
            continue
        function, state = host.function.function, states.get(host.inputs[0], -1)
        if state >= 0 and body.outputs[state] == host.outputs[0] and is_append(function):
            yield number, state


def is_append(function: Function) -> bool:
    """Whether a function concatenates its parameters, in order, along the outermost axis."""
    call = function.body
    if not isinstance(call, Call) or not isinstance(call.op, Op) or call.op.name != "concatenate":
        return False
    axis = call.attrs.axis % call.tensor.rank
    is_outer = all(size == 1 for size in call.tensor.shape[:axis])
    return is_outer and [a.id for a in call.args] == [p.id for p in function.params]


def _growth(types: LoopTypes) -> list[Growth]:
    """Returns the sizes of the states. Errors: Refused if one grows by more than a number."""
    found: dict[str, Growth] = {}
    for number, (before, after) in enumerate(zip(types.before, types.after, strict=True)):
        if not isinstance(before, TensorType):
            continue
        if not isinstance(after, TensorType) or after.rank != before.rank:
            raise Refused
        for axis, (dim, then) in enumerate(zip(before.shape, after.shape, strict=True)):
            name, step = plain_size(dim), then - dim
            if name is not None and isinstance(step, int):
                found.setdefault(name, Growth(name, number, axis, step))
    for number, name in enumerate(types.sizes, len(types.before)):
        found[name] = Growth(name, number, None, 0)
    return list(found.values())


def _check(types: LoopTypes, growth: Iterable[Growth]) -> None:
    """Errors: Refused unless the shapes of all states after an iteration follow from how the
    sizes grow.
    """
    grown = {g.name: SymDim.symbol(g.name) + g.step for g in growth}
    for before, after in zip(types.before, types.after, strict=True):
        if isinstance(before, TensorType) and isinstance(after, TensorType):
            shape = tuple([substitute(dim, grown) for dim in before.shape])
            if shape != after.shape or before.dtype != after.dtype:
                raise Refused


def _state(types: LoopTypes, number: int) -> TensorType:
    """Returns the type of a state. Errors: Refused for one that kernels cannot read."""
    type_ = types.before[number] if number < len(types.before) else _SIZE
    if not isinstance(type_, TensorType) or not is_native(type_):
        raise Refused
    return type_
