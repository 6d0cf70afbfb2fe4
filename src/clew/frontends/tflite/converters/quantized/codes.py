"""Arithmetic on codes: zero points, and scaling of sums.

TFLite expresses the quotient of the scales as an integer times a power of two, and rounds as
`scale_fixed` does.

Source: TFLite's quantization_util and its reference kernels.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, scalar
from clew.frontends.tflite.codes import is_code
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.expr import Expr
from clew.ir.types import integer_limits, to_numpy

Real = Any  # f64: a number, or an array of them
SUM: Final = "i32"
WIDE: Final = "i64"
_FRACTION: Final = 31
_BOUNDS: Final = {0: (None, None), 1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""The limits of fused activations, by number."""


def operand(layer: TfliteLayer, index: int) -> TensorInfo:
    """Returns the tensor of a required operand."""
    found = layer.operands[index] if index < len(layer.operands) else None
    if found is None:
        raise layer.wrong(f"needs input {index}")
    return found


def result(layer: TfliteLayer, index: int = 0) -> TensorInfo:
    """Returns the tensor of a required result."""
    layer.result_dtype(index)
    found = layer.results[index]
    assert found is not None
    return found


def scale_of(tensor: TensorInfo) -> np.float32:
    """Returns the scale of a tensor that has one."""
    assert tensor.quantization is not None
    return np.float32(tensor.quantization.scale[0])


def zero_of(tensor: TensorInfo) -> int:
    """Returns the zero point of a tensor that has one."""
    return int(tensor.quantization.zero[0]) if tensor.quantization is not None else 0


def of_whole(*tensors: TensorInfo | None) -> bool:
    """Whether tensors hold codes with one scale per tensor."""
    return all(
        is_code(t)
        and t is not None
        and t.quantization is not None
        and not t.quantization.by_channel
        for t in tensors
    )


def of_blocks(tensor: TensorInfo) -> bool:
    """Whether a tensor has a scale for each block of its elements."""
    return tensor.quantization is not None and tensor.quantization.block > 0


def centered(value: Expr, zero: int, dtype: str = SUM) -> Expr:
    """Returns codes less their zero point."""
    wide = cast(value, dtype)
    return call("subtract", wide, scalar(zero, dtype)) if zero else wide


def half_away(value: Real) -> NDArray[Any]:
    """Returns numbers rounded to integers, ties away from zero."""
    value = np.asarray(value)
    whole = np.trunc(value)
    more = np.where(np.abs(value - whole) >= 0.5, np.copysign(1, value), 0)
    return np.asarray(whole + more)


def multiplier(real: Real) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns real numbers as factors with 31 fraction bits, and exponents of two."""
    fraction, shift = np.frexp(np.asarray(real, np.float64))
    factor = half_away(fraction * 2.0**_FRACTION).astype(np.int64)
    full = factor == 1 << _FRACTION
    factor, shift = np.where(full, factor // 2, factor), shift + full
    factor, shift = np.where(shift < -_FRACTION, 0, factor), np.where(shift < -_FRACTION, 0, shift)
    large = shift > _FRACTION - 1
    factor = np.where(large, (1 << _FRACTION) - 1, factor)
    return factor.astype(np.int32), np.where(large, _FRACTION - 1, shift).astype(np.int32)


def scaled(value: Expr, real: Real, **rounding: bool) -> Expr:
    """Returns integers times real numbers, rounded as TFLite does. `rounding` has the attributes of
    `scale_fixed`.
    """
    factor, shift = multiplier(real)
    return by_factor(value, factor, shift, **rounding)


def scaled_shifted(value: Expr, left: int, real: Real) -> Expr:
    """Returns integers shifted to the left, times a real number that is not more than 1, as `i32`.

    A power of two that the shift makes up for needs no rounding.
    """
    fraction, exponent = np.frexp(np.float64(real))
    places = left + int(exponent) - 1
    if fraction == 0.5 and 0 <= places <= left:
        return call("multiply", value, scalar(1 << places, SUM))
    return scaled(call("multiply", value, scalar(1 << left, SUM)), real)


def by_factor(
    value: Expr, factor: NDArray[np.int32], shift: NDArray[np.int32], **rounding: bool
) -> Expr:
    """Returns integers times factors with 31 fraction bits and powers of two."""
    left = np.maximum(shift, 0)
    if left.any():
        wide = value.tensor.dtype
        value = call("multiply", value, constant((1 << left).astype(to_numpy(wide))))
    right = constant(np.maximum(-shift, 0))
    return call("scale_fixed", value, constant(factor), right, **rounding)


def limits(
    layer: TfliteLayer, tensor: TensorInfo, activation: int | None = None
) -> tuple[int, int] | None:
    """Returns the lowest and highest code that the fused activation allows; None for an activation
    that TFLite's quantized kernels do not have.
    """
    number = layer.integer("activation", 0) if activation is None else activation
    if number not in _BOUNDS:
        return None
    low, high = integer_limits(tensor.dtype)
    scale, zero = scale_of(tensor), zero_of(tensor)
    codes = [
        None if bound is None else zero + int(half_away(np.float32(bound) / scale))
        for bound in _BOUNDS[number]
    ]
    return (
        low if codes[0] is None else max(low, codes[0]),
        high if codes[1] is None else min(high, codes[1]),
    )


def stored(value: Expr, tensor: TensorInfo, between: tuple[int, int] | None = None) -> Expr:
    """Returns integers plus the zero point as codes of a tensor, saturated."""
    zero = zero_of(tensor)
    low, high = between or integer_limits(tensor.dtype)
    if zero:
        value = call("add", value, scalar(zero, value.tensor.dtype))
    return saturated(value, tensor.dtype, (low, high))


def saturated(value: Expr, dtype: str, between: tuple[int, int]) -> Expr:
    """Returns integers as codes, saturated."""
    low, high = between
    return cast(call("clip", value, min=float(low), max=float(high)), dtype)


def rounded(value: Expr) -> Expr:
    """Rounds floats to `i32`, ties away from zero."""
    dtype = value.tensor.dtype
    # Adding exactly 0.5 would round up the largest float below 0.5.
    below = float(np.nextafter(to_numpy(dtype).type(0.5), to_numpy(dtype).type(0)))
    half = call(
        "where", call("less", value, scalar(0, dtype)), scalar(-below, dtype), scalar(below, dtype)
    )
    return cast(call("trunc", call("add", value, half)), SUM)
