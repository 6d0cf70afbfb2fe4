"""Addresses of loads and stores as sums over loop variables, each part computed in the outermost
loop where it is known. Thousands of accesses of a register tile then share a few pointers and
differ in a literal offset, as x86 and Arm addressing modes require.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.ir.dim_text import DIVISIONS
from clew.ir.dims import Atom, Dim, SymDim, at_least, is_factor, numeric_part
from clew.ir.types import memory_bytes
from clew.loop.affine import Linear, Simplifier, divisor
from clew.loop.ir import Buffer
from clew.support.dataclass import dataclass
from clew.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Checked,
    Imm,
    Index,
    Load,
    Scalar,
    Size,
    Unary,
    binary,
    size,
)


@dataclass
class LoopScope:
    """A loop being emitted: a section for values computed once per iteration, and those values."""

    place: list[str]
    pointers: dict[tuple[object, ...], str] = field(default_factory=dict)
    values: dict[tuple[object, ...], Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """The current binding of a loop variable: a number, a value, or vector lanes."""

    const: int | None = None
    value: Value | None = None
    depth: int = 0
    lanes: int = 0


@dataclass(frozen=True)
class Place:
    """An address split into a pointer, an element offset, the step from lane to lane, and irregular
    parts of lanes.
    """

    pointer: str
    offset: int
    step: int
    lane_parts: tuple[tuple[Scalar, Dim], ...]
    key: tuple[object, ...]


def stored_dtype(dtype: str) -> str:
    """Returns the dtype of an element between memory and registers: `bool` takes a byte."""
    return "i8" if dtype == "bool" else dtype


def memory_type(dtype: str) -> str:
    """Returns LLVM's type of an element in memory."""
    return llvm_type(stored_dtype(dtype))


def element_bytes(dtype: str) -> int:
    """Returns the size of an element in memory."""
    return memory_bytes(dtype)


@dataclass(frozen=True)
class _Leaves:
    """The loop variables in an expression, whether its value depends on more (it reads memory or
    checks an index), and whether it has checks. The expression is kept alive, so that its id is not
    reused.
    """

    expr: Scalar
    indices: tuple[Index, ...]
    reads_memory: bool
    checks: bool


class Addresses(ABC):
    """Computes addresses and index values for the function being emitted."""

    def __init__(self, builder: Builder, simplifier: Simplifier) -> None:
        self.b = builder
        self.simplifier = simplifier
        self.bound: dict[int, Bound] = {}
        self.scopes: list[LoopScope] = [LoopScope(builder.section())]
        self.lane_index: Index | None = None
        # Names of the sizes that a call brings, and the argument that holds the first.
        self.sizes: Sequence[str] = ()
        self.first_size = 0
        # Must be at least 0, so that no divisor is 0; all functions of a kernel share this.
        self.needs: dict[SymDim, None] = {}
        self._bases: dict[int, str] = {}
        self._flat: dict[int, tuple[object, Linear]] = {}
        self._leaves: dict[int, _Leaves] = {}

    # --- buffers ---

    def bind_buffer(self, buffer: Buffer, pointer: str) -> None:
        """Sets a buffer's base pointer."""
        self._bases[id(buffer)] = pointer

    def base(self, buffer: Buffer) -> str:
        """Returns a buffer's base pointer."""
        return self._bases[id(buffer)]

    def flat(self, owner: object, buffer: Buffer, indices: tuple[Scalar, ...]) -> Linear:
        """Returns an access's element offset, cached by its load or store."""
        found = self._flat.get(id(owner))
        if found is None:
            total: Scalar = Imm(0, INDEX)
            for index, stride in zip(indices, buffer.strides, strict=True):
                total = binary("add", total, binary("mul", index, size(stride)))
            form = self.simplifier.flatten(self.simplifier.linear(total))
            found = (owner, form)
            self._flat[id(owner)] = found
        return found[1]

    def place(self, buffer: Buffer, form: Linear) -> Place:
        """Returns the place of an access; emits pointer arithmetic that is not available yet."""
        const, step = form.const, 0
        parts: list[tuple[int, Dim, Scalar, Value]] = []
        lane_parts: list[tuple[Scalar, Dim]] = []
        for atom, coefficient in form.terms:
            bound = self.bound.get(id(atom))
            if bound is not None:
                if bound.const is not None:
                    const = const + coefficient * bound.const
                elif bound.lanes and isinstance(coefficient, int):
                    step += coefficient
                elif bound.lanes:
                    lane_parts.append((atom, coefficient))
                else:
                    assert bound.value is not None
                    parts.append((bound.depth, coefficient, atom, bound.value))
            elif self.uses_lane(atom):
                lane_parts.append((atom, coefficient))
            else:
                known = self.constant_of(atom)
                if known is not None:
                    const = const + coefficient * known
                else:
                    value, depth = self.atom_value(atom)
                    parts.append((depth, coefficient, atom, value))
        if isinstance(const, SymDim):
            rest = numeric_part(const)
            parts.append((0, 1, size(const), self.dim_value(const - rest)))
            const = rest
        parts.sort(key=lambda p: p[0] if p[0] >= 0 else len(self.scopes))
        element = memory_type(buffer.dtype)
        pointer = self._bases[id(buffer)]
        key: tuple[object, ...] = (id(buffer),)
        for depth, coefficient, _, value in parts:
            key = (*key, value.text, coefficient)
            if depth < 0:  # known only here: computed here and not shared
                step_value = arith.binary(self.b, "mul", value, self.dim_value(coefficient))
                pointer = self.b.pointer(
                    f"getelementptr {element}, ptr {pointer}, i64 {step_value.text}"
                )
                continue
            scope = self.scopes[depth]
            found = scope.pointers.get(key)
            if found is None:
                with self.b.writing_to(scope.place):
                    scaled = self._scaled(scope, value, coefficient)
                    found = self.b.pointer(
                        f"getelementptr {element}, ptr {pointer}, i64 {scaled.text}"
                    )
                scope.pointers[key] = found
            pointer = found
        return Place(pointer, const, step, tuple(lane_parts), key)

    def _scaled(self, scope: LoopScope, value: Value, coefficient: Dim) -> Value:
        if coefficient == 1:
            return value
        key = ("mul", value.text, coefficient)
        found = scope.values.get(key)
        if found is None:
            by = self.dim_value(coefficient)
            found = self.b.value(f"mul i64 {value.text}, {by.text}", INDEX)
            scope.values[key] = found
        return found

    def pointer_at(self, buffer: Buffer, place: Place) -> str:
        """Returns the pointer to a place's first element."""
        if place.offset == 0:
            return place.pointer
        element = memory_type(buffer.dtype)
        return self.b.pointer(f"getelementptr {element}, ptr {place.pointer}, i64 {place.offset}")

    # --- sizes ---

    def dim_value(self, dim: Dim) -> Value:
        """Returns the value of a dimension. Of a symbolic one, it is computed at the start of the
        function from the sizes that the call brings.
        """
        if isinstance(dim, int):
            return literal(dim, INDEX)
        scope = self.scopes[0]
        found = scope.values.get(("dim", dim))
        if found is None:
            with self.b.writing_to(scope.place):
                found = self._dim(dim)
            scope.values["dim", dim] = found
        return found

    def _dim(self, dim: SymDim) -> Value:
        b, total = self.b, literal(0, INDEX)
        for monomial, coefficient in dim.terms:
            term = literal(coefficient, INDEX)
            for atom, power in monomial:
                value = self._size_atom(atom)
                for _ in range(power):
                    term = value if term.text == "1" else arith.binary(b, "mul", term, value)
            total = term if total.text == "0" else arith.binary(b, "add", total, term)
        return total

    def _size_atom(self, atom: Atom) -> Value:
        scope = self.scopes[0]
        found = scope.values.get(("size", atom))
        if found is None:
            if not atom.op:
                slot = self.first_size + self.sizes.index(atom.name)
                at = self.b.pointer(f"getelementptr i64, ptr %args, i64 {slot}")
                found = self.b.value(f"load i64, ptr {at}, align 8", INDEX)
            else:
                left, right = (self.dim_value(a) for a in atom.args)
                op = {"//": "floordiv", "%": "mod"}.get(atom.op, atom.op)
                if atom.op in DIVISIONS and not at_least(atom.args[1], 1):
                    self._needs_divisor(atom.args[1])
                found = arith.binary(self.b, op, left, right)
            scope.values["size", atom] = found
        return found

    def divides(self, expr: Binary) -> None:
        """Records the need that the size by which an index is divided is not 0. The division may be
        emitted ahead of the loop that rules out 0, unless that is the loop of a variable in the
        index: if loops are fused, the extent is a multiple of the size.
        """
        if expr.op not in ("floordiv", "mod") or divisor(expr, expr.op) is not None:
            return
        if isinstance(expr.b, Size):
            dim = expr.b.dim
            if not any(is_factor(dim, index.extent) for index in expr.a.variables):
                self._needs_divisor(dim)

    def _needs_divisor(self, dim: Dim) -> None:
        need = dim - 1
        if isinstance(need, SymDim):
            self.needs[need] = None

    # --- index values ---

    def constant_of(self, expr: Scalar) -> int | None:
        """Returns the value of an index expression whose loop variables are currently numbers."""
        return self._constant(expr, {})

    def _constant(self, expr: Scalar, known: dict[int, int | None]) -> int | None:
        match expr:
            case Imm():
                return int(expr.value)
            case Index():
                bound = self.bound.get(id(expr))
                if bound is not None:
                    return bound.const
                return 0 if expr.extent == 1 else None
            case Binary():
                if id(expr) not in known:
                    known[id(expr)] = self._folded(expr, known)
                return known[id(expr)]
        return None

    def _folded(self, expr: Binary, known: dict[int, int | None]) -> int | None:
        for index in self.leaves(expr).indices:
            bound = self.bound.get(id(index))
            if bound is None or bound.const is None:
                return None
        a = self._constant(expr.a, known)
        b = self._constant(expr.b, known) if a is not None else None
        if a is None or b is None:
            return None
        folded = binary(expr.op, Imm(a, INDEX), Imm(b, INDEX))
        return int(folded.value) if isinstance(folded, Imm) else None

    def leaves(self, expr: Scalar) -> _Leaves:
        """Returns the loop variables in an expression (cached)."""
        known = self._leaves
        if id(expr) in known:
            return known[id(expr)]
        stack = [expr]
        while stack:
            node = stack[-1]
            todo = [c for c in node.children if id(c) not in known]
            if todo and id(node) not in known:
                stack += todo
                continue
            stack.pop()
            if id(node) in known:
                continue
            parts = [known[id(c)] for c in node.children]
            indices = {id(i): i for part in parts for i in part.indices}
            if isinstance(node, Index):
                indices[id(node)] = node
            checks = isinstance(node, Checked) or any(part.checks for part in parts)
            reads_memory = isinstance(node, Load) or any(part.reads_memory for part in parts)
            found = tuple(indices.values())
            known[id(node)] = _Leaves(node, found, reads_memory or checks, checks)
        return known[id(expr)]

    def truth_of(self, cond: Scalar) -> bool | None:
        """Returns whether a condition holds, if its loop variables are currently numbers."""
        return self._truth(cond, {})

    def _truth(self, cond: Scalar, asked: dict[int, bool | None]) -> bool | None:
        if id(cond) not in asked:
            asked[id(cond)] = self._truth_in(cond, asked)
        return asked[id(cond)]

    def _truth_in(self, cond: Scalar, asked: dict[int, bool | None]) -> bool | None:
        match cond:
            case Imm():
                return bool(cond.value)
            case Binary(op="and" | "or" as op, dtype="bool"):
                strong = op == "or"
                a, b = self._truth(cond.a, asked), self._truth(cond.b, asked)
                if a is strong or b is strong:
                    return strong
                return None if a is None or b is None else not strong
            case Unary(op="not", dtype="bool"):
                inner = self._truth(cond.a, asked)
                return None if inner is None else not inner
            case Binary() if cond.op in COMPARISONS and cond.a.dtype == INDEX:
                known = self.constant_of(cond)
                return None if known is None else bool(known)
        return None

    def lanes_where(self, cond: Scalar, lanes: int) -> list[bool] | None:
        """Returns the lanes in which a condition holds (one entry if it is the same in all); None
        if only a run determines it.
        """
        if self.lane_index is None or not self.uses_lane(cond):
            known = self.truth_of(cond)
            return None if known is None else [known]
        before = self.bound[id(self.lane_index)]
        found: list[bool] = []
        for lane in range(lanes):
            self.bound[id(self.lane_index)] = Bound(const=lane)
            known = self.truth_of(cond)
            if known is None:
                break
            found.append(known)
        self.bound[id(self.lane_index)] = before
        return found if len(found) == lanes else None

    def depth_of(self, expr: Scalar) -> int:
        """Returns the depth of the innermost loop that an expression depends on; -1 if it reads
        memory and must do so where it is used.
        """
        leaves = self.leaves(expr)
        if leaves.reads_memory and not self.is_early(expr):
            return -1
        bounds = [self.bound.get(id(i)) for i in leaves.indices]
        return max((b.depth for b in bounds if b is not None), default=0)

    @abstractmethod
    def is_early(self, expr: Scalar) -> bool:
        """Whether an index expression that reads memory may be computed in the innermost loop that
        it depends on, ahead of its use.
        """
        ...

    def uses_lane(self, expr: Scalar) -> bool:
        """Whether an expression differs from lane to lane of the vector loop around it."""
        return self.lane_index is not None and any(
            i is self.lane_index for i in self.leaves(expr).indices
        )

    def atom_value(self, atom: Scalar) -> tuple[Value, int]:
        """Returns the value of an index expression that is equal in all lanes, and its depth."""
        depth = self.depth_of(atom)
        if depth < 0:
            return self.load_value(atom), depth
        scope = self.scopes[depth]
        key = ("atom", id(atom), *self.numbers(atom))
        found = scope.values.get(key)
        if found is None:
            with self.b.writing_to(scope.place):
                found = self._compute(atom, {})
            scope.values[key] = found
        return found, depth

    def numbers(self, expr: Scalar) -> tuple[int, ...]:
        """Returns the current numbers of the unrolled loop variables in an expression."""
        bounds = [self.bound.get(id(i)) for i in self.leaves(expr).indices]
        return tuple(b.const for b in bounds if b is not None and b.const is not None)

    @abstractmethod
    def load_value(self, expr: Scalar) -> Value:
        """Returns the value of an index expression that reads memory; implemented by the value
        emitter.
        """
        ...

    def _compute(self, expr: Scalar, made: dict[int, Value]) -> Value:
        if id(expr) not in made:
            made[id(expr)] = self._computed(expr, made)
        return made[id(expr)]

    def _computed(self, expr: Scalar, made: dict[int, Value]) -> Value:
        match expr:
            case Imm():
                return literal(expr.value, INDEX)
            case Size():
                return self.dim_value(expr.dim)
            case Index():
                return self.index_value(expr)
            case Binary(op="floordiv" | "mod") if (by := divisor(expr, expr.op)) is not None:
                a = self._linear_value(self.simplifier.linear(expr.a), made)
                divided = self.dim_value(by)
                if self.simplifier.never_below(expr.a, 0):
                    op = "udiv" if expr.op == "floordiv" else "urem"
                    return self.b.value(f"{op} i64 {a.text}, {divided.text}", INDEX)
                return arith.binary(self.b, expr.op, a, divided)
            case Binary():
                self.divides(expr)
                a, b = self._compute(expr.a, made), self._compute(expr.b, made)
                return arith.binary(self.b, expr.op, a, b)
        return self.load_value(expr)

    def index_value(self, index: Index) -> Value:
        """Returns a loop variable's value, in lanes if it has several."""
        bound = self.bound.get(id(index))
        if bound is None:
            assert index.extent == 1, f"loop variable {index.name} is not bound"
            return literal(0, INDEX)
        if bound.const is not None:
            return literal(bound.const, INDEX)
        if bound.lanes:
            return ramp(bound.lanes)
        assert bound.value is not None
        return bound.value

    def _linear_value(self, form: Linear, made: dict[int, Value]) -> Value:
        total: Value | None = None
        const = form.const
        for atom, coefficient in form.terms:
            known = self.constant_of(atom)
            if known is not None:
                const = const + known * coefficient
                continue
            value = self._compute(atom, made)
            if coefficient != 1:
                value = arith.binary(self.b, "mul", value, self.dim_value(coefficient))
            total = value if total is None else arith.binary(self.b, "add", total, value)
        if total is None:
            return self.dim_value(const)
        return arith.binary(self.b, "add", total, self.dim_value(const)) if const else total


def ramp(lanes: int) -> Value:
    """Returns the vector 0, 1, 2, ... of indices."""
    items = ", ".join(f"i64 {n}" for n in range(lanes))
    return Value(f"<{items}>", INDEX, lanes)
