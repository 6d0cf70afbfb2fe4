"""Bounds of integers that are stored in fewer bits.

x86 packs two vectors of integers into one of half the width, with numbers out of range replaced by
the nearest in range. LLVM uses these instructions if it knows that a truncated number is in range;
otherwise it shuffles bytes. Clamped before by instructions that LLVM does not look into, the number
would be clamped once more; with the bounds known here, packing replaces that.
"""

from __future__ import annotations

from math import ceil
from typing import TypeAlias

import numpy as np

from clew.ir.types import is_integer, to_numpy
from clew.te.expr import Binary, Cast, Imm, Inlined, Intrinsic, Scalar

Bounds: TypeAlias = "tuple[int, int]"

_WHOLE = "i32"


def bounds_of_dtype(dtype: str) -> Bounds:
    """Returns the lowest and the highest integer of a dtype."""
    limits = np.iinfo(to_numpy(dtype))
    return int(limits.min), int(limits.max)


def fits(expr: Cast) -> bool:
    """Whether a cast from `i32` to a narrower integer keeps all numbers that the expression may
    be.
    """
    if expr.a.dtype != _WHOLE or not is_integer(expr.dtype) or expr.dtype == "bool":
        return False
    low, high = bounds_of_dtype(expr.dtype)
    if high >= bounds_of_dtype(_WHOLE)[1]:
        return False
    least, most = _bounds(expr.a)
    return low <= least and most <= high


def without_lower_bound(expr: Cast) -> Scalar:
    """Returns the number that a cast narrows, without a lower bound that is the dtype's."""
    inner = expr.a
    while isinstance(inner, Inlined):
        inner = inner.value
    if isinstance(inner, Binary) and inner.op == "max":
        least = bounds_of_dtype(expr.dtype)[0]
        for number, bound in ((inner.a, inner.b), (inner.b, inner.a)):
            if _bounds(bound) == (least, least):
                return number
    return expr.a


def _bounds(expr: Scalar) -> Bounds:
    """Returns the lowest and the highest number that an integer expression may be."""
    whole = bounds_of_dtype(expr.dtype)
    match expr:
        case Inlined():
            return _bounds(expr.value)
        case Imm():
            return int(expr.value), int(expr.value)
        case Cast(a=Intrinsic(name="round", args=(x,))) if expr.dtype == _WHOLE:
            # Out of range, and for NaN, the result is the lowest integer.
            return whole[0], max(whole[0], min(whole[1], _most(x)))
        case Cast() if is_integer(expr.a.dtype) and expr.a.dtype != "bool":
            least, most = _bounds(expr.a)
            return (least, most) if whole[0] <= least and most <= whole[1] else whole
        case Binary(op="max"):
            (a, b), (c, d) = _bounds(expr.a), _bounds(expr.b)
            return max(a, c), max(b, d)
        case Binary(op="min"):
            (a, b), (c, d) = _bounds(expr.a), _bounds(expr.b)
            return min(a, c), min(b, d)
        case Binary(op="add" | "sub"):
            (a, b), (c, d) = _bounds(expr.a), _bounds(expr.b)
            least, most = (a + c, b + d) if expr.op == "add" else (a - d, b - c)
            return (least, most) if whole[0] <= least and most <= whole[1] else whole
    return whole


def _most(expr: Scalar) -> int:
    """Returns the highest integer that a float may be rounded to."""
    whole = bounds_of_dtype(_WHOLE)[1]
    match expr:
        case Inlined():
            return _most(expr.value)
        case Imm():
            return ceil(min(expr.value, whole)) if expr.value == expr.value else whole
        case Cast() if is_integer(expr.a.dtype) and expr.a.dtype != "bool":
            return _bounds(expr.a)[1]
        case Binary(op="min"):
            return min(_most(expr.a), _most(expr.b))
    return whole
