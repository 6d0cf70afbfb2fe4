"""Layer normalization of 16-bit gates, in integers.

Source: LiteRT's tensor_utils (ApplyLayerNorm) and quantization_util
(GetInvSqrtQuantizedMultiplierExp).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, constant, scalar
from clew.frontends.tflite.converters.quantized.cells import halved, limited
from clew.frontends.tflite.converters.quantized.codes import SUM, WIDE, scaled
from clew.ir.expr import Expr

_FRACTION: Final = 10  # bits that a mean has more than a code
_STEPS: Final = 5  # of Newton's method
_HALF_SQRT_2: Final = 1518500250  # with 31 bits of fraction


def normalized(x: Expr, weight: Expr, bias: Expr, scale: np.float32) -> Expr:
    """Normalizes rows of codes `[rows, units]` to mean 0 and standard deviation 1, multiplies them
    by weights, and adds a bias.
    """
    units = x.tensor.shape[1]
    assert isinstance(units, int)
    wide = cast(x, WIDE)
    total = call("sum", wide, axes=(1,), keepdims=True)
    squares = call("sum", call("multiply", wide, wide), axes=(1,), keepdims=True)
    mean = _quotient(call("multiply", total, _long(1 << _FRACTION)), units)
    mean = cast(cast(mean, SUM), WIDE)
    spread: Expr = call("multiply", squares, _long((1 << 2 * _FRACTION) // units))
    spread = call("subtract", spread, call("multiply", mean, mean))
    spread = cast(cast(_quotient(spread, 1 << 2 * _FRACTION), SUM), WIDE)
    least = max(1, int(np.float32(10000) * scale))
    spread = call("where", call("less", spread, _long(1)), _long(least), spread)
    factor, shift = _inverse_root(spread)
    away = call("subtract", call("multiply", wide, _long(1 << _FRACTION)), mean)
    value: Expr = call("scale_fixed", cast(away, SUM), factor, shift)
    value = call("multiply", cast(value, WIDE), cast(weight, WIDE))
    value = call("add", value, cast(bias, WIDE))
    half = call("where", call("greater", value, _long(0)), _long(512), _long(-512))
    value = cast(_quotient(call("add", value, half), 1024), SUM)
    return limited(scaled(value, np.float64(scale) * 4096))


def _long(value: int) -> Expr:
    return scalar(value, WIDE)


def _quotient(value: Expr, divisor: int) -> Expr:
    """Returns integers divided by a number, rounded toward zero."""
    sign = call("sign", value)
    down = call("abs", value)
    rest = call("floor_mod", down, _long(divisor))
    whole = call("divide", call("subtract", down, rest), _long(divisor))
    return call("multiply", sign, whole)


def _high(a: Expr, b: Expr) -> Expr:
    """Returns the doubled upper halves of 32-bit products."""
    value = call("add", call("multiply", a, b), _long(1 << 30))
    return call("right_shift", value, _long(31))


def _inverse_root(value: Expr) -> tuple[Expr, Expr]:
    """Returns the inverse square roots of positive integers, as factors and shifts."""
    large = call("greater_equal", value, _long(1 << 29))
    small = call("where", large, _quotient(value, 4), value)
    # The number of bits of each, by comparison with the powers of two.
    powers = constant(np.int64(1) << np.arange(31))
    bits = call("sum", cast(call("greater_equal", small, powers), WIDE), axes=(1,), keepdims=True)
    pairs = call("right_shift", call("subtract", _long(31), bits), _long(1))
    pairs = call("subtract", pairs, _long(1))
    power = call("subtract", call("add", _long(11), cast(large, WIDE)), pairs)
    moved = call("left_shift", small, call("multiply", pairs, _long(2)))
    number = call("right_shift", moved, _long(1))
    half = halved(number, 1)
    x: Expr = _long(1 << 28)
    for _ in range(_STEPS):
        # Three integer bits become nine, and three again; six and three again.
        cube = _widened(_high(_high(x, x), x), 6)
        left = call("subtract", _high(_long((1 << 28) + (1 << 27)), x), _high(half, cube))
        x = _widened(left, 3)
    x = _high(x, _long(_HALF_SQRT_2))
    below = call("maximum", call("negative", power), _long(0))
    factor = call("left_shift", x, below)
    single = call("less_equal", value, _long(1))
    factor = call("where", single, _long((1 << 31) - 1), factor)
    shift = call("where", single, _long(0), call("maximum", power, _long(0)))
    return cast(factor, SUM), cast(shift, SUM)


def _widened(value: Expr, bits: int) -> Expr:
    limit = float((1 << 31) - 1)
    shifted: Any = call("left_shift", value, _long(bits))
    return call("clip", shifted, min=-limit - 1, max=limit)
