"""Emits scalar expressions, in one lane or in all lanes of the surrounding vector loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.indices import Indices
from clew.codegen.lane_masks import lanes_at_least_zero
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.codegen.math.vmath import intrinsic
from clew.codegen.narrowing import fits_32_bits, narrowed
from clew.codegen.quotients import (
    MOST,
    Divisor,
    divisor_of,
    floor_quotient,
    floor_remainder,
    literal_divisor,
)
from clew.codegen.shared import Plan, plan_of, reads_in_reads
from clew.codegen.tables import byte_index, looked_up
from clew.codegen.vectors import literal_mask, mask_lanes
from clew.ir.dims import Dim, SymDim
from clew.ir.types import is_float, is_integer
from clew.loop.affine import Linear, Simplifier, divisor
from clew.loop.ir import buffer_loads
from clew.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Bitcast,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Intrinsic,
    Load,
    Scalar,
    Select,
    Size,
    Unary,
    binary,
    shared_parts,
)

# The size of a written-out expression, in nodes, from which repeated parts are computed ahead:
# `_FEW_NODES` if loads are nested at least `_CHAIN` deep, else `_MANY_NODES`.
_CHAIN: Final = 3
_FEW_NODES: Final = 64
_MANY_NODES: Final = 1024


class Values(Indices):
    """Evaluates expressions, and caches values of the current statement."""

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
        self._divisors: dict[tuple[SymDim, int], Divisor] = {}
        self._plans: dict[int, tuple[Scalar, Plan | None]] = {}

    # --- expressions ---

    def statement(self, expr: Scalar) -> Value:
        """Returns the value of a statement's expression; shared parts are emitted once."""
        return self.value(self.begin(expr))

    def forget_statement(self) -> None:
        """Drops values that were computed for one statement."""
        self.memo, self.shared, self.steps = {}, {}, {}
        self.forget_waiting()

    def begin(self, expr: Scalar) -> Scalar:
        """Begins a statement: returns the expression to evaluate for it.

        Parts that would be computed in many branches or under many masks are computed now, once.
        Parts that may not be used clamp their reads to their buffers.
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
            if self.anywhere:
                self.wait_for(part)
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
        """Returns an expression's value, in one lane if it is equal in all."""
        found = self.memo.get(id(expr))
        if found is None:
            found = self._ahead(expr)
        if found is None:
            found = self._value(expr)
            self.memo[id(expr)] = found
        return found

    def _ahead(self, expr: Scalar) -> Value | None:
        """Returns the value of an expression that was computed ahead of its statement, or None."""
        found = self.shared.get(id(expr))
        if found is not None:
            self.wanted(expr)
        return found

    def _value(self, expr: Scalar) -> Value:
        if expr.dtype == INDEX and isinstance(expr, (Index, Binary)):
            return self._index_expression(expr)
        match expr:
            case Imm():
                return literal(expr.value, expr.dtype)
            case Size():
                return self.dim_value(expr.dim)
            case Load():
                return self._looked_up(expr) or self.load(expr)
            case Inlined():
                return self._inlined(expr)
            case Select():
                return self._select(expr)
            case Binary(op="min" | "max", dtype="f32" | "f64", b=Cast(a=whole)) if is_integer(
                whole.dtype  # no integer is NaN
            ):
                return arith.bounded(self.b, expr.op, *self._aligned(expr.a, expr.b))
            case Binary():
                mask = self._lanes_where(expr) if expr.op in COMPARISONS else None
                return mask or arith.binary(self.b, expr.op, *self._aligned(expr.a, expr.b))
            case Unary():
                return arith.unary(self.b, expr.op, self.value(expr.a))
            case Intrinsic():
                return intrinsic(self.b, expr.name, list(self._aligned(*expr.args)))
            case Cast(
                dtype="bf16", a=Bitcast(a=Binary(op="and", a=whole, b=Imm(value=0xFFFF0000)))
            ) if whole.dtype == "u32":
                return arith.upper_half(self.b, self.value(whole))
            case Cast(a=Intrinsic(name="round") as whole) if found := arith.rounded_integers(
                self.b, expr.dtype, self.value(whole.args[0])
            ):
                return found
            case Cast(
                dtype="i32",
                a=Binary(
                    op="shr",
                    a=Binary(
                        op="add",
                        a=Binary(
                            op="mul",
                            a=Cast(dtype="i64", a=Scalar(dtype="i32") as left),
                            b=Cast(dtype="i64", a=Scalar(dtype="i32") as right),
                        ),
                        b=added,
                    ),
                    b=Imm(value=int(bits)),
                ),
            ) if self.b.module.instructions.multiplies_even_lanes and 0 < bits <= 32:
                x, y, z = self._aligned(left, right, added)
                if x.lanes > 2 and x.lanes % 2 == 0:
                    return arith.product_bits(self.b, x, y, z, bits)
                return arith.cast(self.b, expr.dtype, self.value(expr.a))
            case Cast(dtype="i64") if self.lanes > 1 and fits_32_bits(expr):
                return arith.cast(self.b, "i64", arith.cast(self.b, "i32", self.value(expr.a)))
            case Cast():
                return self._packed(expr) or arith.cast(self.b, expr.dtype, self.value(expr.a))
            case Bitcast():
                return arith.bitcast(self.b, expr.dtype, self.value(expr.a))
            case Checked():
                return self.checked(expr)
        raise AssertionError(type(expr))

    def _packed(self, expr: Cast) -> Value | None:
        """Returns integers in fewer bits by instructions that pack vectors; None for other casts,
        and where other instructions narrow faster.
        """
        if self.lanes == 1 or not self.b.module.instructions.packs_integers:
            return None
        found = narrowed(expr)
        if found is None or not self.uses_lane(found.number):
            return None
        line = self.b.line
        for part in found.inside:
            self.b.line = self.lines.get(id(part), self.b.line)
        number = self.value(found.number)
        packed = arith.packed(self.b, expr.dtype, number, (found.low, found.high))
        self.b.line = line
        if found.offset:
            offset = literal(found.offset, expr.dtype, packed.lanes)
            packed = arith.binary(self.b, "add", packed, offset)
        return packed

    def _looked_up(self, expr: Load) -> Value | None:
        """Returns the elements of a table of bytes in registers; None for other loads."""
        index = byte_index(expr)
        if index is None:
            return None
        source = expr.source
        return looked_up(self.b, source.dtype, self.base(source), self.value(index))

    def _inlined(self, expr: Inlined) -> Value:
        before = self.b.line
        self.b.line = self.lines.get(id(expr), before)
        value = self.value(expr.value)
        self.b.line = before
        return value

    def _aligned(self, *exprs: Scalar) -> tuple[Value, ...]:
        """Returns the values with equal numbers of lanes."""
        values = [self.value(e) for e in exprs]
        return tuple(self.widen(values, max(v.lanes for v in values)))

    def _index_expression(self, expr: Scalar) -> Value:
        if self.leaves(expr).reads_memory:
            return self.load_value(expr)
        form = self.simplifier.linear(expr)
        if not any(self.uses_lane(atom) for atom, _ in form.terms):
            known = self.constant_of(self.simplifier.rebuild(form))
            if known is not None:
                return literal(known, INDEX)
        return self.index_sum(form)

    def index_sum(self, form: Linear) -> Value:
        """Returns the value of a sum over loop variables, in the lanes they have."""
        total: Value | None = None
        const = form.const
        for atom, coefficient in form.terms:
            known = self.constant_of(atom)
            if known is not None:
                const = const + known * coefficient
                continue
            term = self._lane_atom(atom)
            if coefficient != 1:
                term = self.binary("mul", term, self.dim_value(coefficient))
            total = term if total is None else self.binary("add", total, term)
        if total is None:
            return self.dim_value(const)
        return self.binary("add", total, self.dim_value(const)) if const else total

    def _lane_atom(self, atom: Scalar) -> Value:
        if isinstance(atom, Index):
            return self.index_value(atom)
        if self.uses_lane(atom):
            return self.load_value(atom)
        return self.atom_value(atom)[0]

    def load_value(self, expr: Scalar) -> Value:
        """Evaluates an index expression node by node."""
        match expr:
            case Index():
                return self.index_value(expr)
            case Binary():
                key = (id(expr), *self.numbers(expr))
                found = self._ahead(expr) or self.steps.get(key)
                if found is None:
                    found = self._divided(expr)
                    if found is None:
                        self.divides(expr)
                        a, b = self.load_value(expr.a), self.load_value(expr.b)
                        found = self.binary(expr.op, a, b)
                    self.steps[key] = found
                return found
        if self.leaves(expr).reads_memory:
            return self.value(expr)
        # It may be computed before loops, where values computed inside them are not available.
        before, self.memo, self.shared = (self.memo, self.shared), {}, {}
        found = self.value(expr)
        self.memo, self.shared = before
        return found

    def _divided(self, expr: Binary) -> Value | None:
        """Returns the value of a division of lanes by a size. None for other expressions, for
        powers of two, and for operands without bounds or beyond `MOST`. Where the bounds of
        operands depend on sizes, `needs` states that they are at most `MOST`.
        """
        by = divisor(expr, expr.op) if expr.op in ("floordiv", "mod") else None
        if by is None or not self.uses_lane(expr.a):
            return None
        if isinstance(by, int) and (by < 1 or not by & (by - 1)):
            return None
        low, high = self.simplifier.bounds(expr.a)
        if isinstance(low, float) or isinstance(high, float):
            return None
        for need in (MOST - high, MOST + low, MOST - by):
            if isinstance(need, SymDim):
                self.needs[need] = None
            elif need < 0:
                return None
        indices = self.broadcast(self.load_value(expr.a), self.lanes)
        divide = floor_quotient if expr.op == "floordiv" else floor_remainder
        return divide(self.b, indices, self._divisor(by))

    def _divisor(self, by: Dim) -> Divisor:
        """Returns a divisor of lanes. A size that only a run knows is computed with at the start of
        the function.
        """
        if isinstance(by, int):
            return literal_divisor(by, self.lanes)
        key = by, self.lanes
        if key not in self._divisors:
            size = self.dim_value(by)
            with self.b.writing_to(self.scopes[0].place):
                self._divisors[key] = divisor_of(self.b, size, self.lanes)
        return self._divisors[key]

    # --- conditions ---

    def _lanes_where(self, cond: Binary) -> Value | None:
        """Returns the mask of a comparison of positions that are evenly spaced over the lanes; None
        for other comparisons, and in kernels without free sizes.
        """
        index = self.lane_index
        if index is None or not self.sizes or cond.a.dtype != INDEX or cond.op in ("eq", "ne"):
            return None
        if not self.uses_lane(cond) or self.leaves(cond).reads_memory:
            return None
        greater, less = (cond.a, cond.b) if cond.op in ("ge", "gt") else (cond.b, cond.a)
        margin = self.simplifier.linear(binary("sub", greater, less))
        step = margin.coefficient(index)
        rest = margin.without(index)
        if not isinstance(step, int) or not step or any(self.uses_lane(a) for a, _ in rest.terms):
            return None
        least = Linear(rest.terms, rest.const - (cond.op in ("gt", "lt")))
        return lanes_at_least_zero(self.b, step, self.index_sum(least), self.lanes)

    def _select(self, expr: Select) -> Value:
        known = self.lanes_where(expr.cond, self.lanes)
        if known is not None and all(k is known[0] for k in known):
            return self.value(expr.a if known[0] else expr.b)
        cond = self.value(expr.cond) if known is None else literal_mask(known)
        loads = [load for side in (expr.a, expr.b) for load in buffer_loads(side, self.shared)]
        guards = not self.anywhere and any(id(load) not in self.memo for load in loads)
        if self.leaves(expr).checks and not self.anywhere:
            guards = guards or self.unchecked(expr.a, expr.b)
        if guards and cond.lanes == 1:
            masked = self._masked_or_zero(cond, expr)
            return self._branches(cond, expr) if masked is None else masked
        if guards and _is_load_or_zero(expr):
            with self.masked(cond):
                loaded = self.value(expr.a)
            if loaded.lanes > 1:
                return loaded  # inactive lanes are already zero
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
        """Returns a vector from memory or zeros as one masked load; None if it has another form."""
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
        """Emits a select as control flow, so that only the loads of one side are performed."""
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
        """Values computed inside are not available outside (a branch)."""
        before = dict(self.loads), dict(self.memo), dict(self.steps), self.branch_depth
        self.branch_depth = len(self.scopes) - 1
        yield
        self.loads, self.memo, self.steps, self.branch_depth = before

    @contextmanager
    def masked(self, mask: Value) -> Iterator[None]:
        """Only the lanes of `mask` load and store inside."""
        before = self.mask, self.memo, self.steps, dict(self.loads)
        wide = self.broadcast(mask, self.lanes)
        self.mask = wide if before[0] is None else self._both(before[0], wide)
        self.memo, self.steps = {}, {}
        yield
        known = None if self.mask is None else mask_lanes(self.mask)
        self.mask, self.memo, self.steps, loads = before
        if known is None or not any(known):
            self.loads = loads  # otherwise loads inside are valid outside: no branch was taken

    def _both(self, a: Value, b: Value) -> Value:
        left, right = mask_lanes(a), mask_lanes(b)
        if left is not None and right is not None:
            return literal_mask([x and y for x, y in zip(left, right, strict=True)])
        return self.binary("and", a, b)


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
