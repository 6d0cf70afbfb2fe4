"""Builds the program of a fused function: kernels in segments with host steps between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from clew.backends.cpu.segment_writer import SegmentWriter, Work, counted_trips, limit_of
from clew.backends.engines import Engines
from clew.backends.loop_types import LoopTypes
from clew.backends.regions import layers_of
from clew.build.node_order import in_order
from clew.build.places import Places
from clew.ir.dims import Dim, is_unknown
from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.late_sizes import free_sizes, plain_size, sizes_needed
from clew.ir.types import (
    TensorType,
    TupleType,
    Type,
    UnrankedType,
    is_native,
    leaves,
    to_numpy,
)
from clew.ops.registry import Op
from clew.passes.fusion.views import part_offsets, view_offsets
from clew.passes.fusion.write_in_place import IN_PLACE
from clew.runtime.program import (
    Branch,
    Instruction,
    NoIterations,
    Program,
    Repeat,
    RunHost,
    RunRegion,
    RunSegment,
    View,
)
from clew.runtime.segment_template import SegmentTemplate


class ProgramBuilder:
    """Builds the program of one function; branches and loop bodies get their own builders.

    `engines` run its nodes. `sizes` names sizes that the function is given after its parameters.
    Its parameters and results are in the host's memory.
    """

    def __init__(
        self,
        function: Function,
        engines: Engines,
        sizes: Sequence[str] = (),
    ) -> None:
        self.engines = engines
        self.sizes = tuple(sizes)
        # The slots of sizes that exist as values.
        self.size_slots: dict[str, int] = {}
        # For each size in the shape of a value: the value's slot and the axis. `_noted` is the
        # number of instructions that this covers.
        self._told: dict[str, tuple[int, int]] = {}
        self._noted = 0
        self.function = function
        self.codes = engines.kernels.codes
        self.slots: dict[int, tuple[int, ...]] = {}
        self.types: list[Type] = []
        # The first slot of each field of a tuple, by node.
        self._starts: dict[int, list[int]] = {}
        # For a slot in the memory of another: that slot, and the first element there.
        self.views: dict[int, tuple[int, Dim]] = {}
        # For a slot that kernels write: the segment of the kernels.
        self.made_in: dict[int, int] = {}
        self.constants: dict[int, np.ndarray[Any, Any]] = {}
        self.instructions: list[Instruction] = []
        self.templates: list[SegmentTemplate] = []
        self.segment_calls: list[list[Call]] = []
        self._groups: list[list[Work] | Expr] = []
        self._reused: set[int] = set()
        # Slots of which only one view, of the whole, is read outside their segment, and that view.
        self._shown: dict[int, int] = {}
        # The views that exist, by instructions or as outputs of segments.
        self._viewed: set[int] = set()
        # For native branches and loops, by node: the builders of their parts. For loops and kernels
        # that write in place: the results that are views of initial states, or of operands.
        self.parts: dict[int, tuple[ProgramBuilder, ProgramBuilder]] = {}
        self._passed_on: dict[int, set[int]] = {}
        # Branches and loops that are not native.
        self._apart: set[int] = set()
        # The slots of stacks of native loops whose number of rows depends on data.
        self._growing: set[int] = set()
        self._places = Places(self)

    def collect(self) -> list[int]:
        """Assigns slots to all nodes of the function; returns those of its parameters."""
        inputs = [s for p in self.function.params for s in self._new_slots(p)]
        for name in self.sizes:
            self.size_slots[name] = self._new_slot()
        inputs += self.size_slots.values()
        for node in in_order(self.function):
            self._collect(node)
        return inputs

    def build(self) -> Program:
        """Returns the program."""
        inputs = self.collect()
        outputs = self.slots[self.function.body.id]
        last = self._last_reads(outputs)
        self._shown = self._shown_once(outputs)
        self._viewed.update(self._shown.values())
        for number, group in enumerate(self._groups):
            if isinstance(group, list):
                mine = {self.root(s)[0] for node in group for s in self.slots[node.id]}
                self._segment(group, {s for s in mine if last.get(s, -1) > number})
            else:
                self._host(group)
        self._places.fetch(outputs)
        self._views(set(outputs) | self._host_reads())
        constants = self._loose_constants(outputs)
        self._inputs, self._outputs, self._held = inputs, outputs, constants
        return self._program(inputs, outputs)

    def _program(self, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
        spaces = self._places.spaces
        count = len(self.types)
        return Program(
            _views_first(self.instructions, {*inputs, *self._held}),
            count,
            inputs,
            outputs,
            self._held,
            spaces,
            join=self.engines.kernels.stretches,
        )

    def passing_sizes_on(self, states: int) -> Program:
        """Returns the built program with its sizes as more results, after the first `states`."""
        sizes = [self.size_slots[name] for name in self.sizes]
        outputs = [*self._outputs[:states], *sizes, *self._outputs[states:]]
        return self._program(self._inputs, outputs)

    def _loose_constants(self, outputs: Sequence[int]) -> dict[int, np.ndarray[Any, Any]]:
        """Returns the constants that are read outside segments. Segments hold their constants."""
        read = {self.root(s)[0] for s in (*outputs, *self._host_reads())}
        return {slot: data for slot, data in self.constants.items() if slot in read}

    # --- slots ---

    def _new_slots(self, node: Expr) -> tuple[int, ...]:
        first = len(self.types)
        self.types.extend(leaves(node.type))
        self.slots[node.id] = tuple(range(first, len(self.types)))
        return self.slots[node.id]

    def _new_slot(self) -> int:
        """Returns a new slot for a size."""
        return self.new_slot(TensorType((), "i64"))

    def new_slot(self, type_: Type) -> int:
        """Returns a new slot for a value of a type."""
        self.types.append(type_)
        return len(self.types) - 1

    def _size(self, name: str) -> int | None:
        """Returns the slot of a size; None if the size is not in the shape of any value so far."""
        if name not in self.size_slots:
            self._note_sizes()
            if name in self._told:
                slot, axis = self._told[name]
                target = self.size_slots[name] = self._new_slot()
                self._places.fetch([slot])
                step = self.engines.steps.size_of(axis)
                self.instructions.append(RunHost(step, (slot,), (target,), "size_of"))
        return self.size_slots.get(name)

    def _note_sizes(self) -> None:
        """Records the sizes in the shapes of all values that exist now, with their axes."""
        new = [s for i in self.instructions[self._noted :] for s in i.outputs]
        if not self._noted:
            new = [slot for p in self.function.params for slot in self.slots[p.id]] + new
        self._noted = len(self.instructions)
        for slot in new:
            for axis, dim in enumerate(getattr(self.types[slot], "shape", ())):
                name = plain_size(dim)
                if name is not None:
                    self._told.setdefault(name, (slot, axis))

    def _sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns slots of the sizes that are known here."""
        found = {name: self._size(name) for name in sorted(names)}
        return {name: slot for name, slot in found.items() if slot is not None}

    def _collect(self, node: Expr) -> None:
        """Assigns slots to a node, and adds it to a group if it computes something."""
        match node:
            case Var():
                assert node.id in self.slots, f"variable {node.name} is free"
            case Constant():
                (slot,) = self._new_slots(node)
                self.constants[slot] = node.data
            case Tuple():
                self.slots[node.id] = tuple(s for f in node.fields for s in self.slots[f.id])
            case TupleGetItem():
                self.slots[node.id] = self._field(node)
            case Let():
                self.slots[node.var.id] = self.slots[node.value.id]
                self.slots[node.id] = self.slots[node.body.id]
            case Call(op=Function() as function) if function.id in self.codes:
                slots = self._new_slots(node)
                self._kernels().append(node)
                self.made_in.update(dict.fromkeys(slots, len(self._groups)))
                if IN_PLACE in function.attrs:
                    old = node.args[function.attrs[IN_PLACE]]
                    self.views[slots[0]] = self.slots[old.id][0], 0
                    self._passed_on[node.id] = {0}
            case Call() if (offsets := view_offsets(node)) is not None:
                source = self.slots[node.args[0].id][0]
                for slot, offset in zip(self._new_slots(node), offsets, strict=True):
                    self.views[slot] = source, offset
            case Call() if self._fills(node):
                self._place(node)
            case Call(op=Op(name="sized")):  # it only orders sizes before the value
                self.slots[node.id] = self.slots[node.args[-1].id]
            case If() | While() if self._is_native(node):
                slots = self._new_slots(node)
                self._kernels().append(node)
                self.made_in.update(dict.fromkeys(slots, len(self._groups)))
                if isinstance(node, While):
                    self._pass_on(node)
                    if counted_trips(node) is None:
                        self._growing.update(slots[len(slots) - node.scans :])
            case Call() | If() | While():
                self._new_slots(node)
                self._groups.append(node)
            case Function():
                pass

    def _kernels(self) -> list[Work]:
        """Returns the group of nodes of the current segment."""
        if not self._groups or not isinstance(self._groups[-1], list):
            self._groups.append([])
        group = self._groups[-1]
        assert isinstance(group, list)
        return group

    def _is_native(self, node: If | While) -> bool:
        """Whether a branch or loop can be part of a segment: it consists of kernels, and the sizes
        of its values are known. Keeps the builders of its parts.

        The builder of each level of nested branches asks again, so the answer no is kept: the work
        would otherwise be quadratic in the depth.
        """
        if node.id in self._apart:
            return False
        if not self._collects_parts(node):
            self._apart.add(node.id)
            return False
        return True

    def _collects_parts(self, node: If | While) -> bool:
        functions = (node.then, node.orelse) if isinstance(node, If) else (node.cond, node.body)
        given = [t for arg in node.children for t in leaves(arg.type) if arg not in functions]
        passed = [t for f in functions for p in f.params for t in leaves(p.type)]
        made = [t for f in functions for t in leaves(f.body.type)]
        results = leaves(node.type)[: len(given)] if isinstance(node, While) else leaves(node.type)
        for type_ in (*given, *passed, *made, *results):
            if not isinstance(type_, TensorType) or not is_native(type_):
                return False
            if any(map(is_unknown, type_.shape)):
                return False
        if isinstance(node, While) and not _keeps_types(node):
            return False
        if isinstance(node, If) and leaves(node.then.body.type) != leaves(node.type):
            return False
        parts = [self._inner(function, ()) for function in functions]
        for part in parts:
            part.collect()
            if part._growing or any(not isinstance(group, list) for group in part._groups):
                return False
        self.parts[node.id] = parts[0], parts[1]
        return True

    def fixed_states(self, node: While) -> set[int]:
        """Returns the states (leaves) of a native loop that its body does not change."""
        _, body = self.parts[node.id]
        states = [s for p in body.function.params[1:] for s in body.slots[p.id]]
        results = body.slots[body.function.body.id]
        return {n for n, s in enumerate(states) if body.root(results[n]) == (s, 0)}

    def _pass_on(self, node: While) -> None:
        """Makes results of a native loop that its body does not change views of initial states."""
        fixed = self._passed_on[node.id] = self.fixed_states(node)
        init = self.reads(node)
        for n in fixed:
            self.views[self.slots[node.id][n]] = init[n], 0

    def whole_group(self) -> Sequence[Work]:
        """Returns the nodes of the function, all of which are native."""
        assert all(isinstance(group, list) for group in self._groups)
        assert len(self._groups) <= 1
        return self._groups[0] if self._groups else []  # type: ignore[return-value]

    def _field(self, node: TupleGetItem) -> tuple[int, ...]:
        assert isinstance(node.value.type, TupleType)
        starts = self._starts.get(node.value.id)
        if starts is None:
            counts = [len(leaves(t)) for t in node.value.type.fields]
            starts = self._starts[node.value.id] = [0, *accumulate(counts)]
        return self.slots[node.value.id][starts[node.index] : starts[node.index + 1]]

    def root(self, slot: int) -> tuple[int, Dim]:
        """Returns the slot that owns the memory of a slot's value, and its first element there.

        All slots on the way then refer to the owner, so that chains of views are walked once.
        """
        way: list[int] = []
        while slot in self.views:
            way.append(slot)
            slot = self.views[slot][0]
        offset: Dim = 0
        for view in reversed(way):
            offset = offset + self.views[view][1]
            self.views[view] = slot, offset
        return slot, offset

    def _fills(self, node: Call) -> bool:
        """Whether all arguments of a call can be computed at their places in its result.

        After `PlaceParts`, this holds for every concatenation outside kernels. Without that pass,
        some concatenations run on the host.
        """
        if part_offsets(node) is None:
            return False
        roots = [self.root(self.slots[a.id][0])[0] for a in node.args]
        whole = [self.tensor(r).size for r in roots] == [a.tensor.size for a in node.args]
        segments = {self.made_in.get(r) for r in roots}
        return whole and len(set(roots)) == len(roots) and segments == {len(self._groups)}

    def _place(self, node: Call) -> None:
        """Places the arguments of a call in the memory of its result."""
        offsets = part_offsets(node)
        assert offsets is not None
        (slot,) = self._new_slots(node)
        for arg, offset in zip(node.args, offsets, strict=True):
            self.views[self.root(self.slots[arg.id][0])[0]] = slot, offset
        self.made_in[slot] = len(self._groups)

    def reads(self, node: Expr) -> list[int]:
        """Returns the slots that a node reads."""
        match node:
            case Call():
                used: Sequence[Expr] = node.args
            case If():
                used = (node.cond, *node.args)
            case While():
                used = node.init
            case _:
                raise AssertionError(node)
        return [s for a in used for s in self.slots[a.id]]

    def _host_reads(self) -> set[int]:
        hosts = [g for g in self._groups if not isinstance(g, list)]
        return {s for g in hosts for s in self.reads(g)}

    def _last_reads(self, outputs: Sequence[int]) -> dict[int, int]:
        """Returns the number of the last group that reads each slot that owns memory. Outputs are
        read after all groups.
        """
        last: dict[int, int] = {}
        for number, group in enumerate(self._groups):
            for node in group if isinstance(group, list) else [group]:
                for slot in self.reads(node):
                    last[self.root(slot)[0]] = number
        last.update(dict.fromkeys((self.root(s)[0] for s in outputs), len(self._groups)))
        return last

    # --- instructions ---

    def _segment(self, group: list[Work], needed: set[int]) -> None:
        """Adds the segment of a group of kernel calls, branches and loops."""
        self.reuse_dying(group, needed)
        outputs = [s for s in self.written(group) if s in needed or s in self._growing]
        writer = SegmentWriter(self, outputs)
        template = writer.write(group)
        self.templates.append(template)
        self.segment_calls.append(writer.calls)
        segment = self.engines.kernels.segment(template)
        self._places.fetch(writer.inputs)
        shown = tuple(self.shown_as(slot) for slot in outputs)
        self.instructions.append(RunSegment(segment, tuple(writer.inputs), shown))

    def shown_as(self, slot: int) -> int:
        """Returns the slot to which a segment's output goes: a view of the output, if only that
        view is read outside.
        """
        return self._shown.get(slot, slot)

    def _shown_once(self, outputs: Sequence[int]) -> dict[int, int]:
        """Returns the slots of which only one view, of the whole, is read outside the segment that
        writes them; each with that view.
        """
        wanted = set(outputs) | self._host_reads()
        inside = {
            self.root(s)[0]
            for number, group in enumerate(self._groups, 1)
            if isinstance(group, list)
            for node in group
            for s in self.reads(node)
            if self.made_in.get(self.root(s)[0]) != number
        }
        apart = wanted | inside
        views: dict[int, list[int]] = {}
        for slot in wanted & self.views.keys():
            root, offset = self.root(slot)
            views.setdefault(root, []).append(slot if offset == 0 else -1)
        return {
            root: found[0]
            for root, found in views.items()
            if root in self.made_in and root not in apart
            if len(found) == 1 and found[0] >= 0
            if self.size_bytes(root) == self.size_bytes(found[0])
        }

    def written(self, group: Sequence[Work]) -> dict[int, None]:
        """Returns the slots written by a group that own memory."""
        found = dict[int, None]()
        for node in group:
            shown = self._passed_on.get(node.id, ())
            for number, slot in enumerate(self.slots[node.id]):
                if number not in shown:
                    found[self.root(slot)[0]] = None
        return found

    def reuse_dying(self, group: Sequence[Work], needed: set[int]) -> None:
        """Lets results reuse the memory of arguments that are not read afterwards, if the kernel
        allows it (`KernelCode.in_place`).
        """
        last: dict[int, int] = {}
        uses = [[self.root(s)[0] for s in self.reads(call)] for call in group]
        for position, roots in enumerate(uses):
            last.update(dict.fromkeys(roots, position))
        made: set[int] = set()
        for position, call in enumerate(group):
            reads, writes = self.reads(call), self.slots[call.id]
            for source, target in self._in_place(call):
                dying, result = reads[source], writes[target]
                root, offset = self.root(dying)
                free = root in made and root not in needed and last[root] == position
                alone = uses[position].count(root) == 1
                fits = self.size_bytes(root) == self.size_bytes(result)
                if free and alone and fits and offset == 0 and result not in self._reused:
                    self.views[root] = result, 0
                    self._reused.add(result)
            made.update(self.written([call]))

    def _in_place(self, node: Work) -> tuple[tuple[int, int], ...]:
        """Returns the pairs of operand and result that may share memory (see `KernelCode`)."""
        if not isinstance(node, Call):
            return ()
        assert isinstance(node.op, Function)
        return self.codes[node.op.id].in_place

    def size_bytes(self, slot: int) -> Dim:
        """Returns the bytes of a slot's value."""
        return self.tensor(slot).memory_bytes

    def tensor(self, slot: int) -> TensorType:
        """Returns the tensor type of a slot's value."""
        type_ = self.types[slot]
        assert isinstance(type_, TensorType)
        return type_

    def _views(self, wanted: set[int]) -> None:
        """Adds the views in `wanted` that do not exist yet."""
        for slot in sorted(wanted):
            if slot in self._viewed or slot not in self.views:
                continue
            self._viewed.add(slot)
            source, offset = self.root(slot)
            self._places.fetch([source])
            self.instructions.append(View(source, slot, self.tensor(slot).shape, offset))

    def _host(self, node: Expr) -> None:
        """Adds an operator, region, branch or loop that runs between segments."""
        reads = self.reads(node)
        if isinstance(node, Call) and isinstance(node.op, Function) and node.op.backend:
            self._region(node, reads)
            return
        self._places.fetch(reads)
        self._views(set(reads))
        outputs = self.slots[node.id]
        match node:
            case Call(op=Op()):
                sizes = self._sizes(sizes_needed(node))
                step = self.engines.steps.step(node, tuple(sizes))
                self._run_on_host(step, [*reads, *sizes.values()], node)
            case Call():
                sizes = self._sizes(sizes_needed(node))
                kernel = self.engines.kernels.deferred(node, tuple(sizes))
                self._run_on_host(kernel, [*reads, *sizes.values()], node)
            case If():
                sizes = self._sizes(free_sizes(node.then) | free_sizes(node.orelse))
                then, orelse = (self._inner(f, sizes).build() for f in (node.then, node.orelse))
                inputs = (*reads, *sizes.values())
                self.instructions.append(Branch(then, orelse, inputs, outputs, node.id))
            case While():
                self._loop(node, reads, outputs)

    def _loop(self, node: While, reads: list[int], outputs: tuple[int, ...]) -> None:
        """Adds a loop. Sizes from outside that its parts need become states that never change."""
        sizes = self._sizes(free_sizes(node.cond) | free_sizes(node.body))
        states = len(node.init)
        body = self._inner(node.body, sizes)
        cond, program = self._inner(node.cond, sizes).build(), body.build()
        if sizes:
            program = body.passing_sizes_on(states)
            outputs = (*outputs[:states], *(self._new_slot() for _ in sizes), *outputs[states:])
        told = {
            name: (n, axis)
            for n, type_ in enumerate(t for p in node.body.params[1:] for t in leaves(p.type))
            for axis, dim in enumerate(getattr(type_, "shape", ()))
            if (name := plain_size(dim)) is not None
        }
        empty = tuple(_no_iterations(t, told) for t in leaves(node.type)[states:])
        inputs = (*reads, *sizes.values())
        loop = Repeat(cond, program, inputs, outputs, node.scans, empty, node.id)
        before = [t for p in node.body.params[1:] for t in leaves(p.type)]
        made = leaves(node.body.body.type)
        first = [t for value in node.init for t in leaves(value.type)]
        limit = limit_of(node)
        types = LoopTypes(before, made[:states], made[states:], tuple(sizes), limit, first)
        self.instructions.append(self.engines.kernels.loop(loop, types))

    def _region(self, node: Call, reads: Sequence[int]) -> None:
        """Adds a region, and before it the copies of its operands to its backend's memory."""
        assert isinstance(node.op, Function)
        run = self.engines.regions.region(node)
        inputs = [self._places.there(slot, run.space) for slot in reads]
        outputs = [self._places.made_there(slot, run.space) for slot in self.slots[node.id]]
        about = (run.name, layers_of(node.op), node.id, run.backend)
        self.instructions.append(RunRegion(run, tuple(inputs), tuple(outputs), *about))

    def views_of(self, slots: set[int]) -> None:
        """Ensures that values are in host memory, and adds the views among them."""
        self._places.fetch(slots)
        self._views(slots)

    def _run_on_host(self, function: Callable[..., Any], reads: list[int], node: Call) -> None:
        slots, layers = self.slots[node.id], tuple(node.span.layers)
        step = RunHost(function, tuple(reads), slots, node.title, layers, node.id)
        self.instructions.append(step)

    def _inner(self, function: Function, sizes: Iterable[str]) -> ProgramBuilder:
        """Returns the builder of a branch or of a part of a loop. It appends its segments to those
        of this builder.
        """
        inner = ProgramBuilder(function, self.engines, tuple(sizes))
        inner.templates, inner.segment_calls = self.templates, self.segment_calls
        inner._apart = self._apart
        return inner


def _keeps_types(node: While) -> bool:
    """Whether each state of a loop has one type: before it, in each iteration and after it."""
    before = [t for arg in node.init for t in leaves(arg.type)]
    params = [t for p in node.body.params[1:] for t in leaves(p.type)]
    after = leaves(node.body.body.type)[: len(before)]
    return before == params == list(after)


def _no_iterations(type_: Type, told: Mapping[str, tuple[int, int]]) -> NoIterations:
    """Returns the stacked results of a loop that runs no iterations. `told` maps unknown sizes to
    states whose shapes contain them; others are zero.
    """
    if isinstance(type_, UnrankedType):
        return NoIterations((0,), to_numpy(type_.dtype))
    assert isinstance(type_, TensorType)
    sizes = tuple(told.get(plain_size(d) or "", 0) if is_unknown(d) else d for d in type_.shape[1:])
    return NoIterations((0, *sizes), to_numpy(type_.dtype))


def _views_first(instructions: Sequence[Instruction], given: set[int]) -> list[Instruction]:
    """Returns the instructions with views of given values in front, so that what follows them can
    be one native call (`Stretch`).
    """
    views: list[Instruction] = []
    others: list[Instruction] = []
    for instruction in instructions:
        if isinstance(instruction, View) and instruction.source in given:
            views.append(instruction)
            given.add(instruction.target)
        else:
            others.append(instruction)
    return [*views, *others]
