"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, reshaped
from clew.ir.expr import Expr

_OF_TRUTHS: Final = {"max": "any", "min": "all", "sum": "any", "prod": "all"}
_KEEP_ELEMENTS: Final = ("all", "any", "logsumexp", "max", "mean", "min", "prod", "sum")
"""Reductions that return a single element unchanged; others still square it, for example."""


def of_dtype(op: str, x: Expr) -> str:
    """Returns the reduction that keeps the dtype of a tensor: truths are joined by `any`, `all`."""
    return _OF_TRUTHS.get(op, op) if x.tensor.dtype == "bool" else op


def reduced(op: str, x: Expr, axes: Sequence[int], keepdims: bool) -> Expr:
    """Returns a reduction in the dtype of a tensor; without axes, that of each element alone."""
    op, rank = of_dtype(op, x), x.tensor.rank
    if rank and axes:
        return call(op, x, axes=tuple(axes), keepdims=keepdims)
    if op in _KEEP_ELEMENTS:
        return x
    return call(op, reshaped(x, (*x.tensor.shape, 1)), axes=(rank,), keepdims=False)
