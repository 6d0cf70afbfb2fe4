"""Joins the instructions between which data decide sizes to one sequence of native steps: kernels
that count, and kernels for all sizes that run at the counts (`runtime.counted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from clew.backends.cpu.counted_loops import LoopsJoiner
from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.flow_writer import COUNTER_BYTES
from clew.backends.cpu.joined_steps import Functions, Part, Refused, Value, parameter_count
from clew.backends.host.steps import HostStep
from clew.backends.loop_types import LoopTypes
from clew.cost.policy.sizes import COUNTED_BYTES
from clew.ir.dims import Dim, SymDim, at_least, dim_max, dim_min, product, substitute
from clew.ir.expr import Call
from clew.ir.types import TensorType, is_native, leaves, to_numpy
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.ops.signature import Signature
from clew.runtime.counted import CountedSegment
from clew.runtime.counted_tables import CountedBody, Result
from clew.runtime.plan import BufferKind, BufferRef, Flow
from clew.runtime.program import (
    Instruction,
    Program,
    Repeat,
    RunHost,
    RunSegment,
    Stretch,
    View,
)
from clew.runtime.segment import NativeSegment
from clew.runtime.segment_template import SegmentTemplate, SizedSpec
from clew.runtime.sized_segment import SizedSegment

_COUNTS: Final = ("room", "first_rows")
# Host steps whose result is a view of their first argument.
_VIEWS: Final = ("reshape", "first_rows", "sequence.join_rows", "sequence.joined")
# The memory with the sizes that are read off inputs, until the number of that input is known.
_READ_OFF: Final = BufferRef(BufferKind.INPUT, -1)
_PASSING: Final = (*_COUNTS, *_VIEWS, "size_of", "shape_of")


def joined_counts(program: Program) -> list[Stretch]:
    """Returns the parts of a program that may run as one native call each."""
    found: list[Stretch] = []
    for first, end in _stretches(program.instructions):
        while first < end:
            stretch, first = _longest(program, first, end)
            found += [stretch] if stretch else []
    return found


def _longest(program: Program, first: int, end: int) -> tuple[Stretch | None, int]:
    """Returns the longest part from an instruction on that can be joined, if there is one, and the
    number of the instruction to go on with.
    """
    stop = following = end
    while stop - first > 1 or (stop > first and _counts(program.instructions[first])):
        joiner = _Joiner(program, first, stop)
        try:
            return joiner.joined(), following
        except Refused:
            if joiner.at == first:
                return None, first + 1
            stop, following = joiner.at, joiner.at + 1
    return None, following


def _stretches(instructions: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Yields ranges of consecutive instructions that can be joined, each with a count."""
    first = 0
    for number in range(len(instructions) + 1):
        if number < len(instructions) and _can_join(instructions[number]):
            continue
        if any(map(_counts, instructions[first:number])):
            yield first, number
        first = number + 1


def _counts(instruction: Instruction) -> bool:
    """Whether sizes depend on the results of an instruction."""
    match instruction:
        case Repeat():
            return True
        case RunSegment(segment=NativeSegment() | SizedSegment() as segment):
            return segment.has_stacks
    return _op_of(instruction) in _COUNTS


def _can_join(instruction: Instruction) -> bool:
    match instruction:
        case RunSegment(segment=NativeSegment() | SizedSegment()) | View():
            return True
        case RunHost(function=DeferredKernel()):
            return True
        case Repeat(types=types):
            return types is not None
    return _op_of(instruction) in _PASSING


def _op_of(instruction: Instruction) -> str:
    """Returns the operator of a host step; "" for any other instruction."""
    match instruction:
        case RunHost(function=HostStep(op=Op() as op)):
            return op.name
    return ""


class _Joiner(LoopsJoiner):
    def __init__(self, program: Program, first: int, end: int) -> None:
        super().__init__()
        self._whole, self._first = program, first
        self._range = program.instructions[first:end]
        self.at = first  # the instruction that is being joined
        self._inputs: dict[int, tuple[BufferRef, SizedSpec]] = {}
        # Sizes of inputs that an earlier part of the program decides: numbers of inputs, and axes.
        self._read_off: list[tuple[int, int]] = []
        self._segment_of: NativeSegment | SizedSegment | None = None
        self._current: Instruction | None = None
        self._shown: Sequence[int] = ()  # slots that are read elsewhere
        self._most: dict[str, Dim] = {}  # upper bounds of counts, by name

    def joined(self) -> Stretch:
        """Returns the part of the program. Errors: Refused."""
        inside = {slot: i for i in self._range for slot in i.outputs}
        every, end = self._whole.instructions, self._first + len(self._range)
        others = (*every[: self._first], *every[end:])
        outside = {s for i in others for s in i.inputs} | set(self._whole.outputs)
        shown = [slot for slot in inside if slot in outside]
        roots = dict.fromkeys(self._root(slot, inside) for slot in shown)
        if not shown:
            raise Refused
        self._shown = shown
        outputs = {root: BufferRef(BufferKind.OUTPUT, n) for n, root in enumerate(roots)}
        part = Part(self._whole, {}, {}, outputs)
        for number, instruction in enumerate(self._range, self._first):
            self.at, self._current = number, instruction
            self._instruction(part, number, instruction)
        self.at = self._first  # what follows concerns all of them
        specs = [self._output(part, root, ref) for root, ref in outputs.items()]
        results = tuple([self._result(part, slot, inside, outputs) for slot in shown])
        for place, _ in self._stages:
            self._aim(place)
        template = self._template(specs)
        body = CountedBody(
            template,
            tuple(self._stages),
            tuple([(stage, self._argument(stage, ref), shape)
                   for stage, ref, shape in self._read_as_values]),
            tuple(self._needs),
            results,
            self._capacities,
            tuple(self._read_off),
            self._most,
        )  # fmt: skip
        segment = self._segment_of
        if segment is None or not self._stages:
            raise Refused
        native = CountedSegment(body, Functions(self.functions), segment.pool, guard=segment._guard)
        # One by one, the instructions may also read values that the kernels take only sizes of.
        read = [slot for i in self._range for slot in i.inputs if slot not in inside]
        inputs = dict.fromkeys((*self._inputs, *read))
        given = tuple([slot for slot in inputs if slot not in self._whole.constants])
        return Stretch(self._first, end, given, tuple(shown), native)

    def _template(self, outputs: Sequence[SizedSpec]) -> SegmentTemplate:
        """Returns the segment. Errors: Refused if sizes move positions in constants and states."""
        fixed = (BufferKind.CONSTANT, BufferKind.MOVING)
        args = [ref for e in self._order if isinstance(e, Flow) for ref in e.args]
        for ref in (*args, *(ref for step in self._steps for ref in step.args)):
            if ref.kind in fixed and not isinstance(ref.sized_bytes, int):
                raise Refused
        if sum(size for size in self._arena if isinstance(size, int)) > 8 * COUNTED_BYTES:
            raise Refused
        return SegmentTemplate(
            tuple(self._steps),
            tuple(self._place_sizes()),
            tuple(outputs),
            tuple(self._constants),
            tuple(self._arena),
            tuple(self._order),
            tuple(self._loops),
            self._copied,
        )

    def _argument(self, stage: int, ref: BufferRef) -> int:
        flow = self._order[self._stages[stage][0]]
        assert isinstance(flow, Flow)
        return flow.args.index(ref)

    # --- results ---

    def _root(self, slot: int, inside: Mapping[int, Instruction]) -> int:
        """Returns the slot that owns the memory of a slot's value. Errors: Refused if it is one
        from outside.
        """
        while slot in inside:
            match inside[slot]:
                case View(source=source):
                    slot = source
                case RunHost(function=HostStep(op=Op(name=name))) as host if name in _VIEWS:
                    slot = host.inputs[0]
                case Repeat() as loop if loop.body.outputs[n := loop.outputs.index(slot)] == (
                    loop.body.inputs[1 + n] if n < len(loop.inputs) else -1
                ):
                    slot = loop.inputs[n]
                case RunHost(function=HostStep(op=Op(name="room"))):
                    raise Refused
                case _:
                    return slot
        raise Refused

    def _output(self, part: Part, root: int, ref: BufferRef) -> SizedSpec:
        """Returns the spec of an output; copies its value there if a kernel wrote it elsewhere."""
        value = self._value(part, root)
        self._copy(ref, value.ref, value.size_bytes)
        return SizedSpec(f"out{ref.index}", value.shape, value.dtype.name)

    def _result(
        self,
        part: Part,
        slot: int,
        inside: Mapping[int, Instruction],
        outputs: Mapping[int, BufferRef],
    ) -> Result:
        root, value = self._root(slot, inside), self._value(part, slot)
        whole = self._value(part, root).ref
        offset = value.ref.sized_bytes - whole.sized_bytes
        offset = offset + (value.ref.offset_bytes - whole.offset_bytes)
        return Result(outputs[root].index, offset, value.shape, value.dtype)

    # --- instructions ---

    def _instruction(self, part: Part, number: int, instruction: Instruction) -> None:
        match instruction:
            case RunSegment(segment=NativeSegment() | SizedSegment() as segment):
                self._segment_of = self._segment_of or segment
            case RunHost(function=HostStep(op=Op(name="room")) as step):
                (slot,) = instruction.outputs
                if _reads_elements(self._instructions(part), slot):
                    raise Refused
                size = self._count(part, instruction.inputs[0])
                if step.most is not None:
                    self._most[str(size)] = substitute(step.most, part.names)
                part.values[slot] = Value(self._room(0), np.dtype(bool), (size,))
                return
            case RunHost(function=HostStep(op=Op(name="first_rows"))):
                (slot,) = instruction.outputs
                rows = self._value(part, instruction.inputs[0])
                size = self._count(part, instruction.inputs[1])
                part.values[slot] = replace(rows, shape=(size, *rows.shape[1:]))
                self._most.setdefault(str(size), rows.shape[0])
                self._need(rows.shape[0] - size)
                return
            case RunHost(function=HostStep(op=Op(name="sequence.join_rows"))):
                value = self._value(part, instruction.inputs[0])
                count, of_each, *rest = value.shape
                self._need(count - 1)
                shape = (count * of_each, *rest)
                part.values[instruction.outputs[0]] = replace(value, shape=shape)
                return
            case RunHost(function=HostStep(op=Op(name="sequence.joined"))):
                rows, sizes = (self._value(part, slot) for slot in instruction.inputs)
                self._need(sizes.shape[0] - 1)
                part.values[instruction.outputs[0]] = rows
                return
            case RunHost(function=HostStep(op=Op(name="shape_of"))) as host:
                shape = self._value(part, host.inputs[0]).shape
                ref = self._stored(shape)
                part.values[host.outputs[0]] = Value(ref, np.dtype(np.int64), (len(shape),))
                return
        super()._instruction(part, number, instruction)

    def _size(self, part: Part, host: RunHost) -> None:
        super()._size(part, host)
        (slot,) = host.outputs
        if part.program is self._whole and slot in self._shown:
            if slot not in part.sizes:
                raise Refused
            ref = self._stored([part.sizes[slot]])
            part.values[slot] = Value(ref, np.dtype(np.int64), ())

    def _instructions(self, part: Part) -> Sequence[Instruction]:
        return self._range if part.program is self._whole else part.program.instructions

    def _count(self, part: Part, slot: int) -> SymDim:
        """Adds the step that reads a count and computes what follows from it. Returns the size."""
        count = self._value(part, slot)
        if count.dtype != np.int64 or product(count.shape) != 1:
            raise Refused
        if count.ref not in part.counts:
            part.counts[count.ref] = self._new_count()
            self._stage([count.ref], [part.counts[count.ref]])
        return part.counts[count.ref]

    def _runs(self, part: Part, kernel: DeferredKernel, needs: Sequence[Dim]) -> Dim:
        """A kernel whose results are empty does not run and has no conditions, unless its operands
        must fit the result even then. If the kernel would skip checks of indices, the run ends.
        """
        types = [t for t in leaves(kernel.function.body.type) if isinstance(t, TensorType)]
        shapes = [tuple([substitute(dim, part.names) for dim in t.shape]) for t in types]
        total: Dim = sum([product(shape) for shape in shapes], start=0)
        is_safe = all(at_least(need) for need in needs) or at_least(total, 1)
        if kernel.skips_checks and not at_least(total, 1):
            self._need(total - 1)
            return super()._runs(part, kernel, needs)
        if is_safe or kernel.fits_always:
            return super()._runs(part, kernel, needs)
        for dim in (dim for shape in shapes for dim in shape):
            self._need(dim)
        for need in needs:
            if not at_least(need):
                self._need(dim_max(need, -total))
        return dim_min(total, 1)

    # --- values from outside ---

    def _outside(self, part: Part, slot: int) -> Value:
        if part.program is not self._whole:
            raise Refused
        type_shape, dtype = self._type_of(slot)
        number, shape = len(self._inputs), list(type_shape)
        first = len(self._read_off)
        for axis, dim in enumerate(shape):
            if isinstance(dim, SymDim) and any(name.startswith("?") for name in dim.symbols):
                # An earlier part of the program decides it.
                shape[axis] = self._new_count()
                self._read_off.append((number, axis))
        own = range(first, len(self._read_off))
        if own:
            names = [shape[axis] for _, axis in self._read_off[first:]]
            self._stage([_READ_OFF.beyond(COUNTER_BYTES * n) for n in own], names)
            self._unify(part.names, list(zip(type_shape, shape, strict=True)))
        ref = BufferRef(BufferKind.INPUT, number)
        self._inputs[slot] = ref, SizedSpec(f"in{slot}", tuple(shape), dtype.name)
        return Value(ref, dtype, tuple(shape))

    def _place_sizes(self) -> list[SizedSpec]:
        """Returns the specs of the inputs. Behind those that instructions read is one with the
        sizes that are read off them, if there are any.
        """
        specs = [spec for _, spec in self._inputs.values()]
        if not self._read_off:
            return specs
        for place, _ in self._stages:
            flow = self._order[place]
            assert isinstance(flow, Flow)
            args = [replace(r, index=len(specs)) if _is_read_off(r) else r for r in flow.args]
            self._order[place] = replace(flow, args=tuple(args))
        return [*specs, SizedSpec("sizes", (len(self._read_off),), "int64")]

    def _type_of(self, slot: int) -> tuple[tuple[Dim, ...], np.dtype]:
        """Returns the shape and dtype of a value from outside that the current instruction reads.

        Errors: Refused if no instruction tells.
        """
        assert self._current is not None
        readers = (i for i in self._range if slot in i.inputs)
        for instruction in (self._current, *readers):
            found = self._type_in(instruction, slot)
            if found is not None:
                return found
        raise Refused

    def _type_in(
        self, instruction: Instruction, slot: int
    ) -> tuple[tuple[Dim, ...], np.dtype] | None:
        """Returns the shape and dtype of a value as an instruction that reads it tells."""
        match instruction:
            case Repeat(types=record, inputs=inputs) if record is not None:
                types, number = LoopTypes.of_record(record), inputs.index(slot)
                type_ = types.first[number] if number < len(types.first) else None
                if isinstance(type_, TensorType) and is_native(type_):
                    return type_.shape, to_numpy(type_.dtype)
            case RunSegment(segment=NativeSegment() as segment, inputs=inputs):
                spec = segment.plan.inputs[inputs.index(slot)]
                return spec.shape, np.dtype(spec.dtype)
            case RunSegment(segment=SizedSegment() as sized, inputs=inputs):
                sized_spec = sized.template.inputs[inputs.index(slot)]
                return sized_spec.shape, np.dtype(sized_spec.dtype)
            case RunHost(function=DeferredKernel() as kernel, inputs=inputs):
                number = inputs.index(slot)
                params = kernel.function.params
                type_ = params[number].type if number < len(params) else None
                if isinstance(type_, TensorType) and is_native(type_):
                    return type_.shape, to_numpy(type_.dtype)
        return None


def _is_read_off(ref: BufferRef) -> bool:
    return ref.kind is _READ_OFF.kind and ref.index == _READ_OFF.index


def _reads_elements(instructions: Sequence[Instruction], slot: int) -> bool:
    """Whether an instruction reads more than the size of the result of `room`, which has no memory
    here.
    """
    return any(
        slot in found.inputs and not _takes_size(found, slot)
        for found in instructions
        if not isinstance(found, View)
    ) or any(isinstance(found, View) and found.source == slot for found in instructions)


def _takes_size(instruction: Instruction, slot: int) -> bool:
    """Whether an instruction reads only the size of a value."""
    if not isinstance(instruction, RunHost):
        return False
    if isinstance(instruction.function, HostStep):
        return instruction.function.op.name in ("size_of", "shape_of")
    if not isinstance(instruction.function, DeferredKernel):
        return False
    function, count = instruction.function.function, parameter_count(instruction)
    params = {
        param.id
        for param, given in zip(function.params, instruction.inputs[:count], strict=True)
        if given == slot
    }
    uses = (
        (node, place)
        for node in post_order(function.body)
        for place, arg in enumerate(node.args if isinstance(node, Call) else node.children)
        if arg.id in params
    )
    return all(
        isinstance(node, Call)
        and isinstance(node.op, Op)
        and _parameter(node.op.signature, place) in ("room", "rooms")
        for node, place in uses
    )


def _parameter(signature: Signature, place: int) -> str:
    """Returns the name of an operator's parameter at a place."""
    return signature.inputs[place] if place < len(signature.inputs) else signature.variadic
