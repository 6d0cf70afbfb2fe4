"""What joiners of native steps share: a sequence of instructions, each a segment, a view of its
results, or a kernel of sizes from the run, becomes one sequence of native steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.flow_writer import COUNTER_BYTES, FlowWriter
from clew.backends.host.steps import HostStep
from clew.ir.dims import Dim, SymDim, is_unknown, product, substitute
from clew.ir.late_sizes import plain_size
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.runtime.plan import BufferKind, BufferRef, BufferSpec, Flow, FlowKind, SegmentPlan, Step
from clew.runtime.program import Instruction, Program, RunHost, RunSegment, View
from clew.runtime.segment import NativeSegment
from clew.runtime.segment_template import LoopTemplate, SegmentTemplate, SizedSpec
from clew.runtime.sized_segment import SizedSegment


@dataclass(frozen=True)
class Functions:
    """The functions that the steps call: by name, what returns the address."""

    functions: Mapping[str, Callable[[str], int]]

    def address(self, symbol: str) -> int:
        """Returns the address of a function."""
        return self.functions[symbol](symbol)


class Refused(Exception):
    """The instructions are no sequence of native steps."""


@dataclass(frozen=True)
class Value:
    """A value in memory."""

    ref: BufferRef
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]

    @property
    def size_bytes(self) -> Dim:
        """The size of the whole value."""
        return product(self.shape) * self.dtype.itemsize


@dataclass
class Part:
    """A program, what the names of its sizes stand for, its values by slot, and the places that
    wait for some of them. `sizes` are those of its slots that hold one, and `counts` those that
    the run reads in memory.
    """

    program: Program
    names: dict[str, Dim]
    values: dict[int, Value]
    wanted: Mapping[int, BufferRef]
    sizes: dict[int, Dim] = field(default_factory=dict)
    counts: dict[BufferRef, SymDim] = field(default_factory=dict)


class StepsJoiner(FlowWriter):
    """Joins instructions to native steps."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Step] = []
        self._constants: list[np.ndarray[Any, Any]] = []
        # Shapes that are read as values: where they go.
        self._shapes: list[tuple[BufferRef, tuple[Dim, ...]]] = []
        # What must be at least 0 so that all kernels serve.
        self._needs: dict[SymDim, None] = {}
        self.functions: dict[str, Callable[[str], int]] = {}
        self._loops: list[LoopTemplate] = []
        self._buffers = 0  # the moving buffers of all loops

    def _began(self, step: int) -> None:
        """Is told that a step of the current instruction was added, and its number there."""

    def _outside(self, part: Part, slot: int) -> Value:
        """Returns a value from outside. Errors: Refused if it is not in memory."""
        raise Refused

    def _add(self, part: Part) -> None:
        """Adds the steps of a program."""
        for number, instruction in enumerate(part.program.instructions):
            self._instruction(part, number, instruction)

    def _instruction(self, part: Part, number: int, instruction: Instruction) -> None:
        """Adds the steps of an instruction, given its number in the program."""
        match instruction:
            case RunSegment():
                self._segment(part, instruction)
            case View():
                value = self._value(part, instruction.source)
                shape = tuple([substitute(dim, part.names) for dim in instruction.shape])
                skipped = substitute(instruction.offset, part.names) * value.dtype.itemsize
                ref = value.ref.beyond(skipped)
                part.values[instruction.target] = Value(ref, value.dtype, shape)
            case RunHost(function=DeferredKernel()):
                self._kernel(part, instruction)
            case RunHost(function=HostStep(op=Op(name="size_of"))):
                self._size(part, instruction)
            case RunHost(function=HostStep(op=Op(name="shape_of"))):
                self._shape(part, instruction)
            case RunHost(function=HostStep(op=Op(name="reshape"))):
                self._reshape(part, instruction)
            case _:
                raise Refused

    def _kernel(self, part: Part, host: RunHost) -> None:
        """Adds the steps of a kernel of sizes from the run."""
        kernel = host.function
        assert isinstance(kernel, DeferredKernel)
        found = kernel.for_all_sizes()
        if found is None:
            raise Refused
        template = found.template
        self._bind(part, host, kernel)
        names = {name: substitute(dim, part.names) for name, dim in found.meant.items()}
        from_zero = template.from_zero
        # A name that is still unknown occurs only in the type of a result.
        needs = [
            dim - (name not in from_zero)
            for name, dim in names.items()
            if not is_unknown(dim) or dim != found.meant[name]
        ]
        needs += [substitute(condition, names) for condition in template.conditions]
        runs = self._runs(part, kernel, needs)
        program = template.program
        given = host.inputs[: len(program.inputs)]
        values = {
            own: self._value(part, slot) for own, slot in zip(program.inputs, given, strict=True)
        }
        results = list(zip(program.outputs, host.outputs, strict=True))
        wanted = {own: part.wanted[slot] for own, slot in results if slot in part.wanted}
        inner = Part(program, names, values, wanted)
        first = len(self._steps)
        self._add(inner)
        if runs != 1:
            self._steps[first:] = [_at_most(step, runs) for step in self._steps[first:]]
        for own, slot in results:
            part.values[slot] = self._value(inner, own)

    def _bind(self, part: Part, host: RunHost, kernel: DeferredKernel) -> None:
        """Binds the names in a kernel's parameters to the sizes of its arguments, and requires that
        the arguments have the parameters' shapes.
        """
        given = host.inputs[: parameter_count(host)]
        pairs: list[tuple[Dim, Dim]] = []
        for slot, param in zip(given, kernel.function.params, strict=True):
            value = self._value(part, slot)
            if not isinstance(param.type, TensorType) or param.type.rank != len(value.shape):
                raise Refused
            pairs += zip(param.type.shape, value.shape, strict=True)
        told = zip(kernel.sizes, host.inputs[len(given) :], strict=True)
        for name, size in [(n, part.sizes[s]) for n, s in told if s in part.sizes]:
            pairs.append((SymDim.symbol(name), size))
        self._unify(part.names, pairs)

    def _unify(self, names: dict[str, Dim], pairs: Sequence[tuple[Dim, Dim]]) -> None:
        """Binds unknown size names, given pairs of dimensions and their sizes, and requires that
        all pairs are equal.
        """
        for dim, size in pairs:
            name = plain_size(dim)
            if name is not None and name not in names and dim != size:
                names[name] = size
        for dim, size in pairs:
            self._need_equal(substitute(dim, names), size)

    def _need_equal(self, a: Dim, b: Dim) -> None:
        """Requires that two sizes are equal."""
        if a != b:
            self._need(a - b)
            self._need(b - a)

    def _runs(self, part: Part, kernel: DeferredKernel, needs: Sequence[Dim]) -> Dim:
        """Requires the conditions of a kernel: numbers that must be at least 0. Returns 1, or a
        factor that is 0 if the kernel must not run because its results are empty.
        """
        for dim in needs:
            self._need(dim)
        return 1

    def _size(self, part: Part, host: RunHost) -> None:
        """Records the size that a host step returns."""
        assert isinstance(host.function, HostStep)
        if host.inputs[0] in part.values:
            value, axis = part.values[host.inputs[0]], host.function.attrs["axis"]
            part.sizes[host.outputs[0]] = value.shape[axis]

    def _shape(self, part: Part, host: RunHost) -> None:
        """Has the shape of a value written to memory."""
        shape = self._value(part, host.inputs[0]).shape
        ref = self._room(COUNTER_BYTES * len(shape))
        self._shapes.append((ref, shape))
        part.values[host.outputs[0]] = Value(ref, np.dtype(np.int64), (len(shape),))

    def _reshape(self, part: Part, host: RunHost) -> None:
        """Adds another shape of a value in the same memory."""
        assert isinstance(host.function, HostStep)
        value, shape = self._value(part, host.inputs[0]), host.function.attrs["shape"]
        if not all(isinstance(size, (int, SymDim)) for size in shape):
            raise Refused
        names = host.function.sizes
        told = zip(names, host.inputs[len(host.inputs) - len(names) :], strict=True)
        known = [(n, part.sizes[s]) for n, s in told if s in part.sizes]
        self._unify(part.names, [(SymDim.symbol(n), size) for n, size in known])
        shown = tuple([substitute(size, part.names) for size in shape])
        if product(shown) != product(value.shape):
            raise Refused
        part.values[host.outputs[0]] = Value(value.ref, value.dtype, shown)

    def _segment(self, part: Part, instruction: RunSegment) -> None:
        """Adds the steps of a segment."""
        segment, names = instruction.segment, part.names
        assert isinstance(segment, (NativeSegment, SizedSegment))
        plan: SegmentPlan | SegmentTemplate
        plan = segment.plan if isinstance(segment, NativeSegment) else segment.template
        stacks = _stacks_of(plan)
        rows = {loop: self._rows() for loop in dict.fromkeys(stacks.values())}
        inputs = [self._value(part, slot).ref for slot in instruction.inputs]
        outputs = []
        specs: Sequence[BufferSpec | SizedSpec] = plan.outputs
        # The outputs in which sizes decide where steps write: they must have memory of their own.
        placed_by_size = {
            ref.index
            for step in plan.steps
            for ref in step.args
            if ref.kind is BufferKind.OUTPUT and not isinstance(ref.sized_bytes, int)
        }
        for number, (slot, spec) in enumerate(zip(instruction.outputs, specs, strict=True)):
            dtype = np.dtype(spec.dtype)
            shape = tuple([substitute(dim, names) for dim in spec.shape])
            if spec.is_stack:
                shape = (rows[stacks[number]], *shape)
            ref = part.wanted.get(slot)
            if ref is None or (ref.kind is BufferKind.MOVING and number in placed_by_size):
                ref = self._room(product(shape) * dtype.itemsize)
            part.values[slot] = Value(ref, dtype, shape)
            outputs.append(ref)
        arena, constants = len(self._arena), len(self._constants)
        self._arena += [substitute(size, names) for size in arena_of(plan)]
        self._constants += plan.constants
        bases = {
            BufferKind.CONSTANT: constants,
            BufferKind.ARENA: arena,
            BufferKind.MOVING: self._buffers,
        }

        def placed(args: Iterable[BufferRef]) -> tuple[BufferRef, ...]:
            found = []
            for ref in args:
                match ref.kind:
                    case BufferKind.INPUT:
                        base = inputs[ref.index]
                    case BufferKind.OUTPUT:
                        base = outputs[ref.index]
                    case _:
                        base = BufferRef(ref.kind, bases[ref.kind] + ref.index)
                distance = substitute(ref.sized_bytes, names)
                found.append(base.beyond(ref.offset_bytes).beyond(distance))
            return tuple(found)

        first, loops = len(self._order), len(self._loops)
        clocks: dict[int, BufferRef] = {}
        copied = plan.copied if isinstance(plan, SegmentTemplate) else {}
        for place, entry in enumerate(plan.order or range(len(plan.steps))):
            if isinstance(entry, Flow):
                loop = entry.loop + loops if entry.loop >= 0 else entry.loop
                target, args = entry.target + first, placed(entry.args)
                self._flow(replace(entry, args=args, target=target, loop=loop))
                if entry.kind is FlowKind.BEGIN:
                    clocks[entry.loop] = args[0]
                if place in copied:
                    self._copied[first + place] = substitute(copied[place], names)
                continue
            step = plan.steps[entry]
            code = step.code.meaning(names)
            for point in code.entries:
                self.functions[point.symbol] = segment.function_address
            self._order.append(len(self._steps))
            self._steps.append(Step(code, placed(step.args), step.label, step.checked))
            self._began(entry)
        for inner in plan.loops:
            row_bytes = tuple([substitute(size, names) for size in inner.rows_bytes])
            trips = None if inner.trips is None else substitute(inner.trips, names)
            if not all(isinstance(number, int) for number in (*row_bytes, trips or 0)):
                raise Refused
            begin = inner.first + bases[BufferKind.MOVING]
            states = (0,) * len(inner.states_bytes)  # only the plan's checks would read sizes
            self._loops.append(LoopTemplate(begin, states, row_bytes, trips, inner.reads_trips))
        self._buffers += sum(inner.moving for inner in self._loops[loops:])
        for loop, count in rows.items():
            self._stacked(loop + loops, clocks[loop], count)

    def _rows(self) -> SymDim:
        """Returns the name for the number of rows that a loop stacks. Errors: Refused if the run
        does not find sizes.
        """
        raise Refused

    def _stacked(self, loop: int, clock: BufferRef, rows: SymDim) -> None:
        """Adds the step that reads the number of stacked rows from the counter of a loop."""

    # --- memory ---

    def _value(self, part: Part, slot: int) -> Value:
        """Returns the value of a slot. Errors: Refused if it is not in memory."""
        if slot not in part.values and slot in part.program.constants:
            data = part.program.constants[slot]
            ref = BufferRef(BufferKind.CONSTANT, len(self._constants))
            self._constants.append(np.ascontiguousarray(data))
            part.values[slot] = Value(ref, data.dtype, data.shape)
        if slot not in part.values:
            part.values[slot] = self._outside(part, slot)
        return part.values[slot]

    def _need(self, dim: Dim) -> None:
        if isinstance(dim, SymDim):
            self._needs[dim] = None
        elif dim < 0:
            raise Refused


def _stacks_of(plan: SegmentPlan | SegmentTemplate) -> dict[int, int]:
    """Returns the outputs with unknown numbers of rows, each with the loop that stacks them."""
    found: dict[int, int] = {}
    for entry in plan.order:
        if isinstance(entry, Flow) and entry.kind is FlowKind.BEGIN:
            loop = plan.loops[entry.loop]
            count = len(loop.rows_bytes) if loop.trips is None else 0
            refs = entry.args[len(entry.args) - count :]
            found.update((ref.index, entry.loop) for ref in refs)
    return found


def _at_most(step: Step, runs: Dim) -> Step:
    """Returns a step whose grids are multiplied by a factor."""
    entries = tuple([replace(entry, grid=entry.grid * runs) for entry in step.code.entries])
    return replace(step, code=replace(step.code, entries=entries))


def arena_of(plan: SegmentPlan | SegmentTemplate) -> Sequence[Dim]:
    """Returns the bytes of each arena buffer."""
    if isinstance(plan, SegmentTemplate):
        return plan.arena_bytes
    return [buffer.size_bytes for buffer in plan.arena_buffers]


def parameter_count(host: RunHost) -> int:
    """Returns the number of arguments of a deferred kernel that are no sizes."""
    assert isinstance(host.function, DeferredKernel)
    return len(host.function.function.params)
