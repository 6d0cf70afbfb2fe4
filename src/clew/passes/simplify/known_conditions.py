"""Rules of SimplifyExpr for conditions that have the same value for every input, such as a
comparison of positions with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clew.ir.expr import Constant, Expr
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.passes.integer_bounds import integer_bounds
from clew.patterns import Match, Pattern, Rule, is_op, is_splat, rule, wildcard
from clew.patterns.exactness import EXACT

_x, _limit = wildcard(), is_splat()

# Whether a comparison with `c` holds for all values from `low` to `high`.
_ALWAYS: Final[Mapping[str, Callable[[float, float, float], bool]]] = {
    "greater": lambda low, high, c: low > c,
    "greater_equal": lambda low, high, c: low >= c,
    "less": lambda low, high, c: high < c,
    "less_equal": lambda low, high, c: high <= c,
}
_OPPOSITE: Final = {
    "greater": "less_equal", "greater_equal": "less", "less": "greater_equal",
    "less_equal": "greater",
}  # fmt: skip


@rule(is_op(*_ALWAYS)(_x, _limit), EXACT)
def known_comparison(found: Match) -> Expr | None:
    """A comparison of integers with a number is constant if their bounds decide it."""
    bounds = integer_bounds(found[_x])
    if bounds is None:
        return None
    limit, op = found.constant(_limit).splat_value, str(getattr(found.root, "op_name", ""))
    holds, fails = (_ALWAYS[name](*bounds, limit) for name in (op, _OPPOSITE[op]))
    if not holds and not fails:
        return None
    value = Constant.splat(holds, TensorType((), "bool"))
    return _in_shape(found, value)


def _everywhere(value: bool) -> Pattern:
    return is_splat(value) | is_op("broadcast_to")(is_splat(value))


@rule(
    is_op("logical_and")(_x, _everywhere(True)) | is_op("logical_or")(_x, _everywhere(False)), EXACT
)
def neutral_condition(found: Match) -> Expr | None:
    """`x and true` and `x or false` become `x`."""
    return _in_shape(found, found[_x])


def _in_shape(found: Match, value: Expr) -> Expr:
    """Returns a value broadcast to the shape of the match's root."""
    root = found.root.tensor
    return (
        value
        if value.tensor.shape == root.shape
        else get_op("broadcast_to")(value, shape=root.shape)
    )


CONDITIONS: Final[tuple[Rule, ...]] = (known_comparison, neutral_condition)
