"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.ir.types import integer_limits, is_float, is_integer

_EXACT: Final = ((torch.float32, 2**24), (torch.float64, 2**53))
"""Dtypes with the largest number up to which they hold all integers."""
_WRAPS: Final = 2**31


def products(b: Building, function: Callable[..., torch.Tensor], depth: int) -> Step:
    """Returns the step of `function`, a sum of `depth` products of the first two arguments.

    Small integers are multiplied as floats that hold all sums exactly: torch has fast products of
    floats only. Narrow floats are multiplied in f32.
    """
    left, right = b.types[0].dtype, b.types[1].dtype
    if is_float(left):
        return b.widened(function)
    if not is_integer(left):
        b.refuse(f"torch has no products of {left}")
    if left in ("i32", "i64"):
        b.refuse(f"torch has no fast products of {left}")
    bound = depth * _magnitude(b, 0, left) * _magnitude(b, 1, right)
    wide = next((dtype for dtype, most in _EXACT if bound <= most), None)
    if wide is None:
        b.refuse(f"f64 does not hold sums of {depth} products of {left} and {right}")
    one, other = b.converted(0, wide), b.converted(1, wide)
    if bound < _WRAPS:
        return lambda x, y: function(one(x), other(y)).to(torch.int32)
    return lambda x, y: function(one(x), other(y)).to(torch.int64).to(torch.int32)


def _magnitude(b: Building, n: int, dtype: str) -> int:
    """Returns the largest magnitude of an argument's elements."""
    known = None if b.probing else b.known(n)
    if known is None:
        return max(map(abs, integer_limits(dtype)))
    return int(np.abs(known.astype(np.int64)).max())


@builds("nn.dense")
def dense(b: Building) -> Step:
    """`linear`, or `matmul` for a weight with its columns last."""
    attrs, depth = b.attrs, b.shape()[-1]
    if attrs.parts > 1:
        b.refuse("the operands are in parts")
    columns = {"NK": 0, "KN": 1}.get(attrs.weight_layout)
    if columns is None:
        b.refuse(f"the weight is packed as {attrs.weight_layout}")
    if attrs.units not in (0, b.shape(1)[columns]):
        b.refuse(f"units={attrs.units} are not all of the weight's")
    return products(b, torch.matmul if columns else functional.linear, depth)


@builds("nn.matmul")
def matmul(b: Building) -> Step:
    """`matmul`."""
    if b.attrs.b_layout != "KN":
        b.refuse(f"the second operand is packed as {b.attrs.b_layout}")
    return products(b, torch.matmul, b.shape()[-1])
