"""Dimensions: an int, or a symbolic expression of named sizes (`batch`, `2*seq + 1`, `h // 2`).

A symbolic dimension is a polynomial with integer coefficients over atoms, in normal form, so equal
polynomials compare equal. An atom is a named size or an operation on dimensions that has no
polynomial form (`//`, `%`, `min`, `max`). A name that starts with `?` is an unnamed size that is
known only during the run. A named size is at least 1, or at least 0 if its atom says so (`least`).

Arithmetic, bounds and values are one file, since the normal form of polynomials is known here only.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from clew.ir.dim_text import DIVISIONS, operand_text, operation_text, product_text, sum_text
from clew.support.budgets import current, exceeded
from clew.support.caches import bounded_cache
from clew.support.errors import GraphTypeError
from clew.support.locks import Lock
from clew.support.scoped import scoped


class SizeError(GraphTypeError):
    """A size is too long to be computed before the run (T112)."""


Dim: TypeAlias = "int | SymDim"
_Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"

_NUMBER: Final = re.compile(r"\d+")
_DIGITS: Final = 20


class Atom:
    """A named size (`op == ""`), or `op` applied to `args`. Equal atoms are one object, so that
    dimensions are compared without descending into them. `least`, 0 or 1, is the lowest value that
    a named size may have in a call. The text does not show it.
    """

    __slots__ = ("__weakref__", "_named", "args", "least", "name", "op", "rank", "text", "weight")
    name: str
    op: str
    args: tuple[Dim, ...]
    least: int
    text: str
    rank: tuple[str, str]
    """The place in the order of terms: that of the text, with numbers in the order of their values,
    so that the order of unknown sizes (`?9`, `?10`) does not depend on how many there were before.
    """
    weight: int
    """The number of terms in its operands; 0 for a name."""
    _named: frozenset[Atom] | None

    def __new__(cls, name: str, op: str = "", args: tuple[Dim, ...] = (), least: int = 1) -> Atom:
        key = name, op, args, least
        found = _ATOMS.get(key)
        if found is None:
            weight = sum(arg.weight if isinstance(arg, SymDim) else 1 for arg in args)
            if weight > _MOST_TERMS:
                raise _too_long("too many terms")
            with _ATOMS_LOCK:
                found = _ATOMS.get(key)
                if found is None:
                    found = super().__new__(cls)
                    found.name, found.op, found.args, found.least = key
                    found.weight = weight
                    found.text = found._shown()
                    padded = _NUMBER.sub(lambda digits: digits[0].zfill(_DIGITS), found.text)
                    found.rank = padded, found.text  # once: it sorts terms
                    found._named = None
                    _ATOMS[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Atom, (self.name, self.op, self.args, self.least)

    def __repr__(self) -> str:
        return f"Atom({self.text})"

    def __str__(self) -> str:
        return self.text

    def _shown(self) -> str:
        if not self.op:
            return self.name
        if self.op in DIVISIONS:
            return f"({operation_text(self.op, list(map(operand_text, self.args)))})"
        return operation_text(self.op, list(map(str, self.args)))

    @property
    def is_closed(self) -> bool:
        """Whether the text needs no parentheses in larger ones: it is an operation, or a name that
        does not look like one.
        """
        return bool(self.op or re.fullmatch(_PLAIN_NAME, self.name))

    @property
    def is_bounded(self) -> bool:
        """Whether an expression without this operation may bound it (`_atom_bound`)."""
        return self.op in ("//", "min")

    @property
    def named(self) -> frozenset[Atom]:
        """The named sizes in this atom, which may be the atom itself. They are computed once for
        each operation, since nested operations lead to few names along many paths.
        """
        if not self.op:
            return frozenset((self,))
        if self._named is None:
            sizes = (arg.named for arg in self.args if isinstance(arg, SymDim))
            self._named = frozenset[Atom]().union(*sizes)
        return self._named


_AtomKey: TypeAlias = "tuple[str, str, tuple[Dim, ...], int]"
_ATOMS: Final[WeakValueDictionary[_AtomKey, Atom]] = WeakValueDictionary()
_ATOMS_LOCK: Final = Lock()
_CACHE_BYTES: Final = 1 << 22

OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}
"""The operations without a polynomial form, as functions of numbers."""
_PLAIN_NAME: Final = r"\??[\w.]+"


class SymDim:
    """A symbolic dimension; supports `+ - * // %` with ints and other dimensions. `weight` is its
    number of terms, those inside its operations included; `degree` its highest power.
    """

    __slots__ = ("_hash", "_text", "degree", "terms", "weight")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        kept = [(m, c) for m, c in terms.items() if c]
        weight = degree = 0
        for monomial, coefficient in kept:
            weight += 1
            powers = 0
            for atom, power in monomial:
                weight += atom.weight
                powers += power
            degree = max(degree, powers)
            if not -_LARGEST_COEFFICIENT <= coefficient <= _LARGEST_COEFFICIENT:
                raise _too_long("too large a factor")
        if weight > _MOST_TERMS or degree > _HIGHEST_DEGREE:
            raise _too_long(f"too many terms, or a degree above {_HIGHEST_DEGREE}")
        if len(kept) > 1:
            kept.sort(key=_by_rank, reverse=True)
        self.weight: Final = weight
        self.degree: Final = degree
        self.terms: Final = tuple(kept)
        self._hash: Final = hash(self.terms)
        self._text = ""

    @staticmethod
    def symbol(name: str, least: int = 1) -> SymDim:
        """Returns the dimension named `name`, which is at least `least` (0 or 1) in every call."""
        assert least in (0, 1)
        return _of_atom(Atom(name, least=least))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymDim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Dim) -> Dim:
        if other.__class__ is int and not other:
            return self
        return _sum(self, other) if _is_size(other) else NotImplemented

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
        if other.__class__ is int and other == 1:
            return self
        return _product(self, other) if _is_size(other) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if not _is_size(other):
            return NotImplemented
        if isinstance(other, int):
            if other == 1:
                return self
            if other and all(c % other == 0 for m, c in self.terms if m):
                return _normal({m: c // other for m, c in self.terms})  # rounds the constant down
            if other > 0 and all(c < 0 for m, c in self.terms if m):
                return -((-self + (other - 1)) // other)  # rounds up the positive quotient
            nested = _nested_quotient(self, other)
            if nested is not None:
                return nested
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
            if other and all(c % other == 0 for m, c in self.terms if m):
                return sum(c for m, c in self.terms if not m) % other
            if other > 0:
                return _remainder(self, other)
        elif self == other:
            return 0
        return _apply("%", self, other)

    def __rmod__(self, other: int) -> Dim:
        return _apply("%", other, self)

    def __str__(self) -> str:
        if not self._text:
            self._text = self._shown()
        return self._text

    def _shown(self) -> str:
        return sum_text([(product_text([(a.text, p) for a, p in m]), c) for m, c in self.terms])

    def __repr__(self) -> str:
        return f"SymDim({self})"

    @property
    def atom(self) -> Atom | None:
        """The atom that this dimension consists of; None if it is a sum, product or power."""
        if len(self.terms) == 1:
            monomial, coefficient = self.terms[0]
            if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                return monomial[0][0]
        return None

    @property
    def is_closed(self) -> bool:
        """Whether the text needs no parentheses in a larger expression."""
        atom = self.atom
        return atom is not None and atom.is_closed

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the sizes in this dimension."""
        return frozenset([atom.name for atom in self.named])

    @property
    def from_zero(self) -> frozenset[str]:
        """Names of the sizes in this dimension that may be 0."""
        return frozenset([atom.name for atom in self.named if atom.least == 0])

    @property
    def named(self) -> frozenset[Atom]:
        """The atoms of named sizes in this dimension."""
        return frozenset[Atom]().union(*(a.named for m, _ in self.terms for a, _ in m))

    def substitute(self, sizes: Mapping[str, Dim], values: dict[Atom, Dim] | None = None) -> Dim:
        """Returns the dimension with named sizes replaced; an int if all are known. `values`
        collects those of atoms, for further dimensions in which the same sizes are replaced.
        """
        values = {} if values is None else values
        terms: dict[_Monomial, int] = {}
        for monomial, coefficient in self.terms:
            product: Dim | None = None
            for atom, power in monomial:
                value = values.get(atom)
                if value is None:
                    value = values[atom] = _substitute_atom(atom, sizes, values)
                for _ in range(power):
                    product = value if product is None else product * value
            for inner, times in _terms(1 if product is None else product):
                terms[inner] = terms.get(inner, 0) + coefficient * times
        return _normal(terms)


def _by_rank(term: tuple[_Monomial, int]) -> list[tuple[tuple[str, str], int]]:
    return [(atom.rank, power) for atom, power in term[0]]


# Bounds of the compiler's own arithmetic. Sizes of values have fewer terms (`check_size`).
_MOST_TERMS: Final = 1 << 16
_MOST_PRODUCTS: Final = 1 << 17
_HIGHEST_DEGREE: Final = 64
_LARGEST_COEFFICIENT: Final = 1 << 256
# Of one value.
_MOST_PARTS: Final = 16  # products of terms, for each term that a size may have
MAX_DEGREE: Final = 16


def _too_long(what: str) -> SizeError:
    return SizeError(
        "T112",
        f"a size that depends on free dimensions has {what}",
        hint="give the sizes of inputs as numbers",
    )


def check_size(*dims: Dim) -> None:
    """Checks that the sizes of a value, and their product, are short expressions.

    Errors: T112 for more terms than the budget, or a degree above `MAX_DEGREE`.
    """
    known = [dim for dim in dims if isinstance(dim, SymDim)]
    if not known:
        return
    limit = current().size_terms
    terms = max(dim.weight for dim in known)
    if terms > limit:
        what = "terms of a size that depends on free dimensions"
        raise exceeded(SizeError, "T112", what, terms, "size_terms", limit)
    if math.prod(len(dim.terms) for dim in known) > _MOST_PARTS * limit:
        raise _too_long("too many terms")
    degrees = [dim.degree for dim in known]
    if max(degrees) > MAX_DEGREE or sum(degrees) > 2 * MAX_DEGREE:
        raise _too_long(f"a degree above {MAX_DEGREE}")
    if any(abs(c) >= 1 << 63 for dim in known for _, c in dim.terms):
        raise _too_long("a factor beyond 64 bits")


@bounded_cache(_CACHE_BYTES)
def _sum(left: SymDim, right: Dim) -> Dim:
    terms = dict(left.terms)
    for monomial, coefficient in _terms(right):
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _normal(terms)


@bounded_cache(_CACHE_BYTES)
def _product(left: SymDim, right: Dim) -> Dim:
    terms: dict[_Monomial, int] = {}
    others = _terms(right)
    if len(left.terms) * len(others) > _MOST_PRODUCTS:
        raise _too_long("too many terms")
    for (a, by), (b, times) in itertools.product(left.terms, others):
        powers: dict[Atom, int] = dict(a)
        for atom, power in b:
            powers[atom] = powers.get(atom, 0) + power
        monomial = tuple(sorted(powers.items(), key=lambda item: item[0].rank))
        terms[monomial] = terms.get(monomial, 0) + by * times
    return _normal(terms)


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
    """Returns left / right if right is one term that divides every term of left, or if left is
    right times a number.
    """
    if len(right.terms) != 1:
        times = left.terms[0][1] // right.terms[0][1]
        return times if right * times == left else None
    (divisor, by), result = right.terms[0], dict[_Monomial, int]()
    for monomial, coefficient in left.terms:
        powers = dict(monomial)
        if coefficient % by or any(powers.get(atom, 0) < power for atom, power in divisor):
            return None
        for atom, power in divisor:
            powers[atom] -= power
        result[tuple((a, p) for a, p in powers.items() if p)] = coefficient // by
    return _normal(result)


def _nested_quotient(left: SymDim, by: int) -> Dim | None:
    """Returns `(a // n + c) // by` as `(a + n * c) // (n * by)`, for positive n and `by`."""
    const, atoms = 0, []
    for monomial, coefficient in left.terms:
        if not monomial:
            const = coefficient
        elif coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            atoms.append(monomial[0][0])
        else:
            return None
    if len(atoms) != 1 or atoms[0].op != "//" or by < 1:
        return None
    inner, first = atoms[0].args
    if not isinstance(first, int) or first < 1:
        return None
    return (inner + first * const) // (first * by)


def _remainder(left: SymDim, by: int) -> Dim:
    """Returns `left % by`. The distance to the next multiple, `-a % by`, is `-a` plus that
    multiple, so that `a` plus the distance becomes the multiple.
    """
    plain: Dim = 0
    for monomial, coefficient in left.terms:
        part: Dim = SymDim({monomial: coefficient})
        if len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0].op == "%":
            inner, period = monomial[0][0].args
            if isinstance(period, int) and period > 0 and period % by == 0:
                part = inner * coefficient  # remainders of remainders
        plain = plain + part
    if isinstance(plain, int):
        return plain % by
    if plain != left:
        return plain % by
    if all(c < 0 for m, c in plain.terms if m):
        return plain - plain // by * by
    return _apply("%", plain, by)


def _apply(op: str, left: Dim, right: Dim) -> Dim:
    if isinstance(left, int) and isinstance(right, int):
        return OPERATIONS[op](left, right)
    return _of_atom(Atom("", op, (left, right)))


def _of_atom(atom: Atom) -> SymDim:
    return SymDim({((atom, 1),): 1})


def _substitute_atom(atom: Atom, sizes: Mapping[str, Dim], values: dict[Atom, Dim]) -> Dim:
    if not atom.op:
        return sizes.get(atom.name, _of_atom(atom))
    left, right = (
        arg.substitute(sizes, values) if isinstance(arg, SymDim) else arg for arg in atom.args
    )
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
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return _min(left, right)


@bounded_cache(_CACHE_BYTES)
def _min(left: Dim, right: Dim) -> Dim:
    if left == right or _is_never_smaller(right, left):
        return left
    if _is_never_smaller(left, right):
        return right
    for bound, dim in ((left, right), (right, left)):
        whole, cut = _cut(dim)
        if whole is not None and _is_never_smaller(bound, 0):
            return dim_min(cut + bound, whole) - dim_min(cut, whole)
    return _apply("min", left, right)


def _cut(dim: Dim) -> tuple[Dim | None, Dim]:
    """Returns `n` and `k` of a size `n - min(k, n)`: that of a slice from `k` on, which in turn may
    be sliced. Its minimum with a bound `b >= 0` is `min(k + b, n) - min(k, n)`, so that the sizes
    of slices of slices stay short.
    """
    for monomial, coefficient in _terms(dim):
        if coefficient == -1 and len(monomial) == 1 and monomial[0][1] == 1:
            (atom, _), *_ = monomial
            whole = dim + _of_atom(atom)
            if atom.op == "min" and whole in atom.args:
                return whole, atom.args[1 - atom.args.index(whole)]
    return None, 0


def dim_max(left: Dim, right: Dim) -> Dim:
    """Returns the larger dimension."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return _max(left, right)


@bounded_cache(_CACHE_BYTES)
def _max(left: Dim, right: Dim) -> Dim:
    if left == right or _is_never_smaller(left, right):
        return left
    return right if _is_never_smaller(right, left) else _apply("max", left, right)


def _is_never_smaller(a: Dim, b: Dim) -> bool:
    """Whether `a` is at least `b` for all sizes, 0 included."""
    return _lowest(a - b, 0) >= 0


def symbols(dim: Dim) -> frozenset[str]:
    """Returns the names in a dimension."""
    return dim.symbols if isinstance(dim, SymDim) else frozenset()


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


def exact_quotient(dim: Dim, by: Dim) -> Dim | None:
    """Returns `dim / by` if it is a polynomial without remainder, else None."""
    if isinstance(dim, int) and isinstance(by, int):
        return None if dim % by else dim // by
    if dim == 0:
        return 0
    quotient = dim // by
    return quotient if quotient * by == dim else None


def is_factor(factor: Dim, dim: Dim) -> bool:
    """Whether a dimension is the product of a factor and a polynomial."""
    return long_quotient(dim, factor) is not None


def long_quotient(dim: Dim, by: Dim) -> Dim | None:
    """Returns `dim / by` if it is a polynomial without remainder, by long division, else None."""
    if isinstance(by, int) or isinstance(dim, int):
        return exact_quotient(dim, by)
    leading, first = _leading(by)
    rest: Dim = dim
    quotient: Dim = 0
    for _ in range(_MOST_STEPS):
        if isinstance(rest, int):
            return quotient if rest == 0 else None
        monomial, coefficient = _leading(rest)
        powers = dict(monomial)
        for atom, power in leading:
            powers[atom] = powers.get(atom, 0) - power
        if coefficient % first or min(powers.values()) < 0:
            return None
        part: Dim = coefficient // first
        for atom, power in powers.items():
            for _ in range(power):
                part = part * _of_atom(atom)
        rest = rest - part * by
        quotient = quotient + part
    return None


def _leading(dim: SymDim) -> tuple[_Monomial, int]:
    """Returns the term of a dimension that comes first in an order that products preserve: by
    total power, then by the powers of atoms in their order.
    """

    def rank(term: tuple[_Monomial, int]) -> tuple[int, tuple[tuple[tuple[str, str], int], ...]]:
        powers = sorted(((atom.rank, power) for atom, power in term[0]), reverse=True)
        return sum(power for _, power in powers), tuple(powers)

    return max(dim.terms, key=rank)


class Sizes:
    """Values of named sizes. Values of dimensions at these sizes are computed once."""

    __slots__ = ("_atoms", "_values", "by_name")

    def __init__(self, by_name: Mapping[str, int], values: dict[SymDim, int] | None = None) -> None:
        """`values` are those of dimensions that are already known."""
        self.by_name = dict(by_name)
        self._values: dict[SymDim, int] = {} if values is None else values
        self._atoms: dict[Atom, int] = {}

    def value(self, dim: Dim) -> int:
        """Returns the value of a dimension.

        Errors: T110 for a division by 0.
        """
        if isinstance(dim, int):
            return dim
        found = self._values.get(dim)
        if found is None:
            found = 0
            for monomial, coefficient in dim.terms:
                for atom, power in monomial:
                    coefficient *= self._atom(atom) ** power
                found += coefficient
            self._values[dim] = found
        return found

    @property
    def computed(self) -> tuple[SymDim, ...]:
        """The dimensions whose values were requested, and those they consist of."""
        return tuple(self._values)

    def _atom(self, atom: Atom) -> int:
        found = self._atoms.get(atom)
        if found is None:
            if not atom.op:
                found = self.by_name[atom.name]
            else:
                left, right = self.value(atom.args[0]), self.value(atom.args[1])
                if right == 0 and atom.op in ("//", "%"):
                    raise GraphTypeError("T110", f"a size is {left} {atom.op} 0")
                found = OPERATIONS[atom.op](left, right)
            self._atoms[atom] = found
        return found


def value_at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Returns the value of a dimension at given sizes.

    Errors: T110 for a division by 0.
    """
    return dim if isinstance(dim, int) else Sizes(sizes).value(dim)


def numeric_part(dim: Dim) -> int:
    """Returns the constant term of a polynomial."""
    if isinstance(dim, int):
        return dim
    return next((c for monomial, c in dim.terms if not monomial), 0)


def ceil_div(dim: Dim, by: int) -> Dim:
    """Returns `dim / by`, rounded up."""
    whole = exact_quotient(dim, by)
    return (dim + by - 1) // by if whole is None else whole


# Values that `typical` takes for names: primes, so that no tile seems to divide them. Dimensions
# that are small at the first, such as the frames of a number of samples, take a later one.
TYPICAL_SIZES: Final = (127, 8191, 131071)
_TYPICAL_LEAST: Final = 32
_MOST_FACTS: Final = 2  # combined in one proof
_MOST_STEPS: Final = 32  # of a long division
_MOST_BOUNDED: Final = 512  # operations replaced in one bound
_MOST_SHIFTED: Final = 1 << 13  # terms of one bound
_FAR_BELOW: Final = -(1 << 62)


Expected: TypeAlias = "tuple[tuple[str, int], ...]"
"""Sizes to optimize for, by name."""
Meanings: TypeAlias = "tuple[tuple[str, Dim], ...]"
"""The dimensions that names of sizes stand for."""
_expected: ContextVar[Expected] = ContextVar("expected", default=())
_meanings: ContextVar[Meanings] = ContextVar("meanings", default=())


@contextlib.contextmanager
def expecting(sizes: Expected, meanings: Meanings = ()) -> Iterator[None]:
    """Makes `typical` use these sizes inside the block, and look through other names."""
    with scoped(_expected, sizes), scoped(_meanings, meanings):
        yield


def expected_sizes() -> Expected:
    """Returns the sizes of the innermost `expecting`."""
    return _expected.get()


def typical(dim: Dim) -> int:
    """Returns a number that stands for a dimension where only speed depends on it."""
    return dim if isinstance(dim, int) else _typical(dim, _expected.get(), _meanings.get())


@bounded_cache(_CACHE_BYTES)
def _typical(dim: SymDim, expected: Expected, meanings: Meanings) -> int:
    symbols = dim.symbols
    own = {name for name, _ in expected}
    meant = [(name, of) for name, of in meanings if name in symbols and name not in own]
    names = symbols.union(*(of.symbols for _, of in meant if isinstance(of, SymDim)))
    known = {name: size for name, size in expected if name in names}
    number = 0
    for size in TYPICAL_SIZES:
        sizes = {**dict.fromkeys(names, size), **known}
        with contextlib.suppress(GraphTypeError):  # a divisor may be 0 at small sizes
            number = value_at(dim, {**sizes, **{name: value_at(of, sizes) for name, of in meant}})
        if number >= _TYPICAL_LEAST:
            break
    if number < 1 and meant:
        fixed = dim.substitute(dict(meant))  # a number may be less than 1
        return fixed if isinstance(fixed, int) else 1
    return max(number, 1)


Facts: TypeAlias = "tuple[SymDim, ...]"
"""Expressions that are at least 0."""


def at_least(dim: Dim | float, low: int = 0, facts: Facts = ()) -> bool:
    """Whether a dimension is certainly at least `low`, for all named sizes (from 1 on, or from 0 on
    if their atoms say so) for which `facts` hold. An infinity is itself.
    """
    if not isinstance(dim, SymDim):
        return dim >= low
    return _at_least(dim - low if low else dim, facts)


def at_most(dim: Dim, high: int) -> bool:
    """Whether a dimension is certainly at most `high`."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        ((monomial, coefficient),) = dim.terms
        ((atom, power), *others) = monomial
        if atom.op == "min" and coefficient == power == 1 and not others:
            return any(at_most(side, high) for side in atom.args)
    return at_least(high - dim)


@bounded_cache(_CACHE_BYTES)
def _at_least(dim: Dim, facts: Facts) -> bool:
    if _lowest(dim) >= 0:
        return True
    if any(_lowest(dim - fact) >= 0 for fact in facts):
        return True
    return any(_lowest(rest) >= 0 for rest in _without(dim, facts, _MOST_FACTS))


def _without(dim: Dim, facts: Facts, most: int) -> Iterator[Dim]:
    """Yields a dimension minus multiples of up to `most` facts. Each multiple cancels a term that
    the dimension shares with the fact, up to a nonnegative remainder.
    """
    if isinstance(dim, int):
        return
    terms = dict(dim.terms)
    for number, fact in enumerate(facts):
        times = {_times(terms[m], c) for m, c in fact.terms if m and m in terms}
        for count in sorted(times - {0}):
            rest = dim - fact * count
            yield rest
            if most > 1:
                yield from _without(rest, facts[number + 1 :], most - 1)


def _times(whole: int, part: int) -> int:
    """Returns the quotient of two coefficients of the same sign, rounded down if they are positive
    and up if they are negative; 0 if their signs differ.
    """
    if (whole < 0) != (part < 0):
        return 0
    return whole // part if whole > 0 else -(whole // -part)


@bounded_cache(_CACHE_BYTES)
def _lowest(dim: Dim, size: int = 1) -> float:
    """Returns a lower bound of a dimension over named sizes of at least `size`; those that may be
    0 are at least 0.
    """
    if isinstance(dim, int):
        return dim
    first = _lowest_of_terms(_bounded(dim, linear=False), size)
    if first >= 0 or not any(map(_has_bound, (monomial for monomial, _ in dim.terms))):
        return first
    return max(first, _lowest_of_terms(_bounded(dim, linear=True), size))


def _lowest_of_terms(bounded: tuple[Mapping[_Monomial, int], int], size: int) -> float:
    # Each name is its least + t, t >= 0: without negative coefficients of t, the least is at t = 0.
    terms, divisor = bounded
    leasts = [[(_least_of(a, size), p) for a, p in monomial] for monomial in terms]
    rises = all(low >= 0 for term in leasts for low, _ in term)
    if rises and all(c >= 0 for m, c in terms.items() if m):  # least with each atom at its least
        least: int = sum(
            c * math.prod(low**p for low, p in term)
            for c, term in zip(terms.values(), leasts, strict=True)
        )
        return -(-least // divisor)
    if sum(math.prod(p + 1 for _, p in term) for term in leasts) > _MOST_SHIFTED:
        return -math.inf
    total = 0
    shifted: dict[_Monomial, int] = {}
    for monomial, coefficient in terms.items():
        for key, weight in _shifted(monomial, size):
            shifted[key] = shifted.get(key, 0) + coefficient * weight
    for key, weight in shifted.items():
        if not key:
            total = weight
        elif weight < 0:
            return -math.inf
    return -(-total // divisor)  # dimensions are whole numbers


@bounded_cache(_CACHE_BYTES)
def _shifted(monomial: _Monomial, size: int) -> tuple[tuple[_Monomial, int], ...]:
    """Returns a product of atoms, expanded in the amounts t by which atoms exceed their lower
    bounds: products of these amounts, with coefficients other than 0.
    """
    parts: list[tuple[_Monomial, int]] = []
    for choice in itertools.product(*(range(p + 1) for _, p in monomial)):
        weight = 1
        for (atom, power), t in zip(monomial, choice, strict=True):
            weight *= math.comb(power, t) * _least_of(atom, size) ** (power - t)
        if weight:
            taken = tuple((atom, t) for (atom, _), t in zip(monomial, choice, strict=True) if t)
            parts.append((taken, weight))
    return tuple(parts)


@bounded_cache(_CACHE_BYTES)
def _least_of(atom: Atom, size: int) -> int:
    """Returns a lower bound of an atom."""
    if not atom.op:
        return min(size, atom.least)
    left, right = (_lowest(a, size) for a in atom.args)
    best: float
    if atom.op == "max":
        best = max(left, right)
    elif atom.op == "min":
        best = min(left, right)
    elif atom.op == "//" and isinstance(atom.args[1], int) and atom.args[1] > 0:
        best = left if left == -math.inf else left // atom.args[1]
    elif atom.op == "//" and right >= 1 and left >= 0:
        best = int(_lowest(atom.args[0] - atom.args[1], size) >= 0)
    else:  # a divisor of 0 has no result
        best = 0 if right >= 0 and (left >= 0 or atom.op == "%") else -math.inf
    return _FAR_BELOW if best == -math.inf else int(best)


def _bounded(dim: SymDim, *, linear: bool) -> tuple[dict[_Monomial, int], int]:
    """Returns the terms of a lower bound, and a number that divides them: a quotient `a // n` with
    a negative coefficient becomes `a / n`, and `min(a, b)` becomes b. With `linear`, a quotient
    with a positive coefficient becomes `(a - n + 1) / n`.
    """
    terms, divisor = dict(dim.terms), 1
    # Terms that may have a bound, the longest first, since the terms of its bound may cancel
    # others. Terms of equal length are in the order in which they were added.
    order = itertools.count()
    places = {monomial: next(order) for monomial in terms if _has_bound(monomial)}
    waiting = [(-_length(monomial), place, monomial) for monomial, place in places.items()]
    heapq.heapify(waiting)
    settled: set[_Monomial] = set()
    for _ in range(_MOST_BOUNDED):  # what was replaced so far is a bound as well
        if not waiting or len(terms) > _MOST_SHIFTED:
            break
        monomial = heapq.heappop(waiting)[-1]
        weight = terms[monomial]
        bound = _atom_bound(monomial, weight, linear) if weight else None
        if bound is None:
            settled.add(monomial)
            continue
        del terms[monomial], places[monomial]
        atom, value, by = bound
        if by > 1:
            terms = {other: c * by for other, c in terms.items()}
            divisor *= by
        others: Dim = 1
        if len(monomial) > 1:
            others = SymDim({tuple((a, p) for a, p in monomial if a != atom): 1})
        for inner, c in _terms(value * others):
            terms[inner] = terms.get(inner, 0) + weight * c
            if _has_bound(inner) and (inner in settled or inner not in places):
                settled.discard(inner)
                place = places.setdefault(inner, next(order))
                heapq.heappush(waiting, (-_length(inner), place, inner))
    return terms, divisor


@bounded_cache(_CACHE_BYTES)
def _has_bound(monomial: _Monomial) -> bool:
    """Whether a product has an atom that `_atom_bound` may replace."""
    return any(power == 1 and atom.is_bounded for atom, power in monomial)


@bounded_cache(_CACHE_BYTES)
def _length(monomial: _Monomial) -> int:
    return sum(len(atom.text) for atom, _ in monomial)


def _atom_bound(monomial: _Monomial, weight: int, linear: bool) -> tuple[Atom, Dim, int] | None:
    """Returns an atom of a term and its bound, as a value and a divisor, that make the term
    smaller; None if there is none.
    """
    for atom, power in monomial:
        if power != 1 or not atom.is_bounded:
            continue
        others = [a for a, _ in monomial if a != atom]
        if not all(_least_of(a, 0) >= 0 for a in others):
            continue
        left, right = atom.args
        if atom.op == "min":
            if weight < 0:
                return atom, right, 1
        elif isinstance(right, int) and right > 0:
            if weight < 0:
                return atom, left, right
            if linear:
                return atom, left - right + 1, right
    return None


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
