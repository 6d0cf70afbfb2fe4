"""Quotients of codes, from a table of all pairs, because LiteRT approximates reciprocals.

Source: TFLite's reference kernel of DIV, and gemmlowp's fixedpoint.h.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, scalar
from clew.frontends.tflite.converters.quantized.codes import (
    SUM,
    centered,
    limits,
    multiplier,
    of_whole,
    operand,
    result,
    scale_of,
    zero_of,
)
from clew.frontends.tflite.converters.quantized.tables import (
    divided_by_power,
    entries,
    upper_half,
)
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized, on_codes
from clew.ir.types import integer_limits, to_numpy

Codes = NDArray[np.int64]
_FRACTION: Final = 31
_ONE: Final = (1 << _FRACTION) - 1
_LONGEST: Final = 62


@on_codes("DIV")
def divide(layer: TfliteLayer) -> Quantized:
    """Looks up the quotient of two 8-bit codes. Other quotients are computed in floats."""
    a, b, out = operand(layer, 0), operand(layer, 1), result(layer)
    between = limits(layer, out) if of_whole(a, b, out) else None
    if between is None or a.dtype not in ("i8", "u8") or not a.dtype == b.dtype == out.dtype:
        return None
    low, high = integer_limits(a.dtype)
    codes = np.arange(low, high + 1)
    # TFLite divides these in f32.
    factor = scale_of(a) / (scale_of(b) * scale_of(out))
    found = _quotients(codes[:, None] - zero_of(a), codes[None] - zero_of(b), factor)
    table = np.clip(found + zero_of(out), *between).astype(to_numpy(out.dtype))
    row = call("multiply", centered(layer.input(0), low), scalar(len(codes), SUM))
    return entries(table.reshape(-1), call("add", row, centered(layer.input(1), low)))


def _quotients(a: Codes, b: Codes, real: Any) -> Codes:
    """Returns `real * a / b`, rounded as in TFLite, which rejects `b = 0`."""
    factor, shift = (int(part) for part in multiplier(real))
    a, b = np.where(b < 0, -a, a), np.abs(b)
    # A divisor is a power of two times a mantissa from 1 to 2, whose reciprocal is approximated.
    length = np.frexp(b)[1]
    inverse = _reciprocal(np.maximum((b << (32 - length)) - (1 << _FRACTION), 0))
    room = _FRACTION - np.frexp(np.where(a < 0, ~a, a))[1]
    quotient = upper_half(a << room, inverse)
    right = length - 1 + room - shift
    # LiteRT's shift is undefined past 31 bits, where quotients are less than half a step.
    return divided_by_power(upper_half(quotient, factor), np.clip(right, 0, _LONGEST))


def _reciprocal(x: Codes) -> Codes:
    """Returns `1 / (1 + x)` for fixed-point fractions, by three Newton iterations."""
    total = x + _ONE
    half = np.where(total >= 0, (total + 1) // 2, -((1 - total) // 2))
    found = 1515870810 + upper_half(half, -1010580540)  # 48/17, -32/17 with two integer bits
    for _ in range(3):
        left = (1 << (_FRACTION - 2)) - upper_half(half, found)
        found = found + np.clip(upper_half(found, left) << 2, -1 << _FRACTION, _ONE)
    doubled: Codes = np.clip(found << 1, -1 << _FRACTION, _ONE)
    return doubled
