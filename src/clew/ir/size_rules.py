"""Rules on the sizes of a call: comparisons of formulas that a module needs to hold.

Frontends find them where a model computes something else, or fails, for other sizes: `x.view(-1,
3)` needs `n % 3 == 0`. Ranges of single sizes are in `own_sizes.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

from clew.ir.dims import Dim, SymDim, is_factor
from clew.ir.size_formulas import (
    Formula,
    formula_of_record,
    formula_record,
    has_unknown,
    number_at,
    replaced,
    symbols_of,
    text_of,
)
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError, InputError

RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Comparison: TypeAlias = "tuple[Formula, str, Formula]"


@dataclass(frozen=True)
class SizeRule:
    """Comparisons of formulas, of which at least one holds in a call. `layer` needs the rule, and
    `code` is the line of the user's code that calls it; both may be unknown.
    """

    comparisons: tuple[Comparison, ...]
    layer: str = ""
    code: str = ""

    def __str__(self) -> str:
        return " or ".join(f"{text_of(a)} {how} {text_of(b)}" for a, how, b in self.comparisons)

    @property
    def names(self) -> frozenset[str]:
        """Names of the sizes in the rule."""
        sides = (side for left, _, right in self.comparisons for side in (left, right))
        return frozenset[str]().union(*map(symbols_of, sides))

    def at(self, sizes: Mapping[str, Dim]) -> SizeRule:
        """Returns the rule with named sizes replaced."""
        found = [(replaced(a, sizes), how, replaced(b, sizes)) for a, how, b in self.comparisons]
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
        compared = [(formula_record(a), how, formula_record(b)) for a, how, b in self.comparisons]
        return [compared, self.layer, self.code]

    @staticmethod
    def of_record(record: Any) -> SizeRule:
        """Returns the rule of a `record`; ValueError for a record of another form."""
        compared, layer, code = record
        if any(how not in RELATIONS for _, how, _ in compared):
            raise ValueError(f"{compared!r} compares no sizes")
        found = [(formula_of_record(a), str(how), formula_of_record(b)) for a, how, b in compared]
        return SizeRule(tuple(found), str(layer), str(code))


def size_rule(
    comparisons: Iterable[Comparison], layer: str = "", code: str = ""
) -> SizeRule | None:
    """Returns the rule that one of some comparisons holds; None if one always does, or is one of
    sizes that only the run determines.
    """
    found = []
    for left, how, right in comparisons:
        if has_unknown(left) or has_unknown(right):
            return None
        if how == "==" and _is_dim(left) and _is_dim(right):
            left, right = _as_remainder(left, right) or _as_remainder(right, left) or (left, right)
            if left == right or (right == 0 and _is_multiple(left)):
                return None
        found.append((left, how, right))
    return SizeRule(tuple(found), layer, code)


def _is_multiple(remainder: Dim) -> bool:
    """Whether a remainder is 0 for all sizes."""
    atom = remainder.atom if isinstance(remainder, SymDim) else None
    return atom is not None and atom.op == "%" and is_factor(atom.args[1], atom.args[0])


def _is_dim(formula: Formula) -> TypeGuard[Dim]:
    return isinstance(formula, (int, SymDim))


def _holds(comparison: Comparison, sizes: Mapping[str, int]) -> bool:
    left, how, right = comparison
    try:
        return RELATIONS[how](number_at(left, sizes), number_at(right, sizes))
    except GraphTypeError:  # a division by 0, where values are empty
        return True
    except (ArithmeticError, ValueError, TypeError):  # the model's own code fails
        return False


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
