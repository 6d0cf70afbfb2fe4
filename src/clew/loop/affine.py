"""Index arithmetic: linear forms over loop variables, their bounds, and simplification with
these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clew.support import walk
from clew.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Checked,
    Imm,
    Index,
    Load,
    Scalar,
    Select,
    Unary,
    binary,
    select,
)
from clew.te.walk import nodes, over, post_order

Range = tuple[float, float]
_UNBOUNDED: Range = (float("-inf"), float("inf"))


@dataclass(frozen=True)
class Linear:
    """`const + sum(coefficient * atom)`. Atoms are loop variables or expressions with no linear
    form.
    """

    terms: tuple[tuple[Scalar, int], ...]
    const: int

    def coefficient(self, index: Scalar) -> int:
        """Returns the coefficient of a loop variable, as an atom by itself."""
        return next((c for a, c in self.terms if a is index), 0)

    def depends_on(self, index: Scalar) -> bool:
        """Whether a loop variable occurs anywhere, including inside atoms."""
        return any(a is index or contains(a, index) for a, _ in self.terms)


def _is_arithmetic(node: Scalar) -> bool:
    return node.dtype == INDEX and isinstance(node, (Binary, Index, Unary))


def contains(expr: Scalar, part: Scalar) -> bool:
    """Whether `part` (by identity) occurs in `expr`."""
    return any(node is part for node in nodes(expr))


class Simplifier:
    """Simplifies index expressions; results are cached by object, so shared parts cost once."""

    def __init__(self) -> None:
        self._linear: dict[int, tuple[Scalar, Linear]] = {}
        self._atoms: dict[int, Scalar] = {}
        self._numbers: dict[int, tuple[Scalar, int]] = {}
        self._structures: dict[tuple[object, ...], int] = {}
        self._canonical: dict[int, Scalar] = {}
        self._uses: dict[int, tuple[Scalar, dict[int, tuple[Scalar, bool]]]] = {}
        self._simple: dict[int, tuple[Scalar, Scalar]] = {}
        self._ranges: dict[int, tuple[Scalar, Range]] = {}
        self._decided: dict[int, tuple[Scalar, bool | None]] = {}
        self._divided: dict[tuple[str, Linear, int], Linear] = {}
        self._flat: dict[Linear, Linear] = {}

    def linear(self, expr: Scalar) -> Linear:
        """Returns the linear form of an index expression."""
        found = self._linear.get(id(expr))
        if found is None:
            found = (expr, self._compute(expr))
            self._linear[id(expr)] = found  # keeps expr alive, so that its id is not reused
        return found[1]

    def _compute(self, expr: Scalar) -> Linear:
        match expr:
            case Imm():
                return Linear((), int(expr.value))
            case Index():
                return Linear((), 0) if expr.extent == 1 else Linear(((expr, 1),), 0)
            case Binary(op="add" | "sub"):
                sign = 1 if expr.op == "add" else -1
                return _sum(self.linear(expr.a), self.linear(expr.b), sign)
            case Binary(op="mul"):
                a, b = self.linear(expr.a), self.linear(expr.b)
                if not a.terms:
                    return _scale(b, a.const)
                if not b.terms:
                    return _scale(a, b.const)
            case Binary(op="floordiv" | "mod"):
                b = self.linear(expr.b)
                if not b.terms and b.const > 0:
                    return self.divide(expr.op, self.linear(expr.a), b.const)
            case Binary(op="min" | "max"):
                low_a, high_a = self.bounds(expr.a)
                low_b, high_b = self.bounds(expr.b)
                if high_a <= low_b:
                    return self.linear(expr.a if expr.op == "min" else expr.b)
                if high_b <= low_a:
                    return self.linear(expr.b if expr.op == "min" else expr.a)
            case Unary(op="neg"):
                return _scale(self.linear(expr.a), -1)
            case Checked(places=places):
                low, high = self.bounds(expr.value)
                if low >= 0 and high < places.count:
                    return self.linear(expr.value)
                if places.from_end and low >= -places.count and high < 0:
                    return _sum(self.linear(expr.value), Linear((), places.count), 1)
        return Linear(((self._atom(self._rebuilt(expr)), 1),), 0)

    def _rebuilt(self, expr: Scalar) -> Scalar:
        """Returns the expression with simplified operands."""
        return over(expr, tuple([self.simplify(c) for c in expr.children]))

    def divide(self, op: str, form: Linear, by: int) -> Linear:
        """Returns `floordiv` or `mod` of a form by a positive number."""
        found = self._divided.get((op, form, by))
        if found is None:
            found = self._divided[op, form, by] = self._divide(op, form, by)
        return found

    def _divide(self, op: str, form: Linear, by: int) -> Linear:
        if by == 1:
            return form if op == "floordiv" else Linear((), 0)
        form = self.flatten(form)
        whole = Linear(tuple((a, c // by) for a, c in form.terms if c % by == 0), form.const // by)
        rest = Linear(tuple((a, c) for a, c in form.terms if c % by), form.const % by)
        low, high = self.range_of(rest)
        if low >= 0 and high < by:
            return whole if op == "floordiv" else rest
        grouped = self._divide_groups(op, rest, by)
        if grouped is not None:
            return _sum(whole, grouped, 1) if op == "floordiv" else grouped
        inner = self.rebuild(rest)
        if op == "floordiv":
            nested = self._nested_quotient(rest, by)
            if nested is not None:
                return _sum(whole, nested, 1)
            atom = self._atom(Binary("floordiv", inner, Imm(by, INDEX)))
            return _sum(whole, Linear(((atom, 1),), 0), 1)
        return Linear(((self._atom(Binary("mod", inner, Imm(by, INDEX))), 1),), 0)

    def _divide_groups(self, op: str, rest: Linear, by: int) -> Linear | None:
        """Returns `(g*q + r) // by` as `q // (by/g)`, and its remainder as `g*(q % (by/g)) + r`.

        This requires that g divides `by` and that r is in [0, g): a block index plus an offset.
        """
        for size in sorted({abs(c) for _, c in rest.terms}, reverse=True):
            coarse = [(a, c) for a, c in rest.terms if abs(c) >= size]
            unit = math.gcd(by, *(c for _, c in coarse))
            fine = Linear(tuple((a, c) for a, c in rest.terms if abs(c) < size), rest.const % unit)
            low, high = self.range_of(fine)
            if unit == 1 or low < 0 or high >= unit:
                continue
            quotient = Linear(tuple((a, c // unit) for a, c in coarse), rest.const // unit)
            divided = self.divide(op, quotient, by // unit)
            return divided if op == "floordiv" else _sum(_scale(divided, unit), fine, 1)
        return None

    def _nested_quotient(self, rest: Linear, by: int) -> Linear | None:
        """Returns `(x // a) // b` as `x // (a * b)`."""
        if len(rest.terms) == 1 and not rest.const and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            match atom:
                case Binary(op="floordiv", a=inner, b=Imm(value=first)) if first > 0:
                    return self.divide("floordiv", self.linear(inner), by * first)
        return None

    def flatten(self, form: Linear) -> Linear:
        """Returns the form with `c*a*(x // a) + c*(x % a)` combined to `c*x` where it has both."""
        if len(form.terms) < 2:
            return form
        found = self._flat.get(form)
        if found is None:
            found = self._flat[form] = _recombine(self, form)
        return found

    def _atom(self, expr: Scalar) -> Scalar:
        """Returns one object for equal atoms, so that their coefficients add up."""
        return self._atoms.setdefault(self.number(expr), expr)

    def number(self, expr: Scalar) -> int:
        """Returns a number that is equal exactly for expressions of equal structure; leaves other
        than literals are compared by identity.
        """
        known = self._numbers
        for node in post_order(expr, known):
            key = _key(node, [known[id(c)][1] for c in node.children])
            number = self._structures.setdefault(key, len(self._structures))
            known[id(node)] = (node, number)  # keeps it alive, so that its id is not reused
        return known[id(expr)][1]

    def uses(self, expr: Scalar, index: Scalar) -> bool:
        """Whether a loop variable occurs in an expression; cached for all parts of the
        expression.
        """
        known = self._uses.setdefault(id(index), (index, {}))[1]
        for node in post_order(expr, known):
            found = node is index or any(known[id(c)][1] for c in node.children)
            known[id(node)] = (node, found)
        return known[id(expr)][1]

    def rebuild(self, form: Linear) -> Scalar:
        """Returns the expression of a linear form."""
        result: Scalar | None = None
        for atom, coefficient in form.terms:
            term = binary("mul", atom, Imm(coefficient, INDEX))
            result = term if result is None else binary("add", result, term)
        if result is None:
            return Imm(form.const, INDEX)
        return binary("add", result, Imm(form.const, INDEX)) if form.const else result

    def range_of(self, form: Linear) -> Range:
        """Returns the minimum and maximum of a form, from the extents of its loops."""
        low = high = float(form.const)
        for atom, coefficient in form.terms:
            least, most = self._atom_range(atom)
            a, b = coefficient * least, coefficient * most
            low, high = low + min(a, b), high + max(a, b)
        return low, high

    def bounds(self, expr: Scalar) -> Range:
        """Returns the minimum and maximum of an index expression."""
        return self.range_of(self.linear(expr))

    def _atom_range(self, atom: Scalar) -> Range:
        found = self._ranges.get(id(atom))
        if found is None:
            found = self._ranges[id(atom)] = (atom, self._range_of_atom(atom))
        return found[1]

    def _range_of_atom(self, atom: Scalar) -> Range:
        match atom:
            case Index(extent=int() as extent):
                return 0.0, float(extent - 1)
            case Binary(op="floordiv", b=Imm(value=int() as by)) if by > 0:
                low, high = self.bounds(atom.a)
                return _floor(low, by), _floor(high, by)
            case Binary(op="mod", b=Imm(value=int() as by)) if by > 0:
                low, high = self.bounds(atom.a)
                if low >= 0 and high < by:
                    return low, high
                return 0.0, float(by - 1)
            case Binary(op="min" | "max" as op):
                (al, ah), (bl, bh) = self.bounds(atom.a), self.bounds(atom.b)
                pick = min if op == "min" else max
                return pick(al, bl), pick(ah, bh)
            case Checked(hold=True):
                return 0.0, float(atom.places.count - 1)
            case Select():
                (al, ah), (bl, bh) = self.bounds(atom.a), self.bounds(atom.b)
                return min(al, bl), max(ah, bh)
        return _UNBOUNDED

    def decide(self, cond: Scalar) -> bool | None:
        """Returns whether a condition always or never holds; None if the bounds do not decide
        it.
        """
        found = self._decided.get(id(cond))
        if found is None:
            found = self._decided[id(cond)] = (cond, self._decide(cond))
        return found[1]

    def _decide(self, cond: Scalar) -> bool | None:
        match cond:
            case Imm():
                return bool(cond.value)
            case Binary(op="and" | "or" as op):
                a, b = self.decide(cond.a), self.decide(cond.b)
                strong = op == "or"
                if a is strong or b is strong:
                    return strong
                return (not strong) if a is not None and b is not None else None
            case Unary(op="not"):
                inner = self.decide(cond.a)
                return None if inner is None else not inner
            case Binary() if cond.op in COMPARISONS and cond.a.dtype == INDEX:
                low, high = self.range_of(_sum(self.linear(cond.a), self.linear(cond.b), -1))
                return _decide(cond.op, low, high)
        return None

    def simplify(self, expr: Scalar) -> Scalar:
        """Returns the expression with its index arithmetic simplified and decided selects
        resolved.
        """
        if isinstance(expr, (Imm, Index)) and not (isinstance(expr, Index) and expr.extent == 1):
            return expr
        if _is_arithmetic(expr):
            return self.rebuild(self.linear(expr))
        memo: dict[int, Scalar] = {}
        for node in walk.post_order((expr,), self._unsimplified):
            if _is_arithmetic(node):
                memo[id(node)] = self.rebuild(self.linear(node))
            elif id(node) in self._simple:
                memo[id(node)] = self._simple[id(node)][1]
            else:
                new = self._simplify_node(node, [memo[id(c)] for c in node.children])
                memo[id(node)] = new
                if node.dtype == INDEX:  # operands of indices: kept, as linear forms are
                    self._simple[id(node)] = (node, new)
        return memo[id(expr)]

    def _unsimplified(self, node: Scalar) -> tuple[Scalar, ...]:
        """Returns the parts of a node that are simplified before it."""
        return () if _is_arithmetic(node) or id(node) in self._simple else node.children

    def canonical(self, expr: Scalar, images: dict[int, Scalar]) -> Scalar:
        """Returns the expression with one object for parts of equal structure, which is also the
        atom of linear forms. `images` receives the replacement of each part, by id.
        """
        for node in post_order(expr, images):
            new = over(node, tuple([images[id(c)] for c in node.children]))
            number = self.number(new)
            new = images[id(node)] = self._canonical.setdefault(number, new)
            if new.dtype == INDEX and not isinstance(new, (Imm, Index, Binary, Unary)):
                self._atoms[number] = new
                self._linear[id(new)] = (new, Linear(((new, 1),), 0))
                self._simple[id(new)] = (new, new)
        return images[id(expr)]

    def _simplify_node(self, node: Scalar, children: list[Scalar]) -> Scalar:
        same = all(a is b for a, b in zip(children, node.children, strict=True))
        new = node if same else node.rebuild(children)
        if new.dtype == "bool" and isinstance(new, (Binary, Unary)):
            decided = self.decide(new)
            if decided is not None:
                return Imm(decided, "bool")
            if isinstance(new, Binary) and new.op in ("and", "or"):
                for a, b in ((new.a, new.b), (new.b, new.a)):
                    if self.decide(a) is (new.op == "and"):
                        return b
        if isinstance(new, Select):
            decided = self.decide(new.cond)
            if decided is not None:
                return new.a if decided else new.b
            return select(new.cond, new.a, new.b)
        return new


def _floor(value: float, by: int) -> float:
    return value if value in _UNBOUNDED else float(int(value) // by)


def _decide(op: str, low: float, high: float) -> bool | None:
    """Decides `op` for a difference a - b between `low` and `high`."""
    always: Mapping[str, bool] = {
        "lt": high < 0, "le": high <= 0, "gt": low > 0, "ge": low >= 0,
        "eq": low == high == 0, "ne": high < 0 or low > 0,
    }  # fmt: skip
    never: Mapping[str, bool] = {
        "lt": low >= 0, "le": low > 0, "gt": high <= 0, "ge": high < 0,
        "eq": high < 0 or low > 0, "ne": low == high == 0,
    }  # fmt: skip
    if always[op]:
        return True
    return False if never[op] else None


def _key(expr: Scalar, children: Sequence[int]) -> tuple[object, ...]:
    """Returns a structural key from the numbers of the operands; leaves are compared by
    identity.
    """
    match expr:
        case Imm():
            return ("imm", expr.value, str(expr.value), expr.dtype)  # -0.0 differs from 0.0
        case Binary():
            return (expr.op, *children)
        case Load():
            return ("load", id(expr.source), *children)
    if children:
        name = getattr(expr, "name", getattr(expr, "op", getattr(expr, "stage", "")))
        return (type(expr).__name__, name, expr.dtype, *children)
    return ("leaf", id(expr))


def _sum(a: Linear, b: Linear, sign: int) -> Linear:
    if not b.terms:
        return Linear(a.terms, a.const + sign * b.const)
    terms = {id(atom): (atom, c) for atom, c in a.terms}
    for atom, coefficient in b.terms:
        _, before = terms.get(id(atom), (atom, 0))
        terms[id(atom)] = (atom, before + sign * coefficient)
    return Linear(tuple(t for t in terms.values() if t[1]), a.const + sign * b.const)


def _scale(a: Linear, by: int) -> Linear:
    if by == 0:
        return Linear((), 0)
    return Linear(tuple((atom, c * by) for atom, c in a.terms), a.const * by)


def _recombine(simplifier: Simplifier, form: Linear) -> Linear:
    """Combines `c*a*(x // a) + c*(x % a)` to `c*x` as often as possible."""
    for atom, coefficient in form.terms:
        match atom:
            case Binary(op="mod", a=inner, b=Imm(value=by)) if by > 0:
                value = simplifier.linear(inner)
            case _:
                continue
        quotient = simplifier.divide("floordiv", value, by)
        parts = [a for a, c in quotient.terms if c == 1 and isinstance(a, Binary)]
        if len(parts) != 1:
            continue
        part = parts[0]
        if next((c for a, c in form.terms if a is part), None) == coefficient * by:
            kept = tuple(t for t in form.terms if t[0] is not atom and t[0] is not part)
            # `x // a` may be this part plus terms that divide exactly: those are subtracted again.
            rest = Linear(tuple(t for t in quotient.terms if t[0] is not part), quotient.const)
            joined = _sum(Linear(kept, form.const), _scale(value, coefficient), 1)
            return _recombine(simplifier, _sum(joined, _scale(rest, coefficient * by), -1))
    return form
