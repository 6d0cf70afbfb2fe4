"""Index arithmetic: linear forms over loop variables, their bounds, and simplification with
these.

Coefficients and bounds are dimensions: numbers, or polynomials of sizes that only a run knows. A
comparison with such a size holds only if it holds for all sizes (`dims.at_least`), under the facts
of the loops involved (`Index.facts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.ir.dims import Dim, Facts, SymDim, at_least, exact_quotient, numeric_part
from clew.loop import bounds
from clew.loop.bounds import Range
from clew.support import walk
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
    Select,
    Size,
    Unary,
    binary,
    select,
    size,
)
from clew.te.walk import nodes, over, post_order


@dataclass(frozen=True)
class Linear:
    """`const + sum(coefficient * atom)`. Atoms are loop variables or expressions with no linear
    form.
    """

    terms: tuple[tuple[Scalar, Dim], ...]
    const: Dim

    def coefficient(self, index: Scalar) -> Dim:
        """Returns the coefficient of a loop variable, as an atom by itself."""
        return next((c for a, c in self.terms if a is index), 0)

    def without(self, index: Scalar) -> Linear:
        """Returns the form without the term of a loop variable by itself."""
        return Linear(tuple(term for term in self.terms if term[0] is not index), self.const)

    def depends_on(self, index: Scalar) -> bool:
        """Whether a loop variable occurs anywhere, including inside atoms."""
        return any(a is index or contains(a, index) for a, _ in self.terms)


def _is_arithmetic(node: Scalar) -> bool:
    return node.dtype == INDEX and isinstance(node, (Binary, Index, Unary))


def contains(expr: Scalar, index: Scalar) -> bool:
    """Whether a loop variable occurs in an expression."""
    return index in expr.variables


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
        self._divided: dict[tuple[str, Linear, Dim], Linear] = {}
        self._flat: dict[Linear, Linear] = {}
        self._facts: dict[int, tuple[Scalar, Facts]] = {}

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
            case Size():
                return Linear((), expr.dim)
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
                a, b = self.linear(expr.a), self.linear(expr.b)
                if not b.terms and at_least(b.const, 1, self.facts(a)):
                    return self.divide(expr.op, a, b.const)
            case Binary(op="min" | "max"):
                difference = _sum(self.linear(expr.b), self.linear(expr.a), -1)
                low, high = self.range_of(difference)
                facts = self.facts(difference)
                if at_least(low, 0, facts):
                    return self.linear(expr.a if expr.op == "min" else expr.b)
                if at_least(bounds.negated(high), 0, facts):
                    return self.linear(expr.b if expr.op == "min" else expr.a)
                common = _common(self.linear(expr.a), self.linear(expr.b))
                if common.terms:
                    sides = (_sum(self.linear(side), common, -1) for side in (expr.a, expr.b))
                    rest = Binary(expr.op, *map(self.rebuild, sides))
                    return _sum(common, self.linear(rest), 1)
            case Unary(op="neg"):
                return _scale(self.linear(expr.a), -1)
            case Checked(places=places):
                if self.within(expr.value, 0, places.count - 1):
                    return self.linear(expr.value)
                if places.from_end and self.within(expr.value, -places.count, -1):
                    return _sum(self.linear(expr.value), Linear((), places.count), 1)
        return Linear(((self._atom(self._rebuilt(expr)), 1),), 0)

    def _rebuilt(self, expr: Scalar) -> Scalar:
        """Returns the expression with simplified operands."""
        return over(expr, tuple([self.simplify(c) for c in expr.children]))

    def divide(self, op: str, form: Linear, by: Dim) -> Linear:
        """Returns `floordiv` or `mod` of a form by a positive number."""
        found = self._divided.get((op, form, by))
        if found is None:
            found = self._divided[op, form, by] = self._divide(op, form, by)
        return found

    def _divide(self, op: str, form: Linear, by: Dim) -> Linear:
        if by == 1:
            return form if op == "floordiv" else Linear((), 0)
        form = self.flatten(form)
        parts = [(a, c, exact_quotient(c, by)) for a, c in form.terms]
        quotient, remainder = _divided_const(form.const, by)
        whole = Linear(tuple((a, q) for a, _, q in parts if q is not None), quotient)
        rest = Linear(tuple((a, c) for a, c, q in parts if q is None), remainder)
        if self._lies_within(rest, 0, by - 1):
            return whole if op == "floordiv" else rest
        grouped = self._divide_groups(op, rest, by)
        if grouped is not None:
            return _sum(whole, grouped, 1) if op == "floordiv" else grouped
        inner = self.rebuild(rest)
        if op == "floordiv":
            nested = self._nested_quotient(rest, by)
            if nested is not None:
                return _sum(whole, nested, 1)
            atom = self._atom(Binary("floordiv", inner, size(by)))
            return _sum(whole, Linear(((atom, 1),), 0), 1)
        return Linear(((self._atom(Binary("mod", inner, size(by))), 1),), 0)

    def _compared_in_groups(self, cond: Binary) -> Scalar:
        """Returns `g*q + r < g*n` as `q < n`, where r is in [0, g), and likewise `>=`: in a
        blocked layout, a bound that is a multiple of the block does not depend on the lane. Other
        conditions stay.
        """
        form = _sum(self.linear(cond.a), self.linear(cond.b), -1)
        found = self._groups(form, 0)
        if found is None or not found[2].terms:
            return cond
        quotient = found[1]
        bound = size(-quotient.const)
        return Binary(cond.op, self.rebuild(Linear(quotient.terms, 0)), bound)

    def _groups(self, rest: Linear, by: int) -> tuple[int, Linear, Linear] | None:
        """Returns the first g, q and r with `rest = g*q + r`, where g divides `by` and r is in
        [0, g).
        """
        terms = [(a, c) for a, c in rest.terms if isinstance(c, int)]
        if len(terms) < len(rest.terms) or not isinstance(rest.const, int):
            return None
        for least in sorted({abs(c) for _, c in terms}, reverse=True):
            coarse = [(a, c) for a, c in terms if abs(c) >= least]
            unit = math.gcd(by, *(c for _, c in coarse))
            fine = Linear(tuple((a, c) for a, c in terms if abs(c) < least), rest.const % unit)
            if unit != 1 and self._lies_within(fine, 0, unit - 1):
                quotient = Linear(tuple((a, c // unit) for a, c in coarse), rest.const // unit)
                return unit, quotient, fine
        return None

    def _divide_groups(self, op: str, rest: Linear, by: Dim) -> Linear | None:
        """Returns `(g*q + r) // by` as `q // (by/g)`, and its remainder as `g*(q % (by/g)) + r`.

        This requires that g divides `by` and that r is in [0, g): a block index plus an offset.
        """
        found = self._groups(rest, by) if isinstance(by, int) else None
        if found is None:
            return None
        unit, quotient, fine = found
        divided = self.divide(op, quotient, by // unit)
        return divided if op == "floordiv" else _sum(_scale(divided, unit), fine, 1)

    def _nested_quotient(self, rest: Linear, by: Dim) -> Linear | None:
        """Returns `(x // a) // b` as `x // (a * b)`."""
        if len(rest.terms) == 1 and not rest.const and rest.terms[0][1] == 1:
            atom = rest.terms[0][0]
            first = divisor(atom, "floordiv")
            if isinstance(atom, Binary) and first is not None:
                return self.divide("floordiv", self.linear(atom.a), by * first)
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
        for node in post_order(expr, known) if id(expr) not in known else ():
            key = _key(node, [known[id(c)][1] for c in node.children])
            number = self._structures.setdefault(key, len(self._structures))
            known[id(node)] = (node, number)  # keeps it alive, so that its id is not reused
        return known[id(expr)][1]

    def uses(self, expr: Scalar, index: Scalar) -> bool:
        """Whether a loop variable occurs in an expression; cached for all parts of the
        expression.
        """
        known = self._uses.setdefault(id(index), (index, {}))[1]
        for node in post_order(expr, known) if id(expr) not in known else ():
            found = node is index or any(known[id(c)][1] for c in node.children)
            known[id(node)] = (node, found)
        return known[id(expr)][1]

    def rebuild(self, form: Linear) -> Scalar:
        """Returns the expression of a linear form."""
        result: Scalar | None = None
        for atom, coefficient in form.terms:
            term = binary("mul", atom, size(coefficient))
            result = term if result is None else binary("add", result, term)
        if result is None:
            return size(form.const)
        return binary("add", result, size(form.const)) if form.const else result

    def facts(self, form: Linear) -> Facts:
        """Returns the facts that hold wherever a form is evaluated: those of its loops."""
        found: dict[SymDim, None] = {}
        for atom, _ in form.terms:
            known = self._facts.get(id(atom))
            if known is None:
                inside = (n for n in nodes(atom) if isinstance(n, Index))
                made = tuple(dict.fromkeys(fact for n in inside for fact in n.facts))
                known = self._facts[id(atom)] = (atom, made)
            found.update(dict.fromkeys(known[1]))
        return tuple(found)

    def within(self, expr: Scalar, low: Dim, high: Dim) -> bool:
        """Whether an index expression is certainly at least `low` and at most `high`."""
        return self.never_below(expr, low) and self.never_above(expr, high)

    def never_below(self, expr: Scalar, low: Dim, facts: Facts = ()) -> bool:
        """Whether an index expression is certainly at least `low` where `facts` hold."""
        form = self.linear(expr)
        return self._is_at_least(_sum(form, Linear((), low), -1), facts)

    def never_above(self, expr: Scalar, high: Dim, facts: Facts = ()) -> bool:
        """Whether an index expression is certainly at most `high` where `facts` hold."""
        return self._is_at_least(_sum(Linear((), high), self.linear(expr), -1), facts)

    def _is_at_least(self, form: Linear, facts: Facts) -> bool:
        """Whether a form is certainly at least 0. If its bounds are not conclusive, it is tried
        with each operand in place of a `min` or `max`.
        """
        facts = (*facts, *self.facts(form))
        if at_least(self.range_of(form)[0], 0, facts):
            return True
        for atom, coefficient in form.terms:
            if not isinstance(atom, Binary) or not is_clamp(atom):
                continue
            grows = at_least(coefficient, 0)
            if not grows and not at_least(bounds.negated(coefficient), 0):
                continue
            rest = Linear(tuple(t for t in form.terms if t[0] is not atom), form.const)
            sides = [_sum(rest, _scale(self.linear(x), coefficient), 1) for x in (atom.a, atom.b)]
            hold = [at_least(self.range_of(side)[0], 0, facts) for side in sides]
            if (any if grows == (atom.op == "max") else all)(hold):
                return True
        return False

    def _lies_within(self, form: Linear, low: Dim, high: Dim) -> bool:
        least, most = self.range_of(form)
        facts = self.facts(form)
        if not at_least(bounds.plus(least, -low), 0, facts):
            return False
        return at_least(bounds.plus(high, bounds.negated(most)), 0, facts)

    def range_of(self, form: Linear) -> Range:
        """Returns the minimum and maximum of a form, from the extents of its loops."""
        low: bounds.Bound = form.const
        high: bounds.Bound = form.const
        for atom, coefficient in form.terms:
            least, most = self._atom_range(atom)
            # The coefficient's sign is needed only where the loops run.
            facts = () if isinstance(coefficient, int) else self.facts(Linear(((atom, 1),), 0))
            if at_least(coefficient, 0, facts):
                least, most = (bounds.times(b, coefficient, 1) for b in (least, most))
            elif at_least(bounds.negated(coefficient), 0, facts):
                least, most = (bounds.times(b, coefficient, -1) for b in (most, least))
            else:
                return bounds.UNBOUNDED
            low, high = bounds.plus(low, least), bounds.plus(high, most)
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
            case Index():
                return 0, atom.extent - 1
            case Binary(op="floordiv") if (by := divisor(atom, "floordiv")) is not None:
                low, high = self.bounds(atom.a)
                return bounds.floor_quotient(low, by), bounds.floor_quotient(high, by)
            case Binary(op="mod") if (by := divisor(atom, "mod")) is not None:
                if self.within(atom.a, 0, by - 1):
                    return self.bounds(atom.a)
                return 0, by - 1
            case Binary(op="min" | "max" as op):
                (al, ah), (bl, bh) = self.bounds(atom.a), self.bounds(atom.b)
                facts = self.facts(Linear(((atom, 1),), 0))
                if op == "min":
                    return bounds.lower(al, bl, facts), bounds.smaller(ah, bh, facts)
                return bounds.larger(al, bl, facts), bounds.higher(ah, bh, facts)
            case Checked(hold=True):
                return 0, atom.places.count - 1
            case Select():
                (al, ah), (bl, bh) = self.bounds(atom.a), self.bounds(atom.b)
                facts = self.facts(Linear(((atom, 1),), 0))
                return bounds.lower(al, bl, facts), bounds.higher(ah, bh, facts)
        return bounds.UNBOUNDED

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
                form = _sum(self.linear(cond.a), self.linear(cond.b), -1)
                return bounds.decided(cond.op, *self.range_of(form), self.facts(form))
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
            if new.dtype == INDEX and not isinstance(new, (Imm, Index, Size, Binary, Unary)):
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
            if isinstance(new, Binary) and new.op in ("lt", "ge") and new.a.dtype == INDEX:
                return self._compared_in_groups(new)
        if isinstance(new, Select):
            decided = self.decide(new.cond)
            if decided is not None:
                return new.a if decided else new.b
            return select(new.cond, new.a, new.b)
        return new


def is_clamp(expr: Scalar) -> bool:
    """Whether an expression is the `min` or `max` of two positions."""
    return isinstance(expr, Binary) and expr.dtype == INDEX and expr.op in ("min", "max")


def divisor(expr: Scalar, op: str) -> Dim | None:
    """Returns the divisor of a `floordiv` or `mod` by a size that is at least 1 wherever the
    expression is evaluated, else None.
    """
    if not isinstance(expr, Binary) or expr.op != op:
        return None
    by: Dim
    match expr.b:
        case Imm(value=int() as number):
            by = number
        case Size():
            by = expr.b.dim
        case _:
            return None
    if at_least(by, 1):
        return by
    inside = (n for n in nodes(expr.a) if isinstance(n, Index))
    return by if at_least(by, 1, tuple(fact for n in inside for fact in n.facts)) else None


def _divided_const(const: Dim, by: Dim) -> tuple[Dim, Dim]:
    """Returns a quotient and a remainder of a constant."""
    if isinstance(const, int) and isinstance(by, int):
        return divmod(const, by)
    number = numeric_part(const) if isinstance(by, int) else 0
    whole = exact_quotient(const - number, by)
    if whole is None:
        return 0, const
    if isinstance(by, int):
        quotient, remainder = divmod(number, by)
        return whole + quotient, remainder
    return whole, 0


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
        case Size():
            return ("size", expr.dim)
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


def _common(a: Linear, b: Linear) -> Linear:
    """Returns the terms that two forms share."""
    terms = {id(atom): c for atom, c in a.terms}
    return Linear(tuple(t for t in b.terms if terms.get(id(t[0])) == t[1]), 0)


def _scale(a: Linear, by: Dim) -> Linear:
    if by == 0:
        return Linear((), 0)
    return Linear(tuple((atom, c * by) for atom, c in a.terms), a.const * by)


def _recombine(simplifier: Simplifier, form: Linear) -> Linear:
    """Combines `c*a*(x // a) + c*(x % a)` to `c*x` as often as possible."""
    for atom, coefficient in form.terms:
        by = divisor(atom, "mod")
        if by is None or not isinstance(atom, Binary):
            continue
        value = simplifier.linear(atom.a)
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
