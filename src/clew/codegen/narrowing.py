"""Integers that are stored in fewer bits.

x86 packs two vectors of integers into one of half the width, with numbers out of range replaced by
the nearest in range. LLVM uses these instructions for clamped numbers, and removes the clamps. It
does not look into instructions that round floats, so without knowing that their results are in
range, it would shuffle bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from clew.ir.types import bits, integer_limits, is_integer
from clew.te.expr import Binary, Cast, Imm, Inlined, Intrinsic, Scalar

Bounds: TypeAlias = "tuple[int, int]"

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
    if isinstance(number, Binary) and number.op == "max":
        for value, bound in ((number.a, number.b), (number.b, number.a)):
            if _bounds(bound) == (limits[0], limits[0]):  # the clamp is this bound
                return Narrowed(value, *limits, offset, inside)
    return Narrowed(number, *limits, offset, inside)


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
    """Returns the number that a sum or difference adds a known one to, what is around that number,
    and the known one; None for other expressions, and numbers of more than 16 bits.
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
