"""Bounds of index expressions: dimensions, or infinities.

A comparison holds only if it holds for all sizes. `facts` are dimensions that are at least 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from clew.ir.dims import Dim, Facts, SymDim, at_least, exact_quotient

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
    """Returns a bound divided by a dimension, which is at least 1, and rounded down."""
    if isinstance(value, float):
        return value
    quotient = exact_quotient(value + 1, by)
    return value // by if quotient is None else quotient - 1  # the last of whole groups


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
    below, above = at_least(negated(high), 1, facts), at_least(low, 1, facts)  # < 0 and > 0
    up_to, from_ = at_least(negated(high), 0, facts), at_least(low, 0, facts)  # <= 0 and >= 0
    always: Mapping[str, bool] = {
        "lt": below, "le": up_to, "gt": above, "ge": from_,
        "eq": low == 0 and high == 0, "ne": below or above,
    }  # fmt: skip
    never: Mapping[str, bool] = {
        "lt": from_, "le": above, "gt": up_to, "ge": below,
        "eq": below or above, "ne": low == 0 and high == 0,
    }  # fmt: skip
    if always[op]:
        return True
    return False if never[op] else None
