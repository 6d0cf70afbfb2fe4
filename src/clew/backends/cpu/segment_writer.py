"""Writes segments: kernels, and branches and loops of kernels, as one sequence of steps that share
one arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from clew.backends.cpu.flow_writer import COUNTER_BYTES, FlowWriter
from clew.backends.cpu.kernel_stages import operator_calls
from clew.codegen.artifact import KernelCode
from clew.ir.dims import Dim, is_unknown
from clew.ir.expr import Call, Expr, Function, If, Var, While
from clew.ir.inline import inlined
from clew.ir.types import TensorType, to_numpy
from clew.ops.registry import Op
from clew.runtime.plan import (
    BufferKind,
    BufferRef,
    Flow,
    FlowKind,
    Step,
)
from clew.runtime.segment_template import LoopTemplate, SegmentTemplate, SizedSpec
from clew.support.dataclass import dataclass

# The nodes of a segment: kernels, and branches and loops of kernels.
Work: TypeAlias = Call | If | While


class Slots(Protocol):
    """The interface of a function's builder for the writer. Each value has a slot.

    `slots` maps the id of a node to its slots, and `parts` the id of a native branch or loop to the
    builders of its two parts.
    """

    function: Function
    constants: dict[int, np.ndarray[Any, Any]]
    slots: dict[int, tuple[int, ...]]

    @property
    def codes(self) -> Mapping[int, KernelCode]:
        """The compiled kernel of each primitive function, by the function's node id."""
        ...

    @property
    def parts(self) -> Mapping[int, tuple[Slots, Slots]]: ...

    def tensor(self, slot: int) -> TensorType:
        """Returns the tensor type of a slot's value."""
        ...

    def size_bytes(self, slot: int) -> Dim:
        """Returns the bytes of a slot's value."""
        ...

    def root(self, slot: int) -> tuple[int, Dim]:
        """Returns the slot that owns the memory of a slot's value, and its first element there."""
        ...

    def shown_as(self, slot: int) -> int:
        """Returns the slot to which a segment's output goes."""
        ...

    def reads(self, node: Expr) -> list[int]:
        """Returns the slots that a node reads."""
        ...

    def written(self, group: Sequence[Work]) -> Mapping[int, None]:
        """Returns the slots written by a group that own memory."""
        ...

    def fixed_states(self, node: While) -> set[int]:
        """Returns the states of a native loop that its body does not change."""
        ...

    def whole_group(self) -> Sequence[Work]:
        """Returns the nodes of the function, all of which are native."""
        ...

    def reuse_dying(self, group: Sequence[Work], needed: set[int]) -> None:
        """Lets results reuse the memory of arguments that are not read afterwards."""
        ...


@dataclass
class _Scope:
    """A function that is being written; `refs` maps slots that own memory to its place."""

    builder: Slots
    refs: dict[int, BufferRef] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)


class SegmentWriter(FlowWriter):
    """Writes one segment. `calls` are the calls of its kernels in the order of its steps. `inputs`
    are the slots of its inputs.
    """

    def __init__(self, builder: Slots, outputs: Sequence[int]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.inputs: list[int] = []
        self._outputs = outputs
        self._outer = _Scope(builder)
        self._outer.refs = {s: BufferRef(BufferKind.OUTPUT, n) for n, s in enumerate(outputs)}
        self._steps: list[Step] = []
        self._loops: list[LoopTemplate] = []
        self._moving = 0
        self._constants: list[np.ndarray[Any, Any]] = []
        self._written: set[int] = set()

    def write(self, group: Sequence[Work]) -> SegmentTemplate:
        """Returns the segment of a group of nodes."""
        self._outer.made = set(self._outer.builder.written(group))
        self._write(self._outer, group)
        order = sorted(range(len(self.inputs)), key=lambda n: self.inputs[n])
        renumber = {old: new for new, old in enumerate(order)}
        steps = [replace(s, args=_renumbered(s.args, renumber)) for s in self._steps]
        flow: list[int | Flow] = []
        if self._loops or any(isinstance(entry, Flow) for entry in self._order):
            flow = [
                e if isinstance(e, int) else replace(e, args=_renumbered(e.args, renumber))
                for e in self._order
            ]
        self.inputs = [self.inputs[n] for n in order]
        inputs = map(self._spec, self.inputs)
        outputs = (self._spec(self._outer.builder.shown_as(s)) for s in self._outputs)
        return SegmentTemplate(
            tuple(steps),
            tuple(inputs),
            tuple(outputs),
            tuple(self._constants),
            tuple(self._arena),
            tuple(flow),
            tuple(self._loops),
            self._copied,
            tuple(sorted(renumber[n] for n in self._written)),
        )

    def _spec(self, slot: int) -> SizedSpec:
        type_ = self._outer.builder.tensor(slot)
        is_stack = type_.rank > 0 and is_unknown(type_.shape[0])
        shape = type_.shape[is_stack:]
        return SizedSpec(f"v{slot}", shape, to_numpy(type_.dtype).name, is_stack)

    def _ref(self, scope: _Scope, part: int) -> BufferRef:
        """Returns the place of a slot's value."""
        builder = scope.builder
        slot, offset = builder.root(part)
        if slot not in scope.refs:
            if slot in builder.constants:
                scope.refs[slot] = BufferRef(BufferKind.CONSTANT, len(self._constants))
                self._constants.append(np.ascontiguousarray(builder.constants[slot]))
            elif slot in scope.made:
                scope.refs[slot] = self._room(builder.tensor(slot).memory_bytes)
            else:
                assert scope is self._outer, "a value without a place"
                scope.refs[slot] = BufferRef(BufferKind.INPUT, len(self.inputs))
                self.inputs.append(slot)
        ref = scope.refs[slot]
        return ref.beyond(offset * to_numpy(builder.tensor(slot).dtype).itemsize)

    # --- the nodes of a group ---

    def _write(self, scope: _Scope, group: Sequence[Work]) -> None:
        for node in group:
            match node:
                case Call():
                    self._kernel(scope, node)
                case If():
                    self._branch(scope, node)
                case While():
                    self._loop(scope, node)

    def _kernel(self, scope: _Scope, call: Call) -> None:
        builder = scope.builder
        assert isinstance(call.op, Function)
        code = builder.codes[call.op.id]
        slots = (*builder.reads(call), *builder.slots[call.id])
        args = [self._ref(scope, s) for s in slots]
        results = args[len(slots) - len(builder.slots[call.id]) :]
        self._written |= {ref.index for ref in results if ref.kind is BufferKind.INPUT}
        args += map(self._room, code.workspace_bytes)
        self._order.append(len(self._steps))
        self._steps.append(Step(code, tuple(args), call.title, _checked(call.op, code)))
        self.calls.append(call)

    def _branch(self, scope: _Scope, node: If) -> None:
        """Writes a branch. Both sides write their results to the memory of the node's results."""
        builder = scope.builder
        cond, *given = (self._ref(scope, s) for s in builder.reads(node))
        results = [self._ref(scope, s) for s in builder.slots[node.id]]
        unless = self._flow(Flow(FlowKind.UNLESS, (cond,)))
        then, orelse = builder.parts[node.id]
        self._function(then, given, results)
        jump = self._flow(Flow(FlowKind.JUMP))
        self._aim(unless)
        self._function(orelse, given, results)
        self._aim(jump)
        self._flow(Flow(FlowKind.END, tuple(results), node=node.id))

    def _loop(self, scope: _Scope, node: While) -> None:
        """Writes a loop. States that the body does not change stay in place. Other states move
        between buffers, and are copied to the loop's results at the end.
        """
        builder = scope.builder
        cond, body = builder.parts[node.id]
        fixed = builder.fixed_states(node)
        init = [self._ref(scope, s) for s in builder.reads(node)]
        results = [self._ref(scope, s) for s in builder.slots[node.id]]
        sizes = [builder.tensor(s).memory_bytes for s in builder.slots[node.id]]
        moving = [n for n in range(len(init)) if n not in fixed]
        stacks = results[len(init) :]
        made = body.slots[body.function.body.id][len(init) :]
        rows = [body.tensor(s).memory_bytes for s in made]  # also if the loop body never runs
        states = tuple(sizes[n] for n in moving)
        trips = counted_trips(node)
        counts_to = limit_of(node) if trips is None else None
        reads_trips = counts_to is not None and counts_to in fixed
        loop = LoopTemplate(self._moving, states, tuple(rows), trips, reads_trips)
        number, counter = len(self._loops), self._room(COUNTER_BYTES)
        self._loops.append(loop)
        self._moving += loop.moving

        def moved(column: int) -> BufferRef:
            return BufferRef(BufferKind.MOVING, loop.first + column)

        begin = [counter]
        for n in moving:
            begin += [init[n], self._room(sizes[n]), self._room(sizes[n])]
        now, new = dict(enumerate(init)), dict(enumerate(init))
        now.update((n, moved(3 * k)) for k, n in enumerate(moving))
        new.update((n, moved(3 * k + 1)) for k, n in enumerate(moving))
        written = [new[n] for n in range(len(init))]
        written += [moved(3 * len(moving) + k) for k in range(len(stacks))]
        given = [counter, *(now[n] for n in range(len(init)))]
        self._flow(Flow(FlowKind.BEGIN, (*begin, *stacks), loop=number))
        head = len(self._order)
        decides: Sequence[BufferRef] = ()
        if counts_to is not None and reads_trips:
            decides = [init[counts_to]]
        elif trips is None:
            decides = self._function(cond, given)
        test = self._flow(Flow(FlowKind.TEST, (counter, *decides), loop=number))
        self._function(body, given, written)
        self._flow(Flow(FlowKind.NEXT, (counter,), target=head, loop=number))
        self._aim(test)
        for n in moving:
            self._copy(results[n], now[n], sizes[n])
        self._flow(Flow(FlowKind.END, tuple(results), loop=number, node=node.id))

    def _function(
        self,
        builder: Slots,
        given: Sequence[BufferRef],
        wanted: Sequence[BufferRef] | None = None,
    ) -> list[BufferRef]:
        """Writes a side of a branch or a part of a loop. Returns the places of its results, which
        are those in `wanted`, if given.
        """
        group, results = builder.whole_group(), builder.slots[builder.function.body.id]
        scope = _Scope(builder)
        params = [s for p in builder.function.params for s in builder.slots[p.id]]
        scope.refs.update(zip(params, given, strict=True))
        builder.reuse_dying(group, {builder.root(s)[0] for s in results})
        scope.made = set(builder.written(group))
        if wanted is None:
            self._write(scope, group)
            return [self._ref(scope, s) for s in results]
        for slot, ref in zip(results, wanted, strict=True):
            root, offset = builder.root(slot)
            whole = offset == 0 and builder.size_bytes(root) == builder.size_bytes(slot)
            if root in scope.made and whole and root not in scope.refs:
                scope.refs[root] = ref
        self._write(scope, group)
        for slot, ref in zip(results, wanted, strict=True):
            self._copy(ref, self._ref(scope, slot), builder.tensor(slot).memory_bytes)
        return list(wanted)

    # --- control flow ---


def limit_of(loop: While) -> int | None:
    """Returns the number of the state that holds the trip count of a loop; None unless the
    condition is only that the counter is less than a state.
    """
    counter, *states = loop.cond.params
    test = loop.cond.body
    if isinstance(test, Call) and isinstance(test.op, Function):
        test = inlined(test.op, test.args)
    match test:
        case Call(op=Op(name="less"), args=[Var() as count, Var() as limit]):
            plain = all(isinstance(state.type, TensorType) for state in states)
            if plain and count is counter and limit in states:
                return states.index(limit)
    return None


def counted_trips(loop: While) -> Dim | None:
    """Returns the trip count of a loop; None if only the run determines it."""
    return None if loop.trips is None or is_unknown(loop.trips) else loop.trips


def _renumbered(args: Sequence[BufferRef], renumber: dict[int, int]) -> tuple[BufferRef, ...]:
    return tuple(
        replace(r, index=renumber[r.index]) if r.kind is BufferKind.INPUT else r for r in args
    )


def _checked(kernel: Function, code: KernelCode) -> tuple[str, ...]:
    """Returns, for each index check of a kernel, the layers of the indices."""
    if not code.checks:
        return ()
    calls = operator_calls(kernel)
    return tuple(", ".join(calls[check.operator].layers[:3]) for check in code.checks)
