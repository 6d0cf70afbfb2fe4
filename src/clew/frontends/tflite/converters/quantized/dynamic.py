"""Dynamic range quantization: products of floats with 8-bit weights. Each call quantizes the data
by their own range and multiplies integers.

Source: LiteRT's hybrid kernels; SymmetricQuantizeFloats and AsymmetricQuantizeFloats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, constant, scalar
from clew.frontends.tflite.codes import is_code
from clew.frontends.tflite.converters import products
from clew.frontends.tflite.converters.quantized.codes import SUM, of_blocks, operand, rounded
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized
from clew.ir.expr import Constant, Expr
from clew.support.dataclass import dataclass

_CODES: Final = ("i8", "u8")
_LOW, _HIGH, _LARGEST = -128.0, 127.0, 127.0
_BY_IMAGE: Final = (1, 2, 3)
_BY_ROW: Final = (-1,)


@dataclass(frozen=True)
class Quantized8:
    """Floats as `scale * (codes - zero)`; codes and zero points are `i8`, and None means 0."""

    codes: Expr
    zero: Expr | None
    scale: Expr

    def centered(self) -> Expr:
        """Returns the codes minus their zero point."""
        codes = cast(self.codes, SUM)
        return codes if self.zero is None else call("subtract", codes, cast(self.zero, SUM))


def by_largest(x: Expr, axes: Sequence[int]) -> Quantized8:
    """Quantizes symmetrically: the largest magnitude along the axes maps to 127."""
    largest = call("max", call("abs", x), axes=_axes(x, axes), keepdims=True)
    most = scalar(_LARGEST, "f32")
    largest = call("where", call("greater", largest, scalar(0, "f32")), largest, most)
    codes = rounded(call("multiply", x, call("divide", most, largest)))
    return Quantized8(cast(codes, "i8"), None, call("divide", largest, most))


def by_range(x: Expr, axes: Sequence[int]) -> Quantized8:
    """Quantizes asymmetrically, in 255 steps over the range along the axes."""
    zero, along = scalar(0, "f64"), _axes(x, axes)
    low, high = (
        call(bound, cast(call(of, x, axes=along, keepdims=True), "f64"), zero)
        for bound, of in (("minimum", "min"), ("maximum", "max"))
    )
    span = call("subtract", high, low)
    some = call("greater", span, zero)
    step = call("where", some, call("divide", span, scalar(_HIGH - _LOW, "f64")), scalar(1, "f64"))
    # The zero point comes from the end of the range with the smaller error.
    below, above = call("divide", low, step), call("divide", high, step)
    errors = [
        call("add", scalar(abs(limit), "f64"), call("abs", steps))
        for limit, steps in ((_LOW, below), (_HIGH, above))
    ]
    ends = [
        call("subtract", scalar(limit, "f64"), steps)
        for limit, steps in ((_LOW, below), (_HIGH, above))
    ]
    point = rounded(call("clip", call("where", call("less", *errors), *ends), min=_LOW, max=_HIGH))
    point = call("where", some, point, scalar(0, SUM))
    scale = cast(step, "f32")
    steps = call("multiply", x, call("divide", scalar(1, "f32"), scale))
    codes = call("clip", call("add", cast(point, "f32"), steps), min=_LOW, max=_HIGH)
    return Quantized8(cast(rounded(codes), "i8"), cast(point, "i8"), scale)


def _axes(x: Expr, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis % x.tensor.rank for axis in axes)


def row_products(layer: TfliteLayer, sums: products.Sum, bias: int | None) -> Quantized:
    """Returns a matrix product whose rows of data are quantized; None for other operands."""
    asymmetric = layer.flag("asymmetric_quantize_inputs", False)
    return _summed(layer, sums, (0, 1, bias), _BY_ROW, asymmetric=asymmetric)


def image_products(
    layer: TfliteLayer, sums: products.Sum, places: tuple[int, int, int | None], *, ranged: bool
) -> Quantized:
    """Returns a convolution whose images are quantized; None for other operands. `places` are the
    operands: data, weight and bias. Without `ranged`, images are quantized symmetrically if all
    filters have the same scale.
    """
    given = operand(layer, places[1]).quantization
    asymmetric = ranged or (given is not None and bool((given.scale != given.scale[0]).any()))
    return _summed(layer, sums, places, _BY_IMAGE, asymmetric=asymmetric)


def _summed(
    layer: TfliteLayer,
    sums: products.Sum,
    places: tuple[int, int, int | None],
    axes: Sequence[int],
    *,
    asymmetric: bool,
) -> Quantized:
    data, weight, bias = places
    scales = _scales(layer, data, weight)
    if scales is None:
        return None
    scale = scales

    def quantized(x: Expr) -> Expr:
        nonlocal scale
        found = (by_range if asymmetric else by_largest)(x, axes)
        scale = call("multiply", found.scale, scales)
        return found.centered()

    with_codes = list(layer.inputs)
    with_codes[weight] = _signed(layer.input(weight))
    factors = products.Factors(quantized, lambda codes: cast(codes, SUM))
    total = sums(layer.with_inputs(*with_codes), factors)
    value = call("multiply", cast(total, "f32"), scale)
    given = None if bias is None else layer.optional(bias)
    return layer.activated(value if given is None else call("add", value, given))


def _scales(layer: TfliteLayer, data: int, weight: int) -> Expr | None:
    """Returns the scales of a weight along the last axis of the product; None for operands that are
    multiplied as floats.
    """
    x, y, value = operand(layer, data), operand(layer, weight), layer.input(weight)
    given = y.quantization
    if x.dtype != "f32" or not is_code(y) or y.dtype not in _CODES or of_blocks(y):
        return None
    if given is None or given.zero.any():
        return None
    if y.dtype == "u8" and not isinstance(value, Constant):
        return None
    if not given.by_channel:
        return constant(given.scale.reshape(()))
    return constant(given.scale) if given.axis == _axis_of_channels(layer, len(y.shape)) else None


def _axis_of_channels(layer: TfliteLayer, rank: int) -> int:
    """Returns the axis of a weight that becomes the last one of the product."""
    if layer.op == "BATCH_MATMUL":
        return rank - 2 if layer.flag("adj_y", False) else rank - 1
    return 3 if layer.op == "DEPTHWISE_CONV_2D" else 0


def _signed(weight: Expr) -> Expr:
    """Returns signed codes: old files declare them as unsigned."""
    if isinstance(weight, Constant) and weight.tensor.dtype == "u8":
        return constant(np.asarray(weight.data).view(np.int8))
    return weight
