"""Convolutions of quantized tensors, summed in i32."""

from __future__ import annotations

import numpy as np

from clew.frontends.building import call, cast, per_channel, reshaped
from clew.frontends.lowering.convolution import convolution
from clew.frontends.onnx.converters.nn import kernel_of, window_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr

_SUM = "i32"


def _is_zero(point: Expr | None) -> bool:
    return point is None or (isinstance(point, Constant) and not np.any(point.data))


def _less_zero(layer: Layer, index: int, point: Expr | None, rank: int = 0) -> Expr:
    """Returns an operand minus its zero point, in i32; the operand itself if the point is 0. A
    vector has a zero point for each slice along the first axis.
    """
    x = layer.input(index)
    if point is None or _is_zero(point):
        return x
    point = cast(point, _SUM)
    shape = point.tensor.shape
    if shape in ((), (1,)):
        point = reshaped(point, ())
    elif rank and len(shape) == 1 and shape[0] == x.tensor.shape[0]:
        point = reshaped(point, (*shape, *(1,) * (rank - 1)))
    else:
        raise layer.wrong(f"has a zero point of type {point.type} for {x.type}")
    return call("subtract", cast(x, _SUM), point)


def _convolved(layer: Layer, weight: int, zero: Expr | None, weight_zero: Expr | None) -> Expr:
    """Returns the sums of products: padding counts as the zero point."""
    window = window_of(layer, kernel_of(layer, weight))
    data = _less_zero(layer, 0, zero)
    filters = _less_zero(layer, weight, weight_zero, layer.rank(weight))
    if data.tensor.dtype != filters.tensor.dtype and _SUM in (
        data.tensor.dtype,
        filters.tensor.dtype,
    ):
        data, filters = cast(data, _SUM), cast(filters, _SUM)
    return convolution(data, filters, window, layer.integer("group"))


@converter("ConvInteger")
def conv_integer(layer: Layer) -> Result:
    """A convolution of 8-bit integers minus their zero points, in i32."""
    return _convolved(layer, 1, layer.optional(2), layer.optional(3))


@converter("QLinearConv")
def qlinear_conv(layer: Layer) -> Result:
    """A convolution of dequantized operands, quantized: the integer sums are exact and
    include `B`.
    """
    total = _convolved(layer, 3, layer.input(2), layer.input(5))
    rank = total.tensor.rank
    if (bias := layer.optional(8)) is not None:
        total = call("add", total, per_channel(bias, rank))
    scales = cast(layer.input(4), "f32")
    shape = scales.tensor.shape
    if shape in ((), (1,)):
        scales = reshaped(scales, ())
    elif len(shape) == 1:
        scales = per_channel(scales, rank)
    else:
        raise layer.wrong(f"has a scale of type {scales.type}")
    factor = call("multiply", scales, reshaped(cast(layer.input(1), "f32"), ()))
    factor = call("divide", factor, reshaped(cast(layer.input(6), "f32"), ()))
    dtype = layer.type(7).dtype
    if dtype not in ("i8", "u8"):
        raise layer.wrong(f"gives {dtype}")
    return call("requantize", total, factor, reshaped(layer.input(7), ()), dtype=dtype)
