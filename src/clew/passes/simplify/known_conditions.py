"""Rules of SimplifyExpr for conditions that have the same value for every input, such as a
comparison of positions with 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, is_integer
from clew.ops.registry import Op, get_op
from clew.passes.simplify.simplify_rules import holds
from clew.patterns import Match, Pattern, Rule, is_op, is_splat, rule, wildcard

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

_MOST_ELEMENTS: Final = 1 << 16


def value_bounds(value: Expr) -> tuple[float, float]:
    """Returns a lower and an upper bound of the elements of an integer tensor, or infinities."""
    unknown = -math.inf, math.inf
    type_ = value.type
    if not isinstance(type_, TensorType) or not is_integer(type_.dtype):
        return unknown
    if isinstance(value, Constant):
        return _bounds_of_constant(value)
    if not isinstance(value, Call):
        return unknown
    if not isinstance(value.op, Op):
        return unknown
    if value.op_name == "arange":
        return _bounds_of_arange(value)
    if value.op_name == "cast" and holds(type_.dtype, value.args[0].tensor.dtype):
        return value_bounds(value.args[0])
    moved = _moved_operands(value)
    bounds = [value_bounds(operand) for operand in moved] or [unknown]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _moved_operands(call: Call) -> list[Expr]:
    """Returns the operands whose elements make up the result of a call that only moves data."""
    types = [arg.type for arg in call.args]
    if not isinstance(call.op, Op) or not all(isinstance(t, TensorType) for t in types):
        return []
    places = call.op.moved_operands(types, call.attrs)  # type: ignore[arg-type]
    return [call.args[place] for place in places]


def _bounds_of_constant(value: Constant) -> tuple[float, float]:
    if value.is_splat:
        return int(value.splat_value), int(value.splat_value)
    if not 0 < math.prod(value.tensor.concrete) <= _MOST_ELEMENTS:
        return -math.inf, math.inf
    return int(value.data.min()), int(value.data.max())


def _bounds_of_arange(value: Call) -> tuple[float, float]:
    """Returns bounds for a range of any length: its first element is the smallest or largest."""
    start, step = value.attrs.get("start", 0), value.attrs.get("step", 1)
    numbers = isinstance(start, int) and isinstance(step, int) and step != 0
    if not numbers or value.tensor.dtype != "i64":  # narrower ranges may wrap around
        return -math.inf, math.inf
    return (start, math.inf) if step > 0 else (-math.inf, start)


@rule(is_op(*_ALWAYS)(_x, _limit))
def known_comparison(found: Match) -> Expr | None:
    """A comparison of integers with a number is constant if their bounds decide it."""
    if not is_integer(found[_x].tensor.dtype):
        return None  # bounds say nothing about NaN
    limit, op = found.constant(_limit).splat_value, str(getattr(found.root, "op_name", ""))
    low, high = value_bounds(found[_x])
    holds_, fails = (_ALWAYS[name](low, high, limit) for name in (op, _OPPOSITE[op]))
    if not holds_ and not fails:
        return None
    value = Constant.splat(holds_, TensorType((), "bool"))
    return _in_shape(found, value)


def _everywhere(value: bool) -> Pattern:
    return is_splat(value) | is_op("broadcast_to")(is_splat(value))


@rule(is_op("logical_and")(_x, _everywhere(True)) | is_op("logical_or")(_x, _everywhere(False)))
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
