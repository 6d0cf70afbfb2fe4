"""Products of codes: exact sums in 32 bits, or in 64 if 32 bits might overflow. Products of floats
with codes are in `dynamic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast
from clew.frontends.lowering.convolution import convolution
from clew.frontends.lowering.window import Window, same_padding
from clew.frontends.tflite.codes import is_code
from clew.frontends.tflite.converters import products
from clew.frontends.tflite.converters.blocks import spread
from clew.frontends.tflite.converters.channels import channels_first, channels_last
from clew.frontends.tflite.converters.quantized.codes import (
    SUM,
    WIDE,
    centered,
    limits,
    of_blocks,
    of_whole,
    operand,
    result,
    scale_of,
    scaled,
    stored,
    zero_of,
)
from clew.frontends.tflite.converters.quantized.dynamic import image_products, row_products
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized, on_codes
from clew.ir.expr import Constant, Expr

_FLOAT: Final = "f32"
_SHORT: Final = ("i8", "u8")


@on_codes("CONV_2D")
def conv_2d(layer: TfliteLayer) -> Quantized:
    """Convolution; each filter may have its own scale."""
    if operand(layer, 0).dtype == _FLOAT:
        grouped = layer.rank(1) == 4 and layer.type(0).shape[-1] != layer.type(1).shape[-1]
        return image_products(layer, products.convolved, (0, 1, 2), ranged=grouped)
    return _summed(layer, products.convolved, 0, 1, 2, by_channel=True)


@on_codes("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(layer: TfliteLayer) -> Quantized:
    """Depthwise convolution."""
    if operand(layer, 0).dtype == _FLOAT:
        return image_products(layer, products.convolved_by_channel, (0, 1, 2), ranged=True)
    return _summed(layer, products.convolved_by_channel, 0, 1, 2, by_channel=True)


@on_codes("TRANSPOSE_CONV")
def transpose_conv(layer: TfliteLayer) -> Quantized:
    """Transposed convolution: zero points are inserted between codes, which are then convolved."""
    x = operand(layer, 2)
    image, strides = layer.image(2), (layer.integer("stride_h"), layer.integer("stride_w"))
    wanted, kernel = layer.dims(0, "the shape of the result")[1:3], layer.image(1).tensor.shape[1:3]
    floats = x.dtype == _FLOAT
    if not (floats or of_whole(x)) or min(strides) < 1 or len(wanted) != 2:
        return None
    pads: tuple[Any, ...] = (0, 0, 0, 0)
    if layer.integer("padding", 0) == products.SAME:
        pads = same_padding(wanted, kernel, strides)
    before: list[Any] = [0, 0, 0, 0]
    after: list[Any] = [0, 0, 0, 0]
    for n, (stride, span) in enumerate(zip(strides, kernel, strict=True)):
        size = (image.tensor.shape[n + 1] - 1) * stride + 1
        if stride > 1:
            image = spread(image, n + 1, stride, zero_of(x))
        before[n + 1] = span - 1 - pads[n]
        after[n + 1] = wanted[n] + span - 1 - size - before[n + 1]
    if any(not isinstance(n, int) or n < 0 for n in (*before, *after)):
        return None
    padded = (*before, *after)
    image = call("pad", image, pads=padded, mode="constant", value=zero_of(x))
    layer = layer.with_inputs(layer.inputs[0], layer.input(1), image, *layer.inputs[3:])
    if floats:
        return image_products(layer, _turned, (2, 1, 3), ranged=True)
    return _summed(layer, _turned, 2, 1, 3, by_channel=True)


def _turned(layer: TfliteLayer, factors: products.Factors) -> Expr:
    """Returns a convolution of an image with the weight's taps in reverse order."""
    weight = call("flip", call("transpose", layer.input(1), axes=(0, 3, 1, 2)), axes=(2, 3))
    window = Window(weight.tensor.shape[2:], (1, 1), (1, 1), (0, 0, 0, 0))
    image = factors.data(channels_first(layer.input(2)))
    return channels_last(convolution(image, factors.weight(weight), window, 1))


@on_codes("FULLY_CONNECTED")
def fully_connected(layer: TfliteLayer) -> Quantized:
    """Multiplies rows by the weights."""
    if operand(layer, 0).dtype == _FLOAT:
        return row_products(layer, products.rows_times_weights, 2)
    return _summed(layer, products.rows_times_weights, 0, 1, 2)


@on_codes("BATCH_MATMUL")
def batch_matmul(layer: TfliteLayer) -> Quantized:
    """Matrix products."""
    if operand(layer, 0).dtype == _FLOAT:
        return row_products(layer, products.products_of_matrices, None)
    return _summed(layer, products.products_of_matrices, 0, 1, None)


def _summed(
    layer: TfliteLayer,
    sums: products.Sum,
    data: int,
    weight: int,
    bias: int | None,
    *,
    by_channel: bool = False,
) -> Quantized:
    """Returns a product of codes; None for a form that TFLite has no integer kernel for."""
    x, y, out = operand(layer, data), operand(layer, weight), result(layer)
    if (
        not of_whole(x, out)
        or not is_code(y)
        or of_blocks(y)
        or y.dtype not in (*_SHORT, "i4", "i16")
    ):
        return None
    between = limits(layer, out)
    given = None if bias is None else layer.optional(bias)
    if between is None or (given is not None and given.tensor.dtype not in (SUM, WIDE)):
        return None
    dtype = _sum_dtype(layer, x, y, layer.input(weight))
    factors = products.Factors(
        lambda value: centered(value, zero_of(x), dtype),
        lambda value: centered(value, zero_of(y), dtype),
    )
    total = sums(layer, factors)
    if given is not None:
        total = call("add", total, cast(given, dtype))
    if x.dtype == "i16" and (given is None or given.tensor.dtype == WIDE):
        total = cast(total, WIDE)  # which are scaled in another way than those of 32 bits
    # LiteRT scales the sums of this operator in another way than those of others.
    once = layer.op == "FULLY_CONNECTED"
    real = _factor(x, y, out, in_doubles=once or (by_channel and y.dtype != "u8"))
    halved = total.tensor.dtype == WIDE and not once
    return stored(scaled(total, real, halved=halved, once=once), out, between)


def _factor(x: TensorInfo, y: TensorInfo, out: TensorInfo, *, in_doubles: bool) -> Any:
    """Returns the quotient of the scales. TFLite multiplies some per-tensor scales in `f32`."""
    assert y.quantization is not None
    scales = y.quantization.scale
    if y.quantization.by_channel or in_doubles:
        factors = np.float64(scale_of(x)) * scales.astype(np.float64) / np.float64(scale_of(out))
        return factors if factors.size > 1 else factors[0]
    return np.float64(scale_of(x) * scale_of(y)) / np.float64(scale_of(out))


def _sum_dtype(layer: TfliteLayer, x: TensorInfo, y: TensorInfo, weight: Expr) -> str:
    """Returns the type of sums: `i64` if 32 bits might overflow."""
    if x.dtype in _SHORT:
        return SUM
    shape = weight.tensor.shape
    if not all(isinstance(size, int) for size in shape):
        return WIDE
    if isinstance(weight, Constant):
        # The largest sum of absolute weights of a filter, times the largest code.
        axis = 3 if layer.op == "DEPTHWISE_CONV_2D" else 0
        rows = np.moveaxis(np.abs(weight.data.astype(np.int64)), axis, 0)
        most = int(rows.reshape(len(rows), -1).sum(axis=1).max(initial=0))
    else:
        most = math.prod(_sizes(shape)) << 15
    return SUM if most << 15 < 1 << 30 else WIDE


def _sizes(shape: Sequence[Any]) -> list[int]:
    return [size for size in shape if isinstance(size, int)]
