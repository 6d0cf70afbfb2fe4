"""Which values are never negative, for rules that hold only for those."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, is_float
from clew.ops.registry import Op, runs_on_host
from clew.support.walk import post_order


def never_negative(value: Expr) -> bool:
    """Whether its operators show that no element of a float tensor is negative or -0. NaN does not
    count.
    """
    found: dict[int, bool] = {}
    for node in post_order([value], _decide):
        found[node.id] = _is(node, [found[n.id] for n in _decide(node)])
    return found[value.id]


def _decide(value: Expr) -> Sequence[Expr]:
    """Returns the operands that decide the signs of a value."""
    if not isinstance(value, Call) or not isinstance(value.op, Op) or _is_square(value):
        return ()
    if value.op.traits.never_negative == "as operands":
        return value.args
    types = [a.type for a in value.args if isinstance(a.type, TensorType)]
    if value.op.traits.never_negative or runs_on_host(value) or len(types) < len(value.args):
        return ()
    return [value.args[n] for n in value.op.moved_and_written(types, value.attrs)[0]]


def _is(value: Expr, operands: Sequence[bool]) -> bool:
    if not isinstance(value.type, TensorType) or not is_float(value.type.dtype):
        return False
    if isinstance(value, Constant):
        return value.is_splat and not np.signbit(value.splat_value)
    if not isinstance(value, Call) or not isinstance(value.op, Op):
        return False
    if value.op.traits.never_negative == "always" or _is_square(value):
        return True
    if value.op.name == "clip":
        return value.attrs.min is not None and bool(value.attrs.min > 0)
    if value.op.name == "maximum" and any(map(_is_above_zero, value.args)):
        return True
    if not operands or not all(operands):
        return False
    if value.op.traits.never_negative:
        return True
    types = [a.tensor for a in value.args]
    written = value.op.moved_and_written(types, value.attrs)[1]
    return all(math.copysign(1, n) > 0 for n in written)


def _is_square(value: Call) -> bool:
    return value.op_name == "multiply" and value.args[0] is value.args[1]


def _is_above_zero(value: Expr) -> bool:
    return isinstance(value, Constant) and value.is_splat and bool(value.splat_value > 0)
