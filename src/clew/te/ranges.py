"""Ranges of the integers that tensor expressions compute, as dimensions.

A sum of conditions is at most the number of its terms; a minimum with a size is at most this size.
So counts of elements have bounds that follow from shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from typing import Final, NamedTuple

from clew.ir.dims import Dim, at_least, dim_max, dim_min, product
from clew.te.expr import (
    COMPARISONS,
    Binary,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
)
from clew.te.tensor import Tensor
from clew.te.walk import post_order


class Range(NamedTuple):
    """The smallest and the largest value, both included; None where nothing is known."""

    low: Dim | None = None
    high: Dim | None = None


UNKNOWN: Final = Range()
_CONDITION: Final = Range(0, 1)
_BITS: Final = {"bool": 1, "i8": 8, "u8": 8, "i16": 16, "u16": 16, "i32": 32, "u32": 32, "i64": 64}


def range_of(tensor: Tensor, of: Callable[[Tensor], Range]) -> Range:
    """Returns the range of a tensor's elements. `of` returns the range of a placeholder."""
    known: dict[int, Range] = {}
    return _tensor(tensor, of, known)


def _tensor(tensor: Tensor, of: Callable[[Tensor], Range], known: dict[int, Range]) -> Range:
    if tensor.dtype not in _BITS:
        return UNKNOWN
    if id(tensor) not in known:
        if tensor.body is None:
            known[id(tensor)] = of(tensor)
        else:
            found: dict[Scalar, Range] = {}
            for node in post_order(tensor.body):
                found[node] = _scalar(node, found, lambda t: _tensor(t, of, known))
            known[id(tensor)] = found[tensor.body]
    return known[id(tensor)]


def _scalar(node: Scalar, of: dict[Scalar, Range], tensor: Callable[[Tensor], Range]) -> Range:
    match node:
        case Imm() if node.dtype in _BITS:
            return Range(int(node.value), int(node.value))
        case Index():
            return Range(0, node.extent - 1)
        case Size():
            return Range(node.dim, node.dim)
        case Load():
            found = tensor(node.source)
            return _CONDITION if node.dtype == "bool" else found
        case Inlined() | Checked():
            return of[node.value]
        case Cast():
            return _cast(node, of[node.a])
        case Select():
            a, b = of[node.a], of[node.b]
            return Range(_both(dim_min, a.low, b.low), _both(dim_max, a.high, b.high))
        case Reduce():
            return _reduced(node, of[node.value])
        case Binary() if node.op not in COMPARISONS:
            return _binary(node.op, of[node.a], of[node.b])
    return _CONDITION if node.dtype == "bool" else UNKNOWN


def _cast(node: Cast, value: Range) -> Range:
    before, after = _BITS.get(node.a.dtype, 0), _BITS.get(node.dtype, 0)
    if node.dtype == "bool" or node.a.dtype == "bool":
        return _CONDITION
    keeps_sign = node.a.dtype[0] == node.dtype[0] or (value.low is not None and at_least(value.low))
    return value if 0 < before <= after and keeps_sign else UNKNOWN


def _reduced(node: Reduce, value: Range) -> Range:
    if node.combiner in ("max", "min"):
        return value
    if node.combiner != "sum" or value.low is None or value.high is None:
        return UNKNOWN
    count = product(tuple(axis.extent for axis in node.axes))
    low, high = dim_min(value.low, 0), dim_max(value.high, 0)
    return Range(low * count, high * count)


def _binary(op: str, a: Range, b: Range) -> Range:
    match op:
        case "add":
            return Range(_both(add, a.low, b.low), _both(add, a.high, b.high))
        case "sub":
            return Range(_both(sub, a.low, b.high), _both(sub, a.high, b.low))
        case "min":
            highs = [high for high in (a.high, b.high) if high is not None]
            high = dim_min(*highs) if len(highs) > 1 else next(iter(highs), None)
            return Range(_both(dim_min, a.low, b.low), high)
        case "max":
            lows = [low for low in (a.low, b.low) if low is not None]
            low = dim_max(*lows) if len(lows) > 1 else next(iter(lows), None)
            return Range(low, _both(dim_max, a.high, b.high))
        case "floordiv" | "div" if isinstance(b.low, int) and b.low == b.high and b.low > 0:
            by = b.low
            if a.low is not None and at_least(a.low):
                return Range(0, None if a.high is None else a.high // by)
    return UNKNOWN


def _both(combine: Callable[[Dim, Dim], Dim], a: Dim | None, b: Dim | None) -> Dim | None:
    return None if a is None or b is None else combine(a, b)
