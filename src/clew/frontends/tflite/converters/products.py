"""Matrix products and convolutions. Images are `[N, H, W, C]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.frontends.building import call, reshaped, turned
from clew.frontends.lowering.convolution import convolution, transposed
from clew.frontends.lowering.window import Window, extent, same_padding
from clew.frontends.tflite.converters.channels import channels_first, channels_last
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass

SAME, _VALID = 0, 1


@dataclass(frozen=True)
class Factors:
    """Conversions of data and weights before they are multiplied, once their axes are in order."""

    data: Callable[[Expr], Expr] = lambda x: x
    weight: Callable[[Expr], Expr] = lambda x: x


_PLAIN: Final = Factors()
Sum: TypeAlias = Callable[[TfliteLayer, Factors], Expr]
"""A function that returns the sums of products of a layer."""


@converter("FULLY_CONNECTED")
def fully_connected(layer: TfliteLayer) -> Result:
    """Multiplies rows of the last axis by the weights `[out, in]`."""
    return _finished(layer, rows_times_weights, 2)


def rows_times_weights(layer: TfliteLayer, factors: Factors) -> Expr:
    """Returns the sums of FULLY_CONNECTED."""
    x, weight = layer.input(0), layer.image(1, 2)
    if layer.integer("weights_format", 0):
        raise layer.unsupported("shuffled weights")
    width = weight.tensor.shape[-1]
    if not layer.flag("keep_num_dims", False):
        x = reshaped(x, (product(x.tensor.shape) // width, width))
    return call("nn.matmul", factors.data(x), factors.weight(turned(weight)))


@converter("BATCH_MATMUL")
def batch_matmul(layer: TfliteLayer) -> Result:
    """Matrix products; each operand may be transposed."""
    return products_of_matrices(layer, _PLAIN)


def products_of_matrices(layer: TfliteLayer, factors: Factors) -> Expr:
    """Returns the sums of BATCH_MATMUL."""
    a, b = layer.input(0), layer.input(1)
    a = turned(a) if layer.flag("adj_x", False) else a
    b = turned(b) if layer.flag("adj_y", False) else b
    return call("nn.matmul", factors.data(a), factors.weight(b))


@converter("CONV_2D")
def conv_2d(layer: TfliteLayer) -> Result:
    """Convolution with weights `[out, H, W, in / groups]`."""
    return _finished(layer, convolved, 2)


def convolved(layer: TfliteLayer, factors: Factors) -> Expr:
    """Returns the sums of CONV_2D."""
    image, weight = layer.image(0), layer.image(1)
    groups = _groups(layer, image.tensor.shape[-1], weight.tensor.shape[-1])
    return _convolved(layer, channels_first(weight), groups, factors)


def _groups(layer: TfliteLayer, channels: Dim, inner: Dim) -> int:
    if not isinstance(channels, int) or not isinstance(inner, int):
        raise layer.open_size("the number of channels", channels, inner)
    if inner < 1 or channels % inner:
        raise layer.wrong(f"has weights for {inner} of {channels} channels")
    return channels // inner


@converter("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(layer: TfliteLayer) -> Result:
    """Depthwise convolution with weights `[1, H, W, channels * multiplier]`."""
    return _finished(layer, convolved_by_channel, 2)


def convolved_by_channel(layer: TfliteLayer, factors: Factors) -> Expr:
    """Returns the sums of DEPTHWISE_CONV_2D."""
    channels = layer.image(0).tensor.shape[-1]
    weight = call("transpose", layer.image(1), axes=(3, 0, 1, 2))
    if not isinstance(channels, int):
        raise layer.open_size("the number of channels", channels)
    return _convolved(layer, weight, channels, factors)


@converter("TRANSPOSE_CONV")
def transpose_conv(layer: TfliteLayer) -> Result:
    """Transposed convolution. The operands are the result's shape, the weights and the image."""
    weight = call("transpose", layer.image(1), axes=(3, 0, 1, 2))
    return layer.activated(_biased(layer, _transposed(layer, weight), 3))


def _transposed(layer: TfliteLayer, weight: Expr) -> Expr:
    image = channels_first(layer.image(2, weight.tensor.rank))
    spatial = image.tensor.rank - 2
    wanted = layer.dims(0, "the shape of the result")[1:-1]
    if len(wanted) != spatial:
        raise layer.wrong("has a result that is no image")
    kernel, strides, ones = weight.tensor.shape[2:], _strides(layer, spatial), (1,) * spatial
    pads: tuple[Dim, ...] = (0,) * (2 * spatial)
    if layer.integer("padding", 0) == SAME:
        pads = same_padding(wanted, kernel, strides)
    more = [
        want - ((size - 1) * stride + span - pads[n] - pads[n + spatial])
        for n, (want, size, stride, span) in enumerate(
            zip(wanted, image.tensor.shape[2:], strides, kernel, strict=True)
        )
    ]
    value = transposed(image, weight, Window(kernel, strides, ones, pads), 1, more)
    return channels_last(value)


@converter("CONV_3D")
def conv_3d(layer: TfliteLayer) -> Result:
    """3-D convolution with weights `[D, H, W, in / groups, out]`."""
    image, weight = layer.image(0, 5), layer.image(1, 5)
    groups = _groups(layer, image.tensor.shape[-1], weight.tensor.shape[3])
    weight = call("transpose", weight, axes=(4, 3, 0, 1, 2))
    return layer.activated(_biased(layer, _convolved(layer, weight, groups, _PLAIN), 2))


@converter("CONV_3D_TRANSPOSE")
def conv_3d_transpose(layer: TfliteLayer) -> Result:
    """Transposed 3-D convolution with weights `[D, H, W, out, in]`."""
    weight = call("transpose", layer.image(1, 5), axes=(4, 3, 0, 1, 2))
    return layer.activated(_biased(layer, _transposed(layer, weight), 3))


def _convolved(layer: TfliteLayer, weight: Expr, groups: int, factors: Factors) -> Expr:
    image = channels_first(layer.input(0))
    kernel = weight.tensor.shape[2:]
    strides = _strides(layer, len(kernel))
    dilation = _by_axis(layer, "dilation", len(kernel), 1)
    padding = window_padding(layer, image.tensor.shape[2:], kernel, strides, dilation)
    window = Window(kernel, strides, dilation, padding)
    return channels_last(convolution(factors.data(image), factors.weight(weight), window, groups))


def _finished(layer: TfliteLayer, sums: Sum, bias: int) -> Expr:
    return layer.activated(_biased(layer, sums(layer, _PLAIN), bias))


def _biased(layer: TfliteLayer, value: Expr, index: int) -> Expr:
    bias = layer.optional(index)
    return value if bias is None else call("add", value, bias)


def _strides(layer: TfliteLayer, spatial: int) -> tuple[int, ...]:
    return _by_axis(layer, "stride", spatial, None)


def _by_axis(layer: TfliteLayer, name: str, spatial: int, default: int | None) -> tuple[int, ...]:
    """Returns an option with a value for each spatial axis. Errors: M012 if one is not positive."""
    found = tuple(layer.integer(f"{name}_{axis}", default) for axis in "dhw"[-spatial:])
    if min(found) < 1:
        raise layer.wrong(f"has the {name} {list(found)}")
    return found


def window_padding(
    layer: TfliteLayer,
    sizes: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Dim, ...]:
    """Returns the padding (before..., after...) of a window, for the layer's padding mode."""
    kind = layer.integer("padding", 0)
    if kind not in (SAME, _VALID):
        raise layer.wrong(f"has the padding {kind}")
    if kind == _VALID:
        return (0,) * (2 * len(kernel))
    extents = [extent(k, d) for k, d in zip(kernel, dilation, strict=True)]
    return same_padding(sizes, extents, strides)
