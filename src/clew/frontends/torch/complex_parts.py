"""Complex tensors at the edge of a program: inside of it, they are pairs of real numbers."""

from __future__ import annotations

import torch

from clew.frontends.building import call
from clew.frontends.torch.dtypes import PARTS
from clew.ir.expr import Expr


def in_parts(x: Expr) -> Expr:
    """Returns an input as pairs, if it is complex."""
    return call("complex_parts", x) if x.tensor.dtype in ("c64", "c128") else x


def whole(x: Expr, dtype: torch.dtype | None) -> Expr:
    """Returns a result as complex numbers, if it is complex in torch."""
    return call("complex_of", x) if dtype in PARTS else x
