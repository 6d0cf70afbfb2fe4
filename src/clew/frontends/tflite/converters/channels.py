"""Images between TFLite's layout, channels last, and that of clew's operators."""

from __future__ import annotations

from clew.frontends.building import call
from clew.ir.expr import Expr


def channels_first(x: Expr) -> Expr:
    """Returns `[N, H, W, C]` as `[N, C, H, W]`, whatever the number of spatial axes."""
    rank = x.tensor.rank
    return call("transpose", x, axes=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Expr) -> Expr:
    """Returns `[N, C, H, W]` as `[N, H, W, C]`, whatever the number of spatial axes."""
    return call("transpose", x, axes=(0, *range(2, x.tensor.rank), 1))
