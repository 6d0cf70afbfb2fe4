"""Convolutions whose groups, or channels of groups, are free sizes: windows times matrices."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, reshaped, scalar
from clew.frontends.torch.converters.movement import sliced
from clew.frontends.torch.layer import Layer
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr


def grouped(layer: Layer, x: Expr, weight: Expr, groups: Dim) -> Expr:
    """Returns a convolution of `x[N, C, ...]`, without its bias."""
    rank = weight.tensor.rank - 2
    strides, dilation = layer.spread("stride", rank), layer.spread("dilation", rank)
    before = after = _spread(layer.dims("padding"), rank)
    if layer.flag("transposed"):
        more = layer.spread("output_padding", rank)
        pairs = zip(dilation, weight.tensor.shape[2:], before, strict=True)
        edges: list[Dim] = [d * (k - 1) - p for d, k, p in pairs]
        x, weight = _dilated(x, strides), _exchanged(weight, groups)
        before = tuple(edges)
        after = tuple(e + m for e, m in zip(edges, more, strict=True))
        strides = (1,) * rank
    x = call("pad", x, pads=(0, 0, *before, 0, 0, *after), mode="constant", value=0.0)
    features, inner, *kernel = weight.tensor.shape
    layer.require(features % groups, "==", 0)
    counts = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.tensor.shape[2:], kernel, strides, dilation, strict=True)
    ]
    columns = _windows(x, counts, kernel, strides, dilation)
    batch, width = x.tensor.shape[0], inner * product(tuple(kernel))
    columns = reshaped(columns, (batch, groups, width, product(tuple(counts))))
    rows = reshaped(weight, (1, groups, features // groups, width))
    return reshaped(call("nn.matmul", rows, columns), (batch, features, *counts))


def _spread(found: tuple[Dim, ...], rank: int) -> tuple[Dim, ...]:
    return found * rank if len(found) == 1 else found


def _windows(
    x: Expr,
    counts: Sequence[Dim],
    kernel: Sequence[Dim],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Expr:
    """Returns the elements in each window, as `[N, C, *kernel, *counts]`."""
    rank = len(counts)
    for n in range(rank):
        # Each gather replaces an axis by two: the elements of a window, and the windows.
        begins = _steps(counts[n], strides[n])
        steps = reshaped(_steps(kernel[n], dilation[n]), (kernel[n], 1))
        x = call("gather", x, call("add", steps, begins), axis=2 + 2 * n)
    elements, windows = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    return call("transpose", x, axes=(0, 1, *elements, *windows))


def _steps(count: Dim, step: int) -> Expr:
    numbers = call("arange", start=0, stop=count, step=1, dtype="i64")
    return call("multiply", numbers, scalar(step, "i64"))


def _dilated(x: Expr, strides: Sequence[int]) -> Expr:
    """Returns an image with zeros between its elements."""
    for axis, stride in enumerate(strides, 2):
        if stride == 1:
            continue
        shape = x.tensor.shape
        size = shape[axis]
        apart = reshaped(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        after = [0] * (len(shape) + 1)
        after[axis + 1] = stride - 1
        none = (0,) * len(after)
        apart = call("pad", apart, pads=(*none, *after), mode="constant", value=0.0)
        x = reshaped(apart, (*shape[:axis], size * stride, *shape[axis + 1 :]))
        x = sliced(x, axis, 0, (size - 1) * stride + 1)
    return x


def _exchanged(weight: Expr, groups: Dim) -> Expr:
    """Returns the weight with which a plain convolution of the dilated image equals the transposed
    one.
    """
    inputs, features, *kernel = weight.tensor.shape
    spatial = tuple(range(3, 3 + len(kernel)))
    apart: Expr = reshaped(weight, (groups, inputs // groups, features, *kernel))
    apart = call("flip", call("transpose", apart, axes=(0, 2, 1, *spatial)), axes=spatial)
    return reshaped(apart, (groups * features, inputs // groups, *kernel))
