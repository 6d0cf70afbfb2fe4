"""Bounds of index expressions: dimensions, or infinities.

A comparison holds only if it holds for all sizes. `facts` are dimensions that are at least 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from clew.ir.dims import Dim, Facts, SymDim, at_least, long_quotient

Bound: TypeAlias = "Dim | float"
"""A dimension, or an infinity."""
Range: TypeAlias = "tuple[Bound, Bound]"
UNBOUNDED: Range = (-math.inf, math.inf)


def negated(bound: Bound) -> Bound:
    """Returns a bound times -1."""
    return -bound


def plus(a: Bound, b: Bound) -> Bound:
    """Returns the sum of two bounds."""
    if isinstance(a, float) and math.isinf(a):
        return a
    if isinstance(b, float) and math.isinf(b):
        return b
    return a + b  # type: ignore[operator]


def times(bound: Bound, by: Dim, sign: int) -> Bound:
    """Returns the product of a bound and a dimension of the given sign."""
    if isinstance(bound, float) and math.isinf(bound):
        if isinstance(by, int) and by == 0:
            return 0
        return bound * sign
    return bound * by  # type: ignore[operator]


def floor_quotient(value: Bound, by: Dim) -> Bound:
    """Returns a bound divided by a dimension that is at least 1, and rounded down."""
    if isinstance(value, float):
        return value
    quotient = long_quotient(value + 1, by)
    if quotient is not None:  # the last of whole groups
        return quotient - 1
    return value // by


def difference(a: Bound, b: Bound) -> Bound:
    """Returns a - b, or NaN for two equal infinities."""
    if isinstance(a, float) and isinstance(b, float):
        return a - b
    return plus(a, negated(b))


def lower(a: Bound, b: Bound, facts: Facts = ()) -> Bound:
    """Returns a bound below both: the smaller one, or an infinity if that depends on sizes."""
    if at_least(difference(b, a), 0, facts):
        return a
    if at_least(difference(a, b), 0, facts):
        return b
    return 0 if at_least(a, 0, facts) and at_least(b, 0, facts) else -math.inf


def higher(a: Bound, b: Bound, facts: Facts = ()) -> Bound:
    """Returns a bound above both: the larger one, or an infinity if that depends on sizes."""
    if at_least(difference(b, a), 0, facts):
        return b
    return a if at_least(difference(a, b), 0, facts) else math.inf


def below_all(values: Sequence[tuple[Bound, Facts]]) -> Bound:
    """Returns a lower bound of several values, each given with the facts that hold where it occurs.
    It is the first that holds among the values, 0, and each value less one of its facts; if none
    holds, an infinity.
    """
    plain = [value for value, _ in values]
    weaker = [plus(value, negated(fact)) for value, facts in values for fact in facts]
    for bound in dict.fromkeys((*plain, 0, *weaker)):
        if all(at_least(difference(value, bound), 0, facts) for value, facts in values):
            return bound
    return -math.inf


def smaller(a: Bound, b: Bound, facts: Facts) -> Bound:
    """Returns the smaller of two upper bounds; if sizes decide, a number, or the second."""
    return a if at_least(difference(b, a), 0, facts) or _is_preferred(a, b) else b


def larger(a: Bound, b: Bound, facts: Facts) -> Bound:
    """Returns the larger of two lower bounds; if sizes decide, a number, or the second."""
    return a if at_least(difference(a, b), 0, facts) or _is_preferred(a, b) else b


def _is_preferred(a: Bound, b: Bound) -> bool:
    return (isinstance(a, int) and isinstance(b, SymDim)) or isinstance(b, float)


def decided(op: str, low: Bound, high: Bound, facts: Facts) -> bool | None:
    """Decides `op` for a difference a - b between `low` and `high`."""
    if op in ("eq", "ne"):
        if low == 0 and high == 0:
            return op == "eq"
        apart = at_least(low, 1, facts) or at_least(negated(high), 1, facts)
        return op == "ne" if apart else None
    always, never = _PROOFS[op]
    if _holds(always, low, high, facts):
        return True
    return False if _holds(never, low, high, facts) else None


# Of each comparison with 0, what proves that it always holds, and that it never does.
_PROOFS: Final[Mapping[str, tuple[str, str]]] = {
    "lt": ("<", ">="), "le": ("<=", ">"), "gt": (">", "<="), "ge": (">=", "<"),
}  # fmt: skip


def _holds(relation: str, low: Bound, high: Bound, facts: Facts) -> bool:
    """Whether all values between `low` and `high` have a relation to 0."""
    least = 0 if relation.endswith("=") else 1
    return at_least(low if relation[0] == ">" else negated(high), least, facts)
