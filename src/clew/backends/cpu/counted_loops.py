"""Joins loops to a sequence of native steps with data-dependent sizes (`joined_counts`).

State sizes that change between iterations are stored in memory. A `SIZES` step at the beginning of
each iteration reads them as counts, and so does another one after the loop. A state may therefore
grow or shrink by any amount, and loops may be nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.flow_writer import COUNTER_BYTES
from clew.backends.cpu.joined_loop import appends
from clew.backends.cpu.joined_steps import Part, Refused, StepsJoiner, Value, parameter_count
from clew.backends.loop_types import LoopTypes
from clew.ir.dims import Dim, SymDim, dim_max, product, substitute
from clew.ir.late_sizes import plain_size
from clew.ir.types import TensorType, Type, is_native, to_numpy
from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind
from clew.runtime.program import Instruction, Program, Repeat, RunHost
from clew.runtime.segment_template import LoopTemplate


class LoopsJoiner(StepsJoiner):
    """Joins instructions to native steps, including loops with data-dependent sizes."""

    def __init__(self) -> None:
        super().__init__()
        # The steps that compute sizes: their places, and the names of the counts that they read.
        self._stages: list[tuple[int, tuple[str, ...]]] = []
        self._read_as_values: list[tuple[int, BufferRef, tuple[Dim, ...]]] = []
        # By loop with stacks: the name of its number of rows, which is known only in the run.
        self._capacities: dict[int, str] = {}
        self._counts = 0
        # By instruction of a program that only appends to a state: the state's value.
        self._appending: dict[tuple[int, int], Value] = {}

    # --- sizes ---

    def _new_count(self) -> SymDim:
        """Returns a new name for a size that is known only in the run."""
        self._counts += 1
        return SymDim.symbol(f"?count{self._counts}", 0)

    def _new_counts(self, number: int) -> list[SymDim]:
        return [self._new_count() for _ in range(number)]

    def _stage(self, counts: Sequence[BufferRef], names: Sequence[Dim]) -> None:
        """Adds the step that reads counts and computes the sizes that depend on them."""
        place = self._flow(Flow(FlowKind.SIZES, tuple(counts)))
        self._stages.append((place, tuple(map(str, names))))

    def _stored(self, sizes: Sequence[Dim]) -> BufferRef:
        """Makes the latest step that computes sizes write some to memory; returns the place."""
        if not self._stages:
            self._stage([], [])
        ref = self._room(COUNTER_BYTES * len(sizes))
        stage = len(self._stages) - 1
        place = self._stages[stage][0]
        flow = self._order[place]
        assert isinstance(flow, Flow)
        self._order[place] = Flow(flow.kind, (*flow.args, ref))
        self._read_as_values.append((stage, ref, tuple(sizes)))
        return ref

    # --- instructions ---

    def _instruction(self, part: Part, number: int, instruction: Instruction) -> None:
        match instruction:
            case Repeat():
                self._loop(part, instruction)
            case RunHost() if (id(part.program), number) in self._appending:
                self._append(part, instruction, self._appending[id(part.program), number])
            case _:
                super()._instruction(part, number, instruction)

    def _loop(self, part: Part, loop: Repeat) -> None:
        """Adds a loop. Errors: Refused."""
        if loop.types is None or any(isinstance(i, RunHost) for i in loop.cond.instructions):
            raise Refused  # a condition would see the sizes of the previous iteration
        _Loop(self, part, loop).add()

    def _append(self, part: Part, host: RunHost, state: Value) -> None:
        """Adds copies of values to the end of a state, in its memory."""
        parts = [self._value(part, slot) for slot in host.inputs[: parameter_count(host)]]
        kernel = host.function
        assert isinstance(kernel, DeferredKernel)
        self._bind(part, host, kernel)
        whole: Dim = parts[0].size_bytes
        for value in parts[1:]:
            self._copy(state.ref.beyond(whole), value.ref, value.size_bytes)
            whole = whole + value.size_bytes
        shape = [substitute(dim, part.names) for dim in kernel.function.body.tensor.shape]
        part.values[host.outputs[0]] = Value(state.ref, state.dtype, tuple(shape))

    def _rows(self) -> SymDim:
        return self._new_count()

    def _stacked(self, loop: int, clock: BufferRef, rows: SymDim) -> None:
        self._capacities[loop] = str(rows)
        self._stage([clock], [rows])


class _Loop:
    """A loop that is being joined to the steps of `joiner`."""

    def __init__(self, joiner: LoopsJoiner, part: Part, loop: Repeat) -> None:
        """Errors: Refused."""
        assert loop.types is not None
        types = LoopTypes.of_record(loop.types)
        self._joiner, self._part, self._loop, self._types = joiner, part, loop, types
        self._count = len(types.before)
        results, params = loop.body.outputs, loop.body.inputs[1:]
        self._moving = [n for n in range(self._count) if results[n] != params[n]]
        self._first = [joiner._value(part, slot) for slot in loop.inputs[: self._count]]
        # What the names in the types stand for in an iteration.
        self._names: dict[str, Dim] = {}
        for name, slot in zip(types.sizes, loop.inputs[self._count :], strict=True):
            self._names[name] = self._outer_size(name, slot)
        # The sizes that change: their first values.
        self._changing: dict[str, Dim] = {}
        self._bind_sizes()

    def _outer_size(self, name: str, slot: int) -> Dim:
        if slot in self._part.sizes:
            return self._part.sizes[slot]
        if name.startswith("?"):
            raise Refused
        return SymDim.symbol(name)

    def _type(self, state: int) -> TensorType:
        type_ = self._types.before[state]
        if not isinstance(type_, TensorType) or not is_native(type_):
            raise Refused
        return type_

    def _bind_sizes(self) -> None:
        """Finds which sizes change. The others keep their values from before the loop."""
        changing = set()
        for n in self._moving:
            after = self._types.after[n]
            if not isinstance(after, TensorType) or after.rank != self._type(n).rank:
                raise Refused
            pairs = zip(self._type(n).shape, after.shape, strict=True)
            changing |= {plain_size(dim) for dim, then in pairs if dim != then}
        pairs_of = [
            (dim, size)
            for n, first in enumerate(self._first)
            for dim, size in zip(self._type(n).shape, first.shape, strict=True)
        ]
        for dim, size in pairs_of:
            name = plain_size(dim)
            if name in changing and name is not None and name not in self._names:
                self._changing.setdefault(name, size)
        counts = self._joiner._new_counts(len(self._changing))
        self._names.update(zip(self._changing, counts, strict=True))
        before = {**self._names, **self._changing}
        self._joiner._unify(before, pairs_of)
        self._names = {**before, **self._names}
        if any(n.startswith("?") for n in self._unbound()):
            raise Refused

    def _unbound(self) -> set[str]:
        dims = [dim for n in range(self._count) for dim in self._type(n).shape]
        names = {name for dim in dims if isinstance(dim, SymDim) for name in dim.symbols}
        return names - self._names.keys()

    def _shape(self, state: int, names: Mapping[str, Dim]) -> tuple[Dim, ...]:
        return tuple([substitute(dim, names) for dim in self._type(state).shape])

    def add(self) -> None:
        """Adds the loop's steps, and its results to the values of its part."""
        joiner, loop, types = self._joiner, self._loop, self._types
        appended = {state: number for number, state in appends(loop.body)}
        moved = [n for n in self._moving if n not in appended]
        rows = [self._row_bytes(type_) for type_ in types.rows]
        number, first = len(joiner._loops), joiner._buffers
        states, stages = (0,) * len(moved), len(joiner._stages)
        limit = None if types.limit in self._moving else types.limit
        template = LoopTemplate(first, states, tuple(rows), None, limit is not None)
        joiner._loops.append(template)
        joiner._buffers += template.moving
        cells = self._cells()
        clock = joiner._room(COUNTER_BYTES)
        begin, now, rooms = [clock], list(self._first), dict[int, list[BufferRef]]()
        for n in range(self._count):
            value, shape = self._first[n], self._shape(n, self._names)
            if n in appended:
                rooms[n] = [joiner._room(0)]
                # Even if it is empty: its memory must be in use from before the loop on.
                joiner._set(rooms[n][0], value.ref, value.size_bytes)
                now[n] = Value(rooms[n][0], value.dtype, shape)
            elif n in moved:
                rooms[n] = [joiner._room(0), joiner._room(0)]
                begin += [value.ref, *rooms[n]]
                now[n] = Value(_moving(first + 3 * moved.index(n)), value.dtype, shape)
        count = joiner._new_count() if rows else None
        stacks = []
        outputs = loop.outputs[len(loop.outputs) - len(rows) :]
        for slot, size in zip(outputs, rows, strict=True):
            assert count is not None
            stacks.append(self._part.wanted.get(slot) or joiner._room(count * size))
        joiner._flow(Flow(FlowKind.BEGIN, (*begin, *stacks), loop=number))
        head = len(joiner._order)
        decides = self._first[limit].ref if limit is not None else self._condition(clock, now)
        test = joiner._flow(Flow(FlowKind.TEST, (clock, decides), loop=number))
        if cells:
            joiner._stage(cells, [self._names[name] for name in self._changing])
        targets = {n: _moving(first + 3 * k + 1) for k, n in enumerate(moved)}
        stacked = [_moving(first + 3 * len(moved) + k) for k in range(len(rows))]
        following = self._body(clock, now, targets, stacked, appended)
        if cells:
            sizes = joiner._stored([self._next_size(name, following) for name in self._changing])
            for k, cell in enumerate(cells):
                joiner._copy(cell, sizes.beyond(COUNTER_BYTES * k), COUNTER_BYTES)
        joiner._flow(Flow(FlowKind.NEXT, (clock,), target=head, loop=number))
        joiner._aim(test)
        after = joiner._new_counts(len(cells))
        if cells or rows or len(joiner._stages) > stages:
            counts = [*cells, clock] if rows else cells
            joiner._stage(counts, [*after, *([count] if count is not None else [])])
        names = {**self._names, **dict(zip(self._changing, after, strict=True))}
        self._results(now, following, rooms, names)
        for n, slot in enumerate(loop.outputs[self._count : len(loop.outputs) - len(rows)]):
            self._part.sizes[slot] = self._names[types.sizes[n]]
        for slot, ref, type_ in zip(outputs, stacks, types.rows, strict=True):
            assert count is not None
            assert isinstance(type_, TensorType)
            shape = tuple([substitute(dim, self._names) for dim in type_.shape])
            self._part.values[slot] = Value(ref, to_numpy(type_.dtype), (count, *shape))
        if count is not None:
            joiner._capacities[number] = str(count)
        joiner._flow(Flow(FlowKind.END, loop=number))

    def _row_bytes(self, type_: Type) -> int:
        if not isinstance(type_, TensorType) or not is_native(type_):
            raise Refused
        if any(isinstance(d, SymDim) and d.symbols & self._changing.keys() for d in type_.shape):
            raise Refused  # rows of different sizes are an error in the run
        shape = tuple([substitute(dim, self._names) for dim in type_.shape])
        size = product(shape) * to_numpy(type_.dtype).itemsize
        if not isinstance(size, int):
            raise Refused
        return size

    def _cells(self) -> list[BufferRef]:
        """Returns the memory of the sizes that change, initialized with their first values."""
        joiner = self._joiner
        if not self._changing:
            return []
        begin = joiner._stored(list(self._changing.values()))
        cells = [joiner._room(COUNTER_BYTES) for _ in self._changing]
        for k, cell in enumerate(cells):
            joiner._copy(cell, begin.beyond(COUNTER_BYTES * k), COUNTER_BYTES)
        return cells

    def _values(self, program: Program, clock: BufferRef, now: Sequence[Value]) -> Part:
        """Returns the condition or body of the loop with the values of its inputs."""
        counter, *slots = program.inputs
        values = {counter: Value(clock, np.dtype(np.int64), ())}
        values.update(zip(slots[: self._count], now, strict=True))
        sizes = {
            slot: self._names[name]
            for slot, name in zip(slots[self._count :], self._types.sizes, strict=True)
        }
        return Part(program, dict(self._names), values, {}, sizes)

    def _condition(self, clock: BufferRef, now: Sequence[Value]) -> BufferRef:
        """Adds the condition; returns the place of its result."""
        part = self._values(self._loop.cond, clock, now)
        self._joiner._add(part)
        return self._joiner._value(part, part.program.outputs[0]).ref

    def _body(
        self,
        clock: BufferRef,
        now: Sequence[Value],
        targets: Mapping[int, BufferRef],
        stacked: Sequence[BufferRef],
        appended: Mapping[int, int],
    ) -> list[Value]:
        """Adds an iteration. Returns the next values of the states."""
        joiner, body = self._joiner, self._loop.body
        part = self._values(body, clock, now)
        slots = body.outputs[len(body.outputs) - len(stacked) :]
        goals = [(body.outputs[n], ref) for n, ref in targets.items()]
        goals += zip(slots, stacked, strict=True)
        wanted: dict[int, BufferRef] = {}
        for slot, ref in goals:
            wanted.setdefault(slot, ref)
        part.wanted = wanted
        for state, number in appended.items():
            joiner._appending[id(body), number] = now[state]
        joiner._add(part)
        for slot, ref in goals:
            value = joiner._value(part, slot)
            joiner._copy(ref, value.ref, value.size_bytes)
        for slot, type_ in zip(slots, self._types.rows, strict=True):
            assert isinstance(type_, TensorType)
            shape = [substitute(dim, self._names) for dim in type_.shape]
            for size, found in zip(shape, joiner._value(part, slot).shape, strict=True):
                joiner._need_equal(size, found)
        return [joiner._value(part, slot) for slot in body.outputs[: self._count]]

    def _next_size(self, name: str, following: Sequence[Value]) -> Dim:
        """Returns a size after an iteration."""
        sizes = [
            size
            for n, value in enumerate(following)
            for dim, size in zip(self._type(n).shape, value.shape, strict=True)
            if plain_size(dim) == name
        ]
        for size in sizes[1:]:
            self._joiner._need_equal(sizes[0], size)
        return sizes[0]

    def _results(
        self,
        now: Sequence[Value],
        following: Sequence[Value],
        rooms: Mapping[int, Sequence[BufferRef]],
        names: Mapping[str, Dim],
    ) -> None:
        """Adds the final states to the values of the part; `names` has their sizes. Sets the sizes
        of their buffers to the largest that they may need.
        """
        joiner, part = self._joiner, self._part
        nexts = {n: self._next_size(n, following) for n in self._changing}
        for n, slot in enumerate(self._loop.outputs[: self._count]):
            if n not in rooms:
                part.values[slot] = self._first[n]
                continue
            then = self._shape(n, {**self._names, **nexts})
            for size, found in zip(then, following[n].shape, strict=True):
                joiner._need_equal(size, found)
            if following[n].dtype != now[n].dtype:
                raise Refused
            is_moved = len(rooms[n]) > 1
            room = dim_max(now[n].size_bytes, following[n].size_bytes)
            final = Value(rooms[n][0], now[n].dtype, self._shape(n, names))
            if is_moved:
                ref = part.wanted.get(slot) or joiner._room(final.size_bytes)
                joiner._copy(ref, now[n].ref, final.size_bytes)
                final = Value(ref, final.dtype, final.shape)
            else:
                room = dim_max(room, self._first[n].size_bytes)
            for own in rooms[n]:
                joiner._arena[own.index] = room
            part.values[slot] = final


def _moving(number: int) -> BufferRef:
    return BufferRef(BufferKind.MOVING, number)
