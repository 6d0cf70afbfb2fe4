"""Emits scalar expressions, in one lane or in as many as the vector loop around them has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from clew.codegen import arith, transpose, vectors
from clew.codegen.address import (
    Addresses,
    Bound,
    Place,
    element_bytes,
    memory_type,
    ramp,
    stored_dtype,
)
from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.runs import read_runs, runs_of
from clew.codegen.shared import Plan, plan_of, reads_in_reads
from clew.codegen.vectors import active_lanes, literal_mask, mask_lanes
from clew.codegen.vmath import intrinsic
from clew.ir.types import is_float
from clew.loop.affine import Linear, Simplifier
from clew.loop.ir import Buffer, buffer_loads
from clew.support.errors import ScheduleError
from clew.te.expr import (
    INDEX,
    Binary,
    Bitcast,
    Cast,
    Imm,
    Index,
    Inlined,
    Intrinsic,
    Load,
    Scalar,
    Select,
    Unary,
    shared_parts,
)

# A register tile's element: its buffer and the literal offset of its first lane.
Register = tuple[int, int]
_TRUE: Final = "true"
# How many nodes an expression has spelled out, from where on what it repeats is computed ahead: few
# where memory says where in memory to read where to read.
_CHAIN: Final = 3
_FEW_NODES: Final = 64
_MANY_NODES: Final = 1024


class Values(Addresses):
    """Evaluates expressions. Holds what register tiles contain and which loads are still good."""

    def __init__(
        self,
        builder: Builder,
        simplifier: Simplifier,
        lines: dict[int, int],
        masks_cheap: bool = False,
    ) -> None:
        super().__init__(builder, simplifier)
        self.lines = lines
        self.masks_cheap = masks_cheap
        self.lanes = 1
        self.mask: Value | None = None
        self.registers: dict[Register, Value] = {}
        self._widths: dict[Register, int] = {}
        self.loads: dict[tuple[object, ...], Value] = {}
        self.memo: dict[int, Value] = {}
        self.shared: dict[int, Value] = {}
        self.steps: dict[tuple[int, ...], Value] = {}
        self.anywhere = False
        self._plans: dict[int, tuple[Scalar, Plan | None]] = {}

    # --- expressions ---

    def statement(self, expr: Scalar) -> Value:
        """Returns the value of a statement's expression; shared parts are emitted once."""
        return self.value(self.begin(expr))

    def forget_statement(self) -> None:
        """Drops what was computed for one statement."""
        self.memo, self.shared, self.steps = {}, {}, {}

    def begin(self, expr: Scalar) -> Scalar:
        """Begins a statement: returns what to evaluate for its expression.

        Parts that would be computed in many branches or under many masks are computed now, once;
        those that might not be wanted read inside of their buffers whatever their indices are.
        """
        self.forget_statement()
        found = self._plans.get(id(expr))
        if found is None:
            found = self._plans[id(expr)] = (expr, self._plan(expr))
        plan = found[1]
        if plan is None:
            return expr
        line = self.b.line
        for part in plan.parts:
            self.b.line = self.lines.get(id(part), line)
            self.anywhere = id(part) not in plan.certain
            self.shared[id(part)] = self.value(part)
        self.b.line, self.anywhere = line, False
        return plan.expr

    def _plan(self, expr: Scalar) -> Plan | None:
        steps = _FEW_NODES if reads_in_reads(expr) >= _CHAIN else _MANY_NODES
        if not shared_parts(expr, least=steps):
            return None
        images: dict[int, Scalar] = {}
        plan = plan_of(self.simplifier.canonical(expr, images), steps)
        if plan is not None:
            lines = {id(new): self.lines[old] for old, new in images.items() if old in self.lines}
            self.lines = lines | self.lines
        return plan

    def value(self, expr: Scalar) -> Value:
        """Returns an expression's value: one lane if it is the same in all."""
        found = self.memo.get(id(expr))
        if found is None:
            found = self.shared.get(id(expr))
        if found is None:
            found = self._value(expr)
            self.memo[id(expr)] = found
        return found

    def _value(self, expr: Scalar) -> Value:
        if expr.dtype == INDEX and isinstance(expr, (Index, Binary)):
            return self._index_expression(expr)
        match expr:
            case Imm():
                return literal(expr.value, expr.dtype)
            case Load():
                return self.load(expr)
            case Inlined():
                return self._inlined(expr)
            case Select():
                return self._select(expr)
            case Binary():
                return arith.binary(self.b, expr.op, *self._aligned(expr.a, expr.b))
            case Unary():
                return arith.unary(self.b, expr.op, self.value(expr.a))
            case Intrinsic():
                return intrinsic(self.b, expr.name, list(self._aligned(*expr.args)))
            case Cast(
                dtype="bf16", a=Bitcast(a=Binary(op="and", a=whole, b=Imm(value=0xFFFF0000)))
            ) if whole.dtype == "u32":
                return arith.upper_half(self.b, self.value(whole))
            case Cast():
                return arith.cast(self.b, expr.dtype, self.value(expr.a))
            case Bitcast():
                return arith.bitcast(self.b, expr.dtype, self.value(expr.a))
        raise AssertionError(type(expr))

    def _inlined(self, expr: Inlined) -> Value:
        before = self.b.line
        self.b.line = self.lines.get(id(expr), before)
        value = self.value(expr.value)
        self.b.line = before
        return value

    def _aligned(self, *exprs: Scalar) -> tuple[Value, ...]:
        """Returns the values with equal lanes."""
        values = [self.value(e) for e in exprs]
        return tuple(self.widen(values, max(v.lanes for v in values)))

    def widen(self, values: list[Value], lanes: int) -> list[Value]:
        """Returns the values in `lanes` lanes; a value broadcast before is not broadcast again."""
        return [self.broadcast(v, lanes) for v in values]

    def broadcast(self, value: Value, lanes: int) -> Value:
        """Returns a value in all lanes."""
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):
            known = _literal_splat(value, lanes)
            if known is not None:
                return known
        key = ("splat", value.text, lanes)
        found = self.loads.get(key)
        if found is None:
            found = self.loads[key] = self.b.splat(value, lanes)
        return found

    def _index_expression(self, expr: Scalar) -> Value:
        if self.leaves(expr).reads_memory:
            return self.load_value(expr)
        form = self.simplifier.linear(expr)
        if not any(self.uses_lane(atom) for atom, _ in form.terms):
            known = self.constant_of(self.simplifier.rebuild(form))
            if known is not None:
                return literal(known, INDEX)
        return self._sum(form)

    def _sum(self, form: Linear) -> Value:
        total: Value | None = None
        const = form.const
        for atom, coefficient in form.terms:
            known = self.constant_of(atom)
            if known is not None:
                const += known * coefficient
                continue
            term = self._lane_atom(atom)
            if coefficient != 1:
                term = self._binary("mul", term, literal(coefficient, INDEX))
            total = term if total is None else self._binary("add", total, term)
        if total is None:
            return literal(const, INDEX)
        return self._binary("add", total, literal(const, INDEX)) if const else total

    def _lane_atom(self, atom: Scalar) -> Value:
        if isinstance(atom, Index):
            return self.index_value(atom)
        if self.uses_lane(atom):
            return self.load_value(atom)
        return self.atom_value(atom)[0]

    def _binary(self, op: str, a: Value, b: Value) -> Value:
        lanes = max(a.lanes, b.lanes)
        return arith.binary(self.b, op, self.broadcast(a, lanes), self.broadcast(b, lanes))

    def load_value(self, expr: Scalar) -> Value:
        """Returns an index expression's value node by node."""
        match expr:
            case Index():
                return self.index_value(expr)
            case Binary():
                key = (id(expr), *self.numbers(expr))
                found = self.shared.get(id(expr)) or self.steps.get(key)
                if found is None:
                    a, b = self.load_value(expr.a), self.load_value(expr.b)
                    found = self.steps[key] = self._binary(expr.op, a, b)
                return found
        if self.leaves(expr).reads_memory:
            return self.value(expr)
        # It may be computed ahead of loops, where what was computed in them is not known yet.
        before, self.memo, self.shared = (self.memo, self.shared), {}, {}
        found = self.value(expr)
        self.memo, self.shared = before
        return found

    # --- conditions ---

    def _select(self, expr: Select) -> Value:
        known = self.lanes_where(expr.cond, self.lanes)
        if known is not None and all(k is known[0] for k in known):
            return self.value(expr.a if known[0] else expr.b)
        cond = self.value(expr.cond) if known is None else literal_mask(known)
        loads = [load for side in (expr.a, expr.b) for load in buffer_loads(side, self.shared)]
        guards = not self.anywhere and any(id(load) not in self.memo for load in loads)
        if guards and cond.lanes == 1:
            masked = self._masked_or_zero(cond, expr)
            return self._branches(cond, expr) if masked is None else masked
        if guards and _is_load_or_zero(expr):
            with self.masked(cond):
                loaded = self.value(expr.a)
            if loaded.lanes > 1:
                return loaded  # lanes that are not active are zero already
        if guards:
            with self.masked(cond):
                a = self.value(expr.a)
            with self.masked(self._inverse(cond)):
                b = self.value(expr.b)
        else:
            a, b = self.value(expr.a), self.value(expr.b)
        lanes = max(cond.lanes, a.lanes, b.lanes)
        cond, a, b = self.widen([cond, a, b], lanes)
        return arith.select(self.b, cond, a, b)

    def _inverse(self, cond: Value) -> Value:
        known = mask_lanes(cond)
        if known is None:
            return arith.unary(self.b, "not", cond)
        return literal_mask([not lane for lane in known])

    def _masked_or_zero(self, cond: Value, expr: Select) -> Value | None:
        """Returns a vector from memory or zeros as one masked load; None where it is not that."""
        zero = isinstance(expr.b, Imm) and _is_zero(expr.b) and is_float(expr.dtype)
        if not (self.masks_cheap and zero and isinstance(expr.a, Load) and self.mask is None):
            return None
        buffer = expr.a.source
        form = self.flat(expr.a, buffer, expr.a.indices)
        alone = self.lane_index is not None and form.coefficient(self.lane_index) == 1
        rest = [a for a, _ in form.terms if a is not self.lane_index]
        if buffer.scope == "register" or not alone or any(self.uses_lane(a) for a in rest):
            return None
        with self.masked(cond):
            return self.load(expr.a)

    def _branches(self, cond: Value, expr: Select) -> Value:
        """Returns a select as control flow, so that the loads of one side only are performed."""
        lanes = self.lanes if self.uses_lane(expr) else 1
        ends: list[tuple[Value, str]] = []
        labels = self.b.label("then"), self.b.label("else"), self.b.label("join")
        self.b.branch_if(cond, labels[0], labels[1])
        for side, label in ((expr.a, labels[0]), (expr.b, labels[1])):
            self.b.start(label)
            with self.isolated():
                value = self.broadcast(self.value(side), lanes)
            ends.append((value, self.b.block))
            self.b.branch(labels[2])
        self.b.start(labels[2])
        (a, from_a), (b, from_b) = ends
        type_ = llvm_type(expr.dtype, lanes)
        text = f"phi {type_} [ {a.text}, %{from_a} ], [ {b.text}, %{from_b} ]"
        return self.b.value(text, expr.dtype, lanes)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """What is computed inside is not known outside (a branch)."""
        before = dict(self.loads), dict(self.memo), dict(self.steps)
        yield
        self.loads, self.memo, self.steps = before

    @contextmanager
    def masked(self, mask: Value) -> Iterator[None]:
        """Inside, only the lanes of `mask` load and store."""
        before = self.mask, self.memo, self.steps, dict(self.loads)
        wide = self.broadcast(mask, self.lanes)
        self.mask = wide if before[0] is None else self._both(before[0], wide)
        self.memo, self.steps = {}, {}
        yield
        known = None if self.mask is None else mask_lanes(self.mask)
        self.mask, self.memo, self.steps, loads = before
        if known is None or not any(known):
            self.loads = loads  # else what was read is as good as outside: no branch was taken

    def _both(self, a: Value, b: Value) -> Value:
        left, right = mask_lanes(a), mask_lanes(b)
        if left is not None and right is not None:
            return literal_mask([x and y for x, y in zip(left, right, strict=True)])
        return self._binary("and", a, b)

    # --- memory ---

    def load(self, expr: Load) -> Value:
        """Returns what a load reads: from registers, or from memory once as long as it holds."""
        buffer: Buffer = expr.source
        form = self.flat(expr, buffer, expr.indices)
        if buffer.scope == "register":
            return self._read_register(buffer, form)
        if self.anywhere:
            return self._read_inside(buffer, form)
        place = self.place(buffer, form)
        lanes = self.lanes if place.step or place.lane_parts else 1
        masked = self.mask is not None and lanes > 1
        key: tuple[object, ...] = (place.key, place.offset, place.step, lanes, id(buffer.root))
        if place.lane_parts or masked:
            parts = [(id(a), *self.numbers(a)) for a, _ in place.lane_parts]
            key = (*key, self.mask and self.mask.text, *parts)
        found = self.loads.get(key)
        if found is None:
            columns = self._turned(expr, form, place) or [self._read(buffer, place, lanes)]
            for n, column in enumerate(columns):
                self.loads[key[0], place.offset + n, *key[2:]] = column
            found = columns[0]
        return found

    def _read_inside(self, buffer: Buffer, form: Linear) -> Value:
        """Returns what a load reads, or another element of its buffer where it would read beyond
        it: its value is not wanted then.
        """
        size, element = math.prod(buffer.shape), memory_type(buffer.dtype)
        stored, align = stored_dtype(buffer.dtype), element_bytes(buffer.dtype)
        if size == 0:
            return literal(0, buffer.dtype)
        offset = self._binary("max", self._sum(form), literal(0, INDEX))
        offset = self._binary("min", offset, literal(size - 1, INDEX))
        pointer = f"getelementptr {element}, ptr {self.base(buffer)}, {offset.typed}"
        pointer = self.b.pointer(pointer)
        if offset.lanes > 1:
            value = vectors.gather(self.b, stored, pointer, align, offset.lanes, None)
        else:
            value = self.b.value(f"load {element}, ptr {pointer}, align {align}", stored)
        return self._from_memory(buffer, value)

    def _turned(self, expr: Load, form: Linear, place: Place) -> list[Value]:
        """Returns what a load and the next ones of an unrolled loop read, if that is one block."""
        active = active_lanes(self.mask, self.lanes)
        if active is None or place.step <= 2:
            return []  # every other one is quicker had from two vectors
        numbers = {key: b.const for key, b in self.bound.items() if b.const is not None}
        bounds = self.simplifier.bounds(self.simplifier.rebuild(form))
        beside = transpose.unrolled_beside(expr, form, place, numbers, bounds)
        if beside is None:
            return []
        number, extent = beside
        width = transpose.columns_at_once(expr.dtype, self.lanes)
        columns = min(width, extent - number)
        if number % width or columns < 2:
            return []
        pointer = self.pointer_at(expr.source, place)
        found = transpose.turned(
            self.b, expr.source, pointer, place.step, columns, self.lanes, active
        )
        return [self._from_memory(expr.source, value) for value in found]

    def _from_memory(self, buffer: Buffer, value: Value) -> Value:
        """Returns a value as it is in registers: `bool` has a byte in memory."""
        if buffer.dtype != "bool":
            return value
        return arith.binary(self.b, "ne", value, literal(0, value.dtype, value.lanes))

    def _read(self, buffer: Buffer, place: Place, lanes: int) -> Value:
        pointer = self.pointer_at(buffer, place)
        element = memory_type(buffer.dtype)
        size = element_bytes(buffer.dtype)
        stored = stored_dtype(buffer.dtype)
        if lanes == 1:
            value = self._read_one(element, stored, pointer, size)
        elif not place.lane_parts and place.step == 2 and active_lanes(self.mask, lanes):
            value = vectors.load_every_other(self.b, stored, pointer, size, lanes, self.mask)
        elif place.lane_parts or place.step != 1:
            offsets = self._known_offsets(place)
            known = vectors.load_near(self.b, stored, pointer, size, lanes, offsets)
            known = known or self._in_runs(stored, pointer, offsets, size)
            if known is None:
                pointers = self.lane_pointers(element, pointer, place)
                known = vectors.gather(self.b, stored, pointers, size, lanes, self.mask)
            value = known
        else:
            value = self.masked_load(stored, pointer, size)
        return self._from_memory(buffer, value)

    def _known_offsets(self, place: Place) -> list[int | None]:
        """Returns each lane's offset from the pointer, None for lanes that are not active; nothing
        where only the run tells.
        """
        active = active_lanes(self.mask, self.lanes)
        if active is None or self.lane_index is None:
            return []
        before = self.bound[id(self.lane_index)]
        found: list[int | None] = []
        for lane, wanted in enumerate(active):
            self.bound[id(self.lane_index)] = Bound(const=lane)
            parts = [(self.constant_of(atom), c) for atom, c in place.lane_parts]
            known = [value * c for value, c in parts if value is not None]
            if len(known) < len(parts):
                break
            found.append(lane * place.step + sum(known) if wanted else None)
        self.bound[id(self.lane_index)] = before
        return found if len(found) == len(active) else []

    def _read_one(self, element: str, stored: str, pointer: str, size: int) -> Value:
        """Returns one element for all lanes; read only if some lane is active."""
        known = None if self.mask is None else mask_lanes(self.mask)
        if self.mask is None or (known is not None and any(known)):
            return self.b.value(f"load {element}, ptr {pointer}, align {size}", stored)
        lanes = self.mask.lanes
        active = self.b.call(f"llvm.vector.reduce.or.v{lanes}i1", [self.mask], "bool")
        then, join, before = self.b.label("some"), self.b.label("join"), self.b.block
        self.b.branch_if(active, then, join)
        self.b.start(then)
        value = self.b.value(f"load {element}, ptr {pointer}, align {size}", stored)
        self.b.branch(join)
        self.b.start(join)
        zero = literal(0, stored).text
        return self.b.value(
            f"phi {element} [ {value.text}, %{then} ], [ {zero}, %{before} ]", stored
        )

    def masked_load(self, stored: str, pointer: str, size: int) -> Value:
        """Returns the active lanes of a vector in memory, zeros in the others."""
        return vectors.load_vector(self.b, stored, pointer, size, self.lanes, self.mask)

    def _in_runs(
        self, stored: str, pointer: str, offsets: Sequence[int | None], size: int
    ) -> Value | None:
        """Returns lanes that lie in a few runs; None where they do not."""
        runs = runs_of(offsets)
        return read_runs(self.b, stored, pointer, size, offsets, runs) if runs else None

    def lane_pointers(self, element: str, pointer: str, place: Place) -> str:
        """Returns the vector of pointers of an access whose lanes are not side by side."""
        offsets = self._binary("mul", ramp(self.lanes), literal(place.step, INDEX))
        for atom, coefficient in place.lane_parts:
            part = self._binary("mul", self.load_value(atom), literal(coefficient, INDEX))
            offsets = self._binary("add", offsets, part)
        return self.b.pointer(f"getelementptr {element}, ptr {pointer}, {offsets.typed}")

    def write(
        self, buffer: Buffer, place: Place, value: Value, *, nontemporal: bool = False
    ) -> None:
        """Writes a value to memory in the lanes that are active; past the caches, if it is a whole
        vector, of an address that is known to be a multiple of its size.
        """
        pointer = self.pointer_at(buffer, place)
        size = element_bytes(buffer.dtype)
        if buffer.dtype == "bool":
            value = self.b.value(
                f"zext {value.typed} to {llvm_type('u8', value.lanes)}", "u8", value.lanes
            )
        lanes = self.lanes if place.step or place.lane_parts else 1
        if lanes == 1:
            self.check_lanes(buffer, value, lanes)
            self.b.emit(f"store {value.typed}, ptr {pointer}, align {size}")
        else:
            value = self.broadcast(value, lanes)
            if place.lane_parts or place.step != 1:
                pointers = self.lane_pointers(memory_type(buffer.dtype), pointer, place)
                vectors.scatter(self.b, value, pointers, size, self.mask)
            elif self.mask is None:
                hint = ""
                if nontemporal:
                    size, hint = size * lanes, self.b.module.nontemporal()
                self.b.emit(f"store {value.typed}, ptr {pointer}, align {size}{hint}")
            else:
                vectors.store_masked(self.b, value, pointer, size, self.mask)
        self.forget(buffer)

    def forget(self, buffer: Buffer) -> None:
        """Drops what was loaded from a buffer that is written now."""
        stale = [k for k in self.loads if len(k) > 4 and k[4] == id(buffer.root)]
        for key in stale:
            del self.loads[key]

    # --- registers ---

    def register_of(self, buffer: Buffer, form: Linear) -> tuple[Register, int]:
        """Returns which register an access means and its lanes.

        Errors: S040 when its offset is no literal, S041 when its lanes are not side by side.
        """
        const, step = form.const, 0
        for atom, coefficient in form.terms:
            bound = self.bound.get(id(atom))
            if bound is not None and bound.lanes:
                step += coefficient
                continue
            known = self.constant_of(atom)
            if known is None:
                raise ScheduleError(
                    "S040",
                    f"an index of register tile {buffer.name} is no literal",
                    hint="unroll the loops over it, or move the stage to scratch",
                )
            const += coefficient * known
        if step not in (0, 1):
            raise unfit_register(buffer, f"lanes {step} elements apart")
        return (id(buffer), const), (self.lanes if step else 1)

    @staticmethod
    def check_lanes(buffer: Buffer, value: Value, lanes: int) -> None:
        """Checks that a value fits into the lanes it is stored to.

        Errors: S042.
        """
        if value.lanes not in (1, lanes):
            raise ScheduleError(
                "S042",
                f"lanes of a vector loop store to one element of {buffer.name}",
                hint="vectorise a loop that the stage is indexed by",
            )

    def claim_register(self, buffer: Buffer, register: Register, lanes: int) -> Value | None:
        """Returns what a register holds that is about to be set, None where it is new.

        Errors: S041 when its elements are in other registers already.
        """
        old = self.registers.get(register)
        if old is not None:
            if old.lanes != lanes:
                raise unfit_register(buffer, "in one lane and in many")
            return old
        owner, start = register
        extent = self.lane_index.extent if self.lane_index is not None and lanes > 1 else 1
        assert isinstance(extent, int)
        mask = mask_lanes(self.mask) if self.mask is not None and lanes > 1 else None
        width = extent if mask is None else mask.count(True)
        for other, first in self.registers:
            here = first < start + width and start < first + self._widths[other, first]
            if other == owner and here:
                raise unfit_register(buffer, "in lanes that overlap")
        self._widths[register] = width
        return None

    def _read_register(self, buffer: Buffer, form: Linear) -> Value:
        (owner, offset), lanes = self.register_of(buffer, form)
        found = self.registers.get((owner, offset))
        if found is not None and found.lanes == lanes:
            return found
        for (other, start), vector in self.registers.items():
            if other == owner and lanes == 1 and 0 <= offset - start < self._widths[other, start]:
                lane = offset - start
                return self.b.value(f"extractelement {vector.typed}, i64 {lane}", vector.dtype)
        raise unfit_register(buffer, "at other places than it is set at")


def unfit_register(buffer: Buffer, how: str) -> ScheduleError:
    """Returns the error of a register tile whose accesses do not fit each other (S041)."""
    return ScheduleError(
        "S041",
        f"register tile {buffer.name} is used {how}",
        hint="vectorise the same axis where it is set and where it is read, by the same width",
    )


def _is_load_or_zero(expr: Select) -> bool:
    """Whether a select is between an element of memory and zero."""
    a, zero = expr.a, expr.b
    while isinstance(a, Inlined):
        a = a.value
    memory = isinstance(a, Load) and a.source.scope != "register" and a.dtype != "bool"
    return memory and isinstance(zero, Imm) and _is_zero(zero)


def _is_zero(number: Imm) -> bool:
    """Whether all bits of a literal are 0 (one dtype has no zero)."""
    return str(number.value) in ("0", "0.0") and number.dtype != "f8e8m0fnu"


def _literal_splat(value: Value, lanes: int) -> Value | None:
    """Returns a literal in all lanes."""
    if value.lanes != 1:
        return None
    return Value(f"splat ({value.typed})", value.dtype, lanes)
