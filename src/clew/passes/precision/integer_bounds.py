"""Bounds of the elements of integer tensors, from the operators that compute them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, integer_limits, is_integer
from clew.ops.registry import Op, runs_on_host
from clew.support.walk import post_order

Bounds: TypeAlias = "tuple[int, int]"


def integer_bounds(value: Expr) -> Bounds | None:
    """Returns the lowest and the highest number that an element of an integer tensor may be; None
    for other values.

    A sum or difference beyond its dtype wraps, so it may be any number.
    """
    found: dict[int, Bounds | None] = {}
    for node in post_order([value], _decide):
        found[node.id] = _bounds(node, [found.get(n.id) for n in _decide(node)])
    return found[value.id]


def _decide(value: Expr) -> Sequence[Expr]:
    """Returns the operands that decide which numbers a value holds; none for computations about
    which nothing is known.
    """
    if not isinstance(value, Call) or not isinstance(value.type, TensorType):
        return ()
    if not is_integer(value.type.dtype):
        return ()
    match value.op_name:
        case "cast" | "add" | "subtract":
            return value.args
    if not isinstance(value.op, Op) or runs_on_host(value):
        return ()
    types = [a.type for a in value.args if isinstance(a.type, TensorType)]
    if len(types) < len(value.args):
        return ()
    moved, _ = value.op.moved_and_written(types, value.attrs)
    return [value.args[n] for n in moved]


def _bounds(value: Expr, operands: Sequence[Bounds | None]) -> Bounds | None:
    """Returns the bounds of a value by those of the operands that decide it."""
    if not isinstance(value.type, TensorType) or not is_integer(value.type.dtype):
        return None
    whole = integer_limits(value.type.dtype)
    found = _exact(value, operands)
    if found is None or found[0] < whole[0] or found[1] > whole[1]:
        return whole
    return found


def _exact(value: Expr, operands: Sequence[Bounds | None]) -> Bounds | None:
    """Returns the bounds of a value's exact result; None if unknown."""
    if isinstance(value, Constant):
        data = value.data
        return (int(data.min()), int(data.max())) if data.size else (0, 0)
    known = [bounds for bounds in operands if bounds is not None]
    if not isinstance(value, Call) or not known or len(known) < len(operands):
        return None
    numbers: list[int] = []
    match value.op_name:
        case "add":
            (low, high), (least, most) = known
            return low + least, high + most
        case "subtract":
            (low, high), (least, most) = known
            return low - most, high - least
        case "cast":
            pass
        case _:
            assert isinstance(value.op, Op)
            types = [a.type for a in value.args if isinstance(a.type, TensorType)]
            numbers = [int(n) for n in value.op.moved_and_written(types, value.attrs)[1]]
    return min(numbers + [low for low, _ in known]), max(numbers + [high for _, high in known])
