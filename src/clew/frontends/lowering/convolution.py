"""Convolutions over one to three spatial axes, transposed or not, with a bias per channel.

Images are `[N, C, ...]`, weights `[out, in / groups, ...]`, and `[in, out / groups, ...]` for a
transposed convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, per_channel
from clew.frontends.lowering.window import SPATIAL, Window
from clew.ir.dims import Dim
from clew.ir.expr import Expr


def convolution(x: Expr, weight: Expr, window: Window, groups: int) -> Expr:
    """Returns a convolution."""
    return call(
        f"nn.conv{window.rank}d",
        x,
        weight,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
        data_layout=window.layout,
        weight_layout=f"OI{SPATIAL[window.rank]}",
    )


def transposed(
    x: Expr, weight: Expr, window: Window, groups: int, output_padding: Sequence[Dim]
) -> Expr:
    """Returns the gradient of a convolution with respect to its input. `output_padding` is the
    number of elements that are added after each axis.
    """
    return call(
        f"nn.conv{window.rank}d_transpose",
        x,
        weight,
        strides=window.strides,
        padding=window.padding,
        output_padding=tuple(output_padding),
        dilation=window.dilation,
        groups=groups,
    )


def with_bias(x: Expr, bias: Expr | None) -> Expr:
    """Returns `x` with a bias for each channel; `x` itself without one."""
    return x if bias is None else call("add", x, per_channel(bias, x.tensor.rank))
