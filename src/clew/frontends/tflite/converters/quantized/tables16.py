"""Functions of 16-bit fixed-point numbers as tables of 65536 entries, lowest code first.

Source: gemmlowp's fixedpoint.h.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, scalar
from clew.ir.expr import Expr

Codes = NDArray[np.int64]
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_ONE: Final = _HIGH  # 1 with 15 bits of fraction
_EXPONENTIALS: Final = (
    (-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535), (3, 720401),
    (4, 242),
)  # fmt: skip
"""`exp(-2**n)` with 31 bits of fraction, by n."""


def applied(function: Callable[[int], NDArray[np.int16]], bits: int, x: Expr) -> Expr:
    """Applies a function to `i16` codes with `bits` integer bits; results have no integer bits."""
    place = call("subtract", cast(x, "i32"), scalar(_LOW, "i32"))
    return call("gather", constant(function(bits)), place, axis=0)


@cache
def logistic(bits: int) -> NDArray[np.int16]:
    """Returns the table of the logistic function."""
    codes = np.arange(_LOW, _HIGH + 1)
    away = _by_division(_exponential(-np.abs(codes), bits), -1)
    found = np.where(codes > 0, away, _ONE - away)
    return np.where(codes == 0, (_ONE + 1) // 2, found).astype(np.int16)


@cache
def tanh(bits: int) -> NDArray[np.int16]:
    """Returns the table of the hyperbolic tangent."""
    codes = np.arange(_LOW, _HIGH + 1)
    away = _by_division(_exponential(-np.abs(codes), bits + 1), 0)
    found = np.where(codes < 0, -away, away)
    return np.where(codes == 0, 0, found).astype(np.int16)


def _product(a: Any, b: Any) -> Codes:
    found: Codes = np.minimum((np.asarray(a) * b + (1 << 14)) >> 15, _HIGH)
    return found


def _halved(value: Codes, times: int) -> Codes:
    """Returns integers divided by a power of two, ties away from zero."""
    if times == 0:
        return value
    found: Codes = (value + (1 << (times - 1)) - (value < 0)) >> times
    return found


def _doubled(value: Codes, times: int) -> Codes:
    found: Codes = np.clip(value << times, _LOW, _HIGH)
    return found


def _short(constant: int) -> int:
    return (constant + (1 << 15)) >> 16


def _exponential(codes: Codes, bits: int) -> Codes:
    """Returns `exp` of numbers that are not positive, with `bits` integer bits."""
    fraction = 15 - bits
    quarter = 1 << (fraction - 2)
    below = (codes & (quarter - 1)) - quarter
    x = _doubled(below, bits) + (1 << 12)
    square = _product(x, x)
    cube, fourth = _product(square, x), _product(square, square)
    tail = _product(_halved(fourth, 2) + cube, _short(715827883)) + square
    first = _short(1895147668)
    found = first + _product(first, x + _halved(tail, 1))
    left = below - codes
    for exponent, factor in _EXPONENTIALS:
        if bits > exponent:
            chosen = left & (1 << (fraction + exponent)) != 0
            found = np.where(chosen, _product(found, _short(factor)), found)
    if bits > 5:
        found = np.where(codes < -(1 << (fraction + 5)), 0, found)
    return np.where(codes == 0, _ONE, found)


def _by_division(x: Codes, less: int) -> Codes:
    """Returns `1 / (1 + x)` if `less` is -1, and `(1 - x) / (1 + x)` if it is 0."""
    half = (x + _ONE + 1) // 2
    found = _short(1515870810) + _product(half, _short(-1010580540))
    one = 1 << 13
    for _ in range(3):
        found = found + _doubled(_product(found, one - _product(half, found)), 2)
    if less == 0:
        return _doubled(found - one, 2)
    return _doubled(found, 1)
