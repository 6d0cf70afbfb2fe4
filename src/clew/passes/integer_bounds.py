"""Bounds of the elements of integer tensors, from the operators that compute them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import TensorType, integer_limits, is_integer
from clew.ops.registry import Op, runs_on_host
from clew.support.walk import post_order

Bounds: TypeAlias = "tuple[int, int]"
_MOST_ELEMENTS: Final = 1 << 16  # of a constant


def integer_bounds(value: Expr) -> Bounds | None:
    """Returns the lowest and the highest number that an element of an integer tensor may be; None
    for other values.

    A result beyond its dtype wraps, so it may be any number.
    """
    return IntegerBounds().of(value)


class IntegerBounds:
    """The bounds of many values of a module. Those of shared operands are computed once."""

    def __init__(self) -> None:
        self._found: dict[int, Bounds | None] = {}
        self._values: dict[int, Expr] = {}  # alive, so that no other value has their `id`

    def of(self, value: Expr) -> Bounds | None:
        """Returns `integer_bounds` of a value."""
        found = self._found
        for node in post_order([value], _decide, self._values):
            found[id(node)] = _bounds(node, [found.get(id(n)) for n in _decide(node)])
            self._values[id(node)] = node
        return found[id(value)]


def _decide(value: Expr) -> Sequence[Expr]:
    """Returns the operands that decide which numbers a value holds; none for computations about
    which nothing is known.
    """
    if not isinstance(value, Call) or not isinstance(value.type, TensorType):
        return ()
    if not isinstance(value.op, Op) or not is_integer(value.type.dtype) or runs_on_host(value):
        return ()
    match value.op.name:
        case "cast" | "add" | "subtract" | "multiply":
            return value.args
        case "clip" | "scale_fixed":
            return value.args[:1]
        case _ if value.op.traits.product:
            return value.args[:2]
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
        return _of_constant(value)
    if not isinstance(value, Call) or not isinstance(value.op, Op):
        return None
    if value.op.name == "arange":
        return _of_arange(value)
    known = [bounds for bounds in operands if bounds is not None]
    if not known or len(known) < len(operands):
        return None
    numbers: list[int] = []
    match value.op.name:
        case "add":
            (low, high), (least, most) = known
            return low + least, high + most
        case "subtract":
            (low, high), (least, most) = known
            return low - most, high - least
        case "multiply":
            return _product(known)
        case "clip":
            low, high = (_clipped(value, bound) for bound in known[0])
            return low, high
        case "scale_fixed":  # the factor is less than 1
            most = max(map(abs, known[0]))
            return -most, most
        case "cast":
            pass
        case _ if value.op.traits.product:
            return _sum_of_products(value, known)
        case _:
            types = [a.type for a in value.args if isinstance(a.type, TensorType)]
            numbers = [int(n) for n in value.op.moved_and_written(types, value.attrs)[1]]
    return min(numbers + [low for low, _ in known]), max(numbers + [high for _, high in known])


def _clipped(value: Call, number: int) -> int:
    for name, pick in (("min", max), ("max", min)):
        bound = value.attrs[name]
        if bound is not None and math.isfinite(bound):
            number = pick(number, int(bound))
    return number


def _product(known: Sequence[Bounds]) -> Bounds:
    ends = [a * b for a in known[0] for b in known[1]]
    return min(ends), max(ends)


def _sum_of_products(value: Call, known: Sequence[Bounds]) -> Bounds | None:
    """Returns the bounds of a convolution or a matrix product; its window may lie in the padding in
    part.
    """
    data, weight = (operand.tensor for operand in value.args[:2])
    match value.op_name:
        case "nn.conv2d" if value.attrs.weight_layout == "OIHW":
            shape = weight.shape[1:]
        case "nn.matmul" | "nn.dense":
            shape = data.shape[-1:]
        case _:
            return None
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape):
        return None
    low, high = (math.prod(sizes) * end for end in _product(known))
    return min(low, 0), max(high, 0)


def _of_constant(value: Constant) -> Bounds | None:
    """Returns the bounds of a constant; None if it is too large to look through."""
    if value.is_splat:
        return int(value.splat_value), int(value.splat_value)
    if not 0 < math.prod(value.tensor.concrete) <= _MOST_ELEMENTS:
        return None
    return int(value.data.min()), int(value.data.max())


def _of_arange(value: Call) -> Bounds | None:
    """Returns bounds for a range of any length: its first element is the smallest or largest."""
    start, step = value.attrs.get("start", 0), value.attrs.get("step", 1)
    numbers = isinstance(start, int) and isinstance(step, int) and step != 0
    if not numbers or value.tensor.dtype != "i64":  # narrower ranges may wrap around
        return None
    lowest, highest = integer_limits("i64")
    return (start, highest) if step > 0 else (lowest, start)
