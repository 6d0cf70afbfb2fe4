"""Bounds of the elements of integer tensors, from the operators that compute them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, is_integer, to_numpy
from clew.ops.registry import Op, runs_on_host

Bounds: TypeAlias = "tuple[int, int]"


def integer_bounds(value: Expr) -> Bounds | None:
    """Returns the lowest and the highest number that an element of an integer tensor may be; None
    for other values.

    A sum or difference beyond its dtype wraps, so it may be any number.
    """
    if not isinstance(value.type, TensorType) or not is_integer(value.type.dtype):
        return None
    limits = np.iinfo(to_numpy(value.type.dtype))
    whole = int(limits.min), int(limits.max)
    found = _computed(value)
    if found is None or found[0] < whole[0] or found[1] > whole[1]:
        return whole
    return found


def _computed(value: Expr) -> Bounds | None:
    """Returns the bounds of a value's exact result; None if unknown."""
    if isinstance(value, Constant):
        data = value.data
        return (int(data.min()), int(data.max())) if data.size else (0, 0)
    if not isinstance(value, Call):
        return None
    if value.op_name == "cast":
        return integer_bounds(value.args[0])
    if value.op_name in ("add", "subtract"):
        first, second = map(integer_bounds, value.args)
        if first is None or second is None:
            return None
        low, high = second if value.op_name == "add" else (-second[1], -second[0])
        return first[0] + low, first[1] + high
    if not isinstance(value.op, Op) or runs_on_host(value):
        return None
    types = [a.type for a in value.args if isinstance(a.type, TensorType)]
    if len(types) < len(value.args):
        return None
    moved, written = value.op.moved_and_written(types, value.attrs)
    found = [integer_bounds(value.args[n]) for n in moved]
    known = [bounds for bounds in found if bounds is not None]
    if not moved or len(known) < len(found):
        return None
    numbers = [int(n) for n in written]
    return min(numbers + [low for low, _ in known]), max(numbers + [high for _, high in known])
