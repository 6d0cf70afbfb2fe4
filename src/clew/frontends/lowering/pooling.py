"""Pooling over windows of an image `[N, C, ...]`, and over all of its spatial axes."""

from __future__ import annotations

from typing import Any

from clew.frontends.building import call
from clew.frontends.lowering.window import Window
from clew.ir.expr import Expr


def pooled(op: str, x: Expr, window: Window, *, ceil_mode: bool = False, **more: Any) -> Expr:
    """Returns one number for each window. `ceil_mode` keeps windows that begin inside the image or
    the padding before it and end beyond.
    """
    return call(op, x, layout=window.layout, **_attributes(window, ceil_mode), **more)


def pool_places(
    x: Expr, window: Window, *, ceil_mode: bool = False, column_major: bool = False
) -> Expr:
    """Returns the place of each window's maximum in the flat tensor."""
    attrs = _attributes(window, ceil_mode)
    return call("nn.max_pool_places", x, column_major=column_major, **attrs)


def _attributes(window: Window, ceil_mode: bool) -> dict[str, Any]:
    return {
        "kernel": window.kernel,
        "strides": window.strides,
        "padding": window.padding,
        "dilation": window.dilation,
        "ceil_mode": ceil_mode,
    }


def pooled_over_space(op: str, x: Expr) -> Expr:
    """Returns one number for each channel: the `mean` or `max`, for example."""
    rank = x.tensor.rank
    whole = {"mean": "nn.global_avg_pool2d", "max": "nn.global_max_pool2d"}.get(op)
    if rank == 4 and whole is not None:
        return call(whole, x)
    return call(op, x, axes=tuple(range(2, rank)), keepdims=True)
