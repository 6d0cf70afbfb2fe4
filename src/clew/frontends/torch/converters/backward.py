"""Derivatives that are operators of core ATen: of pooling and of convolutions."""

from __future__ import annotations

import numpy as np

from clew.frontends.building import call, cast, constant, reshaped
from clew.frontends.lowering.convolution import convolution, transposed
from clew.frontends.lowering.window import Window
from clew.frontends.torch.converters.movement import sliced
from clew.frontends.torch.converters.windows import adaptive_places, divisors, sizes_of
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import product
from clew.ir.expr import Expr


@converter("avg_pool2d_backward")
def avg_pool_backward(layer: Layer) -> Result:
    """Each window's gradient, spread evenly over its elements and added up."""
    x, gradient = layer.tensor(), layer.tensor("grad_output")
    kernel = layer.spread("kernel_size", 2)
    strides = layer.spread("stride", 2) or kernel
    padding = layer.spread("padding", 2, (0,))
    *lead, height, width = x.tensor.shape
    sizes, counts = sizes_of(layer, x, gradient.tensor, 2)
    by = cast(divisors(layer, sizes, counts, kernel, strides, padding), gradient.tensor.dtype)
    planes, many = product(tuple(lead)), product(counts)
    share = call("divide", gradient, by)
    elements = product(kernel)
    columns = call(
        "broadcast_to", reshaped(share, (planes, 1, many)), shape=(planes, elements, many)
    )
    # Windows may reach beyond the padding.
    after = tuple(
        max((c - 1) * s + k - size - p, 0)
        for c, s, k, size, p in zip(counts, strides, kernel, sizes, padding, strict=True)
    )
    found = call(
        "nn.col2im", columns, image=(height, width), block=kernel, strides=strides,
        padding=(*padding, *after), dilation=(1, 1),
    )  # fmt: skip
    return layer.shaped(found)


@converter("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_backward(layer: Layer) -> Result:
    """Each window's gradient, spread evenly over its elements: a product for each axis."""
    x, gradient = layer.tensor(), layer.tensor("grad_output")
    factors = []
    for size, count in zip(*sizes_of(layer, x, gradient.tensor, 2), strict=True):
        shares = np.zeros((count, size))
        for row, places in zip(shares, adaptive_places(size, count), strict=True):
            row[places[places >= 0]] = 1 / np.count_nonzero(places >= 0)
        factors.append(cast(constant(shares), gradient.tensor.dtype))
    down, across = factors
    rows = call("nn.matmul", gradient, across)
    return layer.shaped(call("nn.matmul", call("transpose", down, axes=(1, 0)), rows))


@converter("convolution_backward")
def convolution_backward(layer: Layer) -> Result:
    """The gradients of the image, the weight and the bias: two convolutions and a sum."""
    gradient, x, weight = (layer.tensor(n) for n in ("grad_output", "input", "weight"))
    if layer.flag("transposed"):
        raise layer.unsupported("transposed convolutions")
    wanted = list(layer["output_mask"])
    rank = weight.tensor.rank - 2
    attrs = {
        "strides": layer.spread("stride", rank),
        "padding": layer.spread("padding", rank) * 2,
        "dilation": layer.spread("dilation", rank),
    }
    groups = layer.integer("groups", 1)
    axes = (0, *range(2, gradient.tensor.rank))
    return [
        _of_image(gradient, x, weight, attrs, groups) if wanted[0] else None,
        _of_weight(gradient, x, weight, attrs, groups) if wanted[1] else None,
        layer.shaped(call("sum", gradient, axes=axes, keepdims=False), 2) if wanted[2] else None,
    ]


def _of_image(
    gradient: Expr, x: Expr, weight: Expr, attrs: dict[str, tuple[int, ...]], groups: int
) -> Expr:
    sizes, counts, kernel = (e.tensor.shape[2:] for e in (x, gradient, weight))
    rest = tuple(
        size - ((count - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, count, k, s, p, d in zip(
            sizes, counts, kernel, attrs["strides"], attrs["padding"], attrs["dilation"],
            strict=False,
        )
    )  # fmt: skip
    window = Window(kernel, attrs["strides"], attrs["dilation"], attrs["padding"])
    return transposed(gradient, weight, window, groups, rest)


def _of_weight(
    gradient: Expr, x: Expr, weight: Expr, attrs: dict[str, tuple[int, ...]], groups: int
) -> Expr:
    """The images' channels as a batch, convolved with the gradient: the sum over the images and
    their positions. Strides and dilations change places.
    """
    rank = weight.tensor.rank - 2
    batch, channels, *sizes = x.tensor.shape
    features, counts = gradient.tensor.shape[1], gradient.tensor.shape[2:]
    spatial = range(3, 3 + rank)
    by_group = reshaped(x, (batch, groups, channels // groups, *sizes))
    images: Expr = call("transpose", by_group, axes=(2, 1, 0, *spatial))
    images = reshaped(images, (channels // groups, groups * batch, *sizes))
    kernels = call("transpose", gradient, axes=(1, 0, *range(2, 2 + rank)))
    assert kernels.tensor.shape == (features, batch, *counts)
    window = Window(counts, attrs["dilation"], attrs["strides"], attrs["padding"])
    found = convolution(images, kernels, window, groups)
    for axis, size in enumerate(weight.tensor.shape[2:], 2):
        found = sliced(found, axis, 0, size)
    return call("transpose", found, axes=(1, 0, *range(2, 2 + rank)))
