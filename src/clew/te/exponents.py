"""Rounding to powers of two: `f8e8m0fnu`, the scales of microscaling formats."""

from __future__ import annotations

from typing import Final

from clew.ir.types import STORAGE, is_float
from clew.te.expr import (
    Bitcast,
    Imm,
    Intrinsic,
    Scalar,
    all_of,
    any_of,
    binary,
    cast,
    minimum,
    select,
    unary,
)

EXPONENTS: Final = "f8e8m0fnu"
ROUND_MODES: Final = ("up", "down", "nearest")
# Bits of f32: powers of two from 2^-127, which is subnormal, to 2^127.
_SMALLEST, _NORMAL, _LARGEST, _INFINITE = 0x00400000, 0x00800000, 0x7F000000, 0x7F800000
# Added before the mantissa is truncated; below, the thresholds that round subnormals to 2^-126.
_ROUNDER: Final = {"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}
_HALFWAY: Final = {"up": _SMALLEST + 1, "down": _NORMAL, "nearest": 0x600000}


def to_exponent(x: Scalar, *, saturate: bool = False, round_mode: str = "nearest") -> Scalar:
    """Returns the power of two for `|x|` as `f8e8m0fnu`: the next higher, the next lower, or the
    nearest (the higher one of a tie).

    Values below 2^-127 and above 2^127 become NaN, or the nearest power with `saturate`. Source:
    ONNX Cast-24, which leaves negative numbers undefined; its reference drops the sign.
    """
    if x.dtype == EXPONENTS:
        return x
    magnitude = Bitcast("u32", _single(x)) & 0x7FFFFFFF
    normal = binary("shr", magnitude + _ROUNDER[round_mode], 23)
    small = cast("u32", magnitude >= _HALFWAY[round_mode])
    code = select(magnitude < _NORMAL, small, normal)
    if saturate:
        code = select(magnitude > _INFINITE, Imm(0xFF, "u32"), minimum(code, 0xFE))
    else:
        inside = all_of(magnitude >= _SMALLEST, magnitude <= _LARGEST)
        code = select(inside, code, Imm(0xFF, "u32"))
    return Bitcast(EXPONENTS, cast("u8", code))


def _single(x: Scalar) -> Scalar:
    """Returns a number as `f32` such that a second rounding equals a single one."""
    if x.dtype == "f64":
        return _rounded_to_odd(x)
    if is_float(x.dtype) or x.dtype in STORAGE or x.dtype in ("bool", "i8", "u8", "i16", "u16"):
        return cast("f32", x)
    if x.dtype in ("i32", "u32"):
        return _rounded_to_odd(cast("f64", x))
    # An f64 holds all significant bits of 64 if its lowest bit is set when any lower bit is.
    size = x if x.dtype == "u64" else cast("u64", select(x < 0, unary("neg", x), x))
    rest = cast("u64", (size & 0xFFF).not_equal(0))
    sticky = binary("shl", binary("shr", size, 12) | rest, 12)
    return _rounded_to_odd(cast("f64", select(size < 1 << 32, size, sticky)))


def _rounded_to_odd(x: Scalar) -> Scalar:
    near = cast("f32", x)
    back = cast("f64", near)
    pattern = Bitcast("u32", near)
    away = cast("u32", unary("abs", back) > unary("abs", x))
    inexact = cast("u32", any_of(back < x, back > x, Intrinsic("isnan", [x])))
    return Bitcast("f32", (pattern - away) | inexact)
