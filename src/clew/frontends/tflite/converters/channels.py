"""Conversions between TFLite's image layout, NHWC, and that of clew's operators, NCHW."""

from __future__ import annotations

from clew.frontends.building import call
from clew.ir.expr import Expr


def channels_first(x: Expr) -> Expr:
    """Returns `[N, H, W, C]` as `[N, C, H, W]`, for any number of spatial axes."""
    rank = x.tensor.rank
    return call("transpose", x, axes=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Expr) -> Expr:
    """Returns `[N, C, H, W]` as `[N, H, W, C]`, for any number of spatial axes."""
    return call("transpose", x, axes=(0, *range(2, x.tensor.rank), 1))
