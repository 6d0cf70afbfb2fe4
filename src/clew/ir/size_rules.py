"""Rules on the sizes of a call: comparisons of dimensions that a module needs to hold.

Frontends find them where a model computes something else, or fails, for other sizes: `x.view(-1,
3)` needs `n % 3 == 0`. Ranges of single sizes are in `own_sizes.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from clew.ir.dim_records import of_record, to_record
from clew.ir.dim_text import DIVISIONS
from clew.ir.dims import Dim, SymDim, is_factor, is_unknown, substitute, value_at
from clew.support.errors import GraphTypeError, InputError

RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Comparison: TypeAlias = "tuple[Dim, str, Dim]"


@dataclass(frozen=True)
class SizeRule:
    """Comparisons of dimensions, of which at least one holds in a call. `layer` needs the rule, and
    `code` is the line of the user's code that calls it; both may be unknown.
    """

    comparisons: tuple[Comparison, ...]
    layer: str = ""
    code: str = ""

    def __str__(self) -> str:
        return " or ".join(f"{_bare(a)} {how} {_bare(b)}" for a, how, b in self.comparisons)

    @property
    def names(self) -> frozenset[str]:
        """Names of the sizes in the rule."""
        dims = (dim for left, _, right in self.comparisons for dim in (left, right))
        return frozenset[str]().union(*(d.symbols for d in dims if isinstance(d, SymDim)))

    def at(self, sizes: Mapping[str, Dim]) -> SizeRule:
        """Returns the rule with named sizes replaced."""
        found = [
            (substitute(a, sizes), how, substitute(b, sizes)) for a, how, b in self.comparisons
        ]
        return SizeRule(tuple(found), self.layer, self.code)

    def check(self, sizes: Mapping[str, int]) -> None:
        """Checks the rule for the sizes of a call.

        Errors: I318.
        """
        if any(_holds(comparison, sizes) for comparison in self.comparisons):
            return
        given = ", ".join(f"{name} = {sizes[name]}" for name in sorted(self.names))
        error = InputError(
            "I318",
            f"the model needs {self}, which does not hold for {given}",
            hint="choose other sizes: the exported program is valid only where this holds",
            layer=self.layer,
        )
        error.position = self.code
        raise error

    @property
    def record(self) -> Any:
        """The rule as JSON values."""
        compared = [(to_record(a), how, to_record(b)) for a, how, b in self.comparisons]
        return [compared, self.layer, self.code]

    @staticmethod
    def of_record(record: Any) -> SizeRule:
        """Returns the rule of a `record`; ValueError for a record of another form."""
        compared, layer, code = record
        if any(how not in RELATIONS for _, how, _ in compared):
            raise ValueError(f"{compared!r} compares no dimensions")
        found = [(of_record(a), str(how), of_record(b)) for a, how, b in compared]
        return SizeRule(tuple(found), str(layer), str(code))


def size_rule(
    comparisons: Iterable[Comparison], layer: str = "", code: str = ""
) -> SizeRule | None:
    """Returns the rule that one of some comparisons holds; None if one always does, or is one of
    sizes that only the run determines.
    """
    found = []
    for left, how, right in comparisons:
        if is_unknown(left) or is_unknown(right):
            return None
        if how == "==":
            left, right = _as_remainder(left, right) or _as_remainder(right, left) or (left, right)
            if left == right or (right == 0 and _is_multiple(left)):
                return None
        found.append((left, how, right))
    return SizeRule(tuple(found), layer, code)


def _is_multiple(remainder: Dim) -> bool:
    """Whether a remainder is 0 for all sizes."""
    atom = remainder.atom if isinstance(remainder, SymDim) else None
    return atom is not None and atom.op == "%" and is_factor(atom.args[1], atom.args[0])


def _bare(dim: Dim) -> str:
    """Returns a dimension as text, without the parentheses of a quotient or remainder."""
    atom = dim.atom if isinstance(dim, SymDim) else None
    return str(dim)[1:-1] if atom is not None and atom.op in DIVISIONS else str(dim)


def _holds(comparison: Comparison, sizes: Mapping[str, int]) -> bool:
    left, how, right = comparison
    try:
        return RELATIONS[how](value_at(left, sizes), value_at(right, sizes))
    except GraphTypeError:  # a division by 0, where values are empty
        return True


def _as_remainder(left: Dim, right: Dim) -> tuple[Dim, Dim] | None:
    """Returns `left % n` and 0 if `right` is `n * (left // n)`, with which the comparison is that
    of both.
    """
    if isinstance(right, int) or len(right.terms) != 1:
        return None
    ((monomial, by),) = right.terms
    atom, power = monomial[0]
    if len(monomial) == power == 1 and atom.op == "//" and atom.args == (left, by):
        return left % by, 0
    return None
