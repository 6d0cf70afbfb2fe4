"""Integers that are stored in fewer bits.

x86 packs two vectors of integers into one of half the width, with numbers out of range replaced by
the nearest in range. LLVM uses these instructions for clamped numbers, and removes the clamps. It
does not look into instructions that round floats, so without knowing that their results are in
range, it would shuffle bytes.
"""

from __future__ import annotations

from math import ceil, inf, isfinite, isnan
from typing import TypeAlias

from clew.ir.types import bits, integer_limits, is_integer
from clew.support.dataclass import dataclass
from clew.te.expr import Binary, Cast, Imm, Inlined, Intrinsic, Scalar, Select, binary

Bounds: TypeAlias = "tuple[int, int]"
FloatBounds: TypeAlias = "tuple[float, float]"

_WHOLE = "i32"
_PAIRED = 16
# How deep an expression is looked into: shared parts are looked into again at each use.
_DEPTH = 10
_ANY: Bounds = (-(1 << 64), 1 << 64)
_UNSIGNED: Bounds = (0, (1 << _PAIRED) - 1)


@dataclass(frozen=True)
class Narrowed:
    """A cast from `i32` that keeps all numbers: `number`, clamped to `low` and `high`, truncated,
    plus `offset`. `inside` are the inlined expressions around the number, outermost first.
    """

    number: Scalar
    low: int
    high: int
    offset: int
    inside: tuple[Inlined, ...]


def narrowed(expr: Cast) -> Narrowed | None:
    """Returns the clamped number that a cast narrows; None for casts that may change numbers, and
    those that do not narrow `i32`.
    """
    if not _narrows(expr) or not _within(_bounds(expr.a), integer_limits(expr.dtype)):
        return None
    number, inside = _peeled(expr.a)
    limits, offset = integer_limits(expr.dtype), 0
    if bits(expr.dtype) == _PAIRED:
        found = _without_offset(number)
        if found is not None:
            number, around, offset = found
            inside = (*inside, *around)
        if _within(_bounds(number), _UNSIGNED):
            limits = _UNSIGNED
    if number.dtype != _WHOLE:
        return None
    return Narrowed(_unclamped(number, limits), *limits, offset, inside)


def _unclamped(number: Scalar, limits: Bounds) -> Scalar:
    """Returns a number without the bounds that clamping the result to the limits applies, too."""
    if not isinstance(number, Binary) or number.op not in ("max", "min"):
        return number
    limit = limits[number.op == "min"]
    for value, bound in ((number.a, number.b), (number.b, number.a)):
        given = _bounds(bound)
        if given == (limit, limit):
            return _unclamped(value, limits)
        if given[0] == given[1] and _within(given, limits):
            inner = _unclamped(value, limits)
            return number if inner is value else binary(number.op, inner, bound)
    return number


def fits_32_bits(expr: Cast) -> bool:
    """Whether a cast from `f32` to `i64` gives numbers that `i32` holds, such as the position of an
    element: x86 without AVX-512 converts only to `i32` in vectors.
    """
    if expr.dtype != "i64" or expr.a.dtype != "f32":
        return False
    found = _float_bounds(expr.a)
    low, high = integer_limits(_WHOLE)
    return found is not None and low <= found[0] and found[1] < high


def _float_bounds(expr: Scalar, depth: int = _DEPTH) -> FloatBounds | None:
    """Returns the lowest and the highest number that a float may be; None if it may be NaN."""
    if depth == 0:
        return None
    match expr:
        case Inlined():
            return _float_bounds(expr.value, depth - 1)
        case Imm():
            value = float(expr.value)
            return None if isnan(value) else (value, value)
        case Cast() if is_integer(expr.a.dtype):
            low, high = _bounds(expr.a, depth - 1)
            return float(low), float(high)
        case Select(cond=Intrinsic(name="isnan", args=(x,)), a=instead, b=y) if x is y:
            found = _float_bounds(instead, depth - 1)
            return found and (-inf, inf)
        case Intrinsic(name="floor" | "ceil" | "trunc" | "round", args=(x,)):
            found = _float_bounds(x, depth - 1)
            return found and (found[0] - 1, found[1] + 1)
        case Binary(op="max" | "min" | "add"):
            one, other = _float_bounds(expr.a, depth - 1), _float_bounds(expr.b, depth - 1)
            if one is None or other is None:
                return None
            if expr.op == "add":
                ends = (one[0] + other[0], one[1] + other[1])
                return ends if all(map(isfinite, ends)) else None
            pick = max if expr.op == "max" else min
            return pick(one[0], other[0]), pick(one[1], other[1])
    return None


def _narrows(expr: Cast) -> bool:
    """Whether a cast gives integers of fewer than 32 bits."""
    return is_integer(expr.dtype) and bits(expr.dtype) in (8, _PAIRED)


def _within(inner: Bounds, outer: Bounds) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _peeled(expr: Scalar) -> tuple[Scalar, tuple[Inlined, ...]]:
    """Returns the number in casts that keep it, and the inlined expressions around it."""
    inside: list[Inlined] = []
    while True:
        match expr:
            case Inlined():
                inside.append(expr)
                expr = expr.value
            case Cast() if is_integer(expr.a.dtype) and _within(
                _bounds(expr.a), integer_limits(expr.dtype)
            ):
                expr = expr.a
            case _:
                return expr, tuple(inside)


def _without_offset(expr: Scalar) -> tuple[Scalar, tuple[Inlined, ...], int] | None:
    """Returns the number that a sum or difference adds a known one to, the expression around that
    number, and the known one; None for other expressions, and numbers of more than 16 bits.
    """
    if not isinstance(expr, Binary) or expr.op not in ("add", "sub"):
        return None
    least, most = _bounds(expr.b)
    number, inside = _peeled(expr.a)
    if least != most or number is expr.a or not _within(_bounds(number), _UNSIGNED):
        return None
    return number, inside, least if expr.op == "add" else -least


def _bounds(expr: Scalar, depth: int = _DEPTH) -> Bounds:
    """Returns the lowest and the highest number that an integer expression may be."""
    if not is_integer(expr.dtype):  # an operand of a comparison or of a cast from floats
        return _ANY
    whole = integer_limits(expr.dtype)
    if depth == 0:
        return whole
    found = whole
    match expr:
        case Inlined():
            return _bounds(expr.value, depth - 1)
        case Imm():
            return int(expr.value), int(expr.value)
        case Cast(a=Intrinsic(name="round", args=(x,))) if expr.dtype == _WHOLE:
            # Out of range, and for NaN, the result is the lowest integer.
            return whole[0], max(whole[0], min(whole[1], _most(x, depth - 1)))
        case Cast() if is_integer(expr.a.dtype):
            found = _bounds(expr.a, depth - 1)
        case Binary(op="max" | "min"):
            (a, b), (c, d) = _bounds(expr.a, depth - 1), _bounds(expr.b, depth - 1)
            pick = max if expr.op == "max" else min
            return pick(a, c), pick(b, d)
        case Binary(op="add" | "sub"):
            (a, b), (c, d) = _bounds(expr.a, depth - 1), _bounds(expr.b, depth - 1)
            found = (a + c, b + d) if expr.op == "add" else (a - d, b - c)
    return found if _within(found, whole) else whole


def _most(expr: Scalar, depth: int) -> int:
    """Returns the highest integer that a float may be rounded to."""
    whole = integer_limits(_WHOLE)[1]
    if depth == 0:
        return whole
    match expr:
        case Inlined():
            return _most(expr.value, depth - 1)
        case Imm():
            return ceil(min(expr.value, whole)) if expr.value == expr.value else whole
        case Cast() if is_integer(expr.a.dtype):
            return _bounds(expr.a, depth - 1)[1]
        case Binary(op="min"):
            return min(_most(expr.a, depth - 1), _most(expr.b, depth - 1))
    return whole
