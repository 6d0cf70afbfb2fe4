"""Dimensions: an int, or a symbolic expression of named sizes (`batch`, `2*seq + 1`, `h // 2`).

A symbolic dimension is a polynomial with integer coefficients over atoms, in normal form, so equal
polynomials compare equal. An atom is a named size or an operation on dimensions that has no
polynomial form (`//`, `%`, `min`, `max`). A name that starts with `?` is an unnamed size that is
known only during the run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from clew.support.errors import GraphTypeError

Dim: TypeAlias = "int | SymDim"
_Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"


@dataclass(frozen=True, slots=True)
class Atom:
    """A named size (`op == ""`), or `op` applied to `args`."""

    name: str
    op: str = ""
    args: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        if not self.op:
            return self.name
        if self.op in ("//", "%"):
            left, right = (str(a) if str(a).isalnum() else f"({a})" for a in self.args)
            return f"({left} {self.op} {right})"
        return f"{self.op}({', '.join(map(str, self.args))})"

    def sort_key(self) -> str:
        return str(self)


_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


class SymDim:
    """A symbolic dimension; supports `+ - * // %` with ints and other dimensions."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        kept = [(m, c) for m, c in terms.items() if c]
        kept.sort(key=lambda t: tuple((a.sort_key(), p) for a, p in t[0]), reverse=True)
        self.terms: Final = tuple(kept)
        self._hash: Final = hash(self.terms)

    @staticmethod
    def symbol(name: str) -> SymDim:
        """Returns the dimension named `name`."""
        return SymDim({((Atom(name), 1),): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymDim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        if not _is_size(other):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _normal(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        if not _is_size(other):
            return NotImplemented
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __mul__(self, other: Dim) -> Dim:
        if not _is_size(other):
            return NotImplemented
        terms: dict[_Monomial, int] = {}
        for (left, a), (right, b) in itertools.product(self.terms, _terms(other)):
            powers: dict[Atom, int] = dict(left)
            for atom, power in right:
                powers[atom] = powers.get(atom, 0) + power
            monomial = tuple(sorted(powers.items(), key=lambda item: item[0].sort_key()))
            terms[monomial] = terms.get(monomial, 0) + a * b
        return _normal(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if not _is_size(other):
            return NotImplemented
        if isinstance(other, int):
            if other == 1:
                return self
            if other and all(c % other == 0 for _, c in self.terms):
                return _normal({m: c // other for m, c in self.terms})
        elif self == other:
            return 1
        else:
            quotient = _exact_quotient(self, other)
            if quotient is not None:
                return quotient
        return _apply("//", self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return 0 if other == 0 else _apply("//", other, self)

    def __mod__(self, other: Dim) -> Dim:
        if not _is_size(other):
            return NotImplemented
        if isinstance(other, int):
            if other and all(c % other == 0 for _, c in self.terms):
                return 0
        elif self == other:
            return 0
        return _apply("%", self, other)

    def __rmod__(self, other: int) -> Dim:
        return _apply("%", other, self)

    def __str__(self) -> str:
        parts = []
        for monomial, coefficient in self.terms:
            factors = [str(a) if p == 1 else f"{a}^{p}" for a, p in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts).replace("+ -", "- ") or "0"

    def __repr__(self) -> str:
        return f"SymDim({self})"

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the sizes in this dimension."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if atom.op:
                    names.update(*(a.symbols for a in atom.args if isinstance(a, SymDim)))
                else:
                    names.add(atom.name)
        return frozenset(names)

    def substitute(self, sizes: Mapping[str, Dim]) -> Dim:
        """Returns the dimension with named sizes replaced; an int if all are known."""
        total: Dim = 0
        for monomial, coefficient in self.terms:
            product: Dim = coefficient
            for atom, power in monomial:
                value = _substitute_atom(atom, sizes)
                for _ in range(power):
                    product = product * value
            total = total + product
        return total


def _is_size(other: object) -> bool:
    """Whether dimension arithmetic accepts the operand; other expressions have their own
    operators.
    """
    return isinstance(other, (int, SymDim)) or hasattr(other, "__index__")


def _terms(dim: Dim) -> tuple[tuple[_Monomial, int], ...]:
    return dim.terms if isinstance(dim, SymDim) else (((), int(dim)),)


def _normal(terms: Mapping[_Monomial, int]) -> Dim:
    if not any(coefficient and monomial for monomial, coefficient in terms.items()):
        return terms.get((), 0)
    return SymDim(terms)


def _exact_quotient(left: SymDim, right: SymDim) -> Dim | None:
    """Returns left / right if right is one term that divides every term of left."""
    if len(right.terms) != 1:
        return None
    (divisor, by), result = right.terms[0], dict[_Monomial, int]()
    for monomial, coefficient in left.terms:
        powers = dict(monomial)
        if coefficient % by or any(powers.get(atom, 0) < power for atom, power in divisor):
            return None
        for atom, power in divisor:
            powers[atom] -= power
        result[tuple((a, p) for a, p in powers.items() if p)] = coefficient // by
    return _normal(result)


def _apply(op: str, left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return _OPERATIONS[op](left, right)
    return SymDim({((Atom("", op, (left, right)), 1),): 1})


def _substitute_atom(atom: Atom, sizes: Mapping[str, Dim]) -> Dim:
    if not atom.op:
        return sizes.get(atom.name, SymDim.symbol(atom.name))
    left, right = (substitute(arg, sizes) for arg in atom.args)
    if right == 0 and atom.op in ("//", "%"):
        raise GraphTypeError("T110", f"a size is {left} {atom.op} 0")
    if atom.op == "//":
        return left // right
    if atom.op == "%":
        return left % right
    return dim_min(left, right) if atom.op == "min" else dim_max(left, right)


def substitute(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Returns `dim` with named sizes replaced."""
    return dim.substitute(sizes) if isinstance(dim, SymDim) else dim


def dim_min(left: Dim, right: Dim) -> Dim:
    """Returns the smaller dimension."""
    return left if left == right else _apply("min", left, right)


def dim_max(left: Dim, right: Dim) -> Dim:
    """Returns the larger dimension."""
    return left if left == right else _apply("max", left, right)


def is_unknown(dim: Dim) -> bool:
    """Whether the dimension depends on a size that is known only during the run."""
    return isinstance(dim, SymDim) and any(name.startswith("?") for name in dim.symbols)


def numbers(dims: Iterable[Dim]) -> tuple[int, ...] | None:
    """Returns dimensions as numbers, or None if one of them is symbolic."""
    known = tuple(dims)
    return known if all(isinstance(d, int) for d in known) else None  # type: ignore[return-value]


def product(dims: tuple[Dim, ...]) -> Dim:
    """Returns the product of dimensions: the number of elements of a shape."""
    if all(isinstance(d, int) for d in dims):
        return math.prod(dims)
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


_unknowns = itertools.count()


def unknown_dim() -> SymDim:
    """Returns a new size that is known only during the run."""
    return SymDim.symbol(f"?{next(_unknowns)}")


def reserve_unknowns(below: int) -> None:
    """Reserves `?0` ... `?below-1`, the unknown sizes of a parsed text, so new sizes differ from
    them.
    """
    global _unknowns
    _unknowns = itertools.count(max(next(_unknowns), below))
