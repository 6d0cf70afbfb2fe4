"""Functions that all frontends build with: calls by name, constants, views, casts, and shapes of
expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.ir.dims import Dim, product
from clew.ir.expr import Call, Constant, Expr, TupleGetItem
from clew.ir.types import NARROW_FLOATS, STORAGE, TensorType, is_float, to_numpy
from clew.ops.math.quantization import LARGEST
from clew.ops.registry import get_op


def call(op: str, *args: Expr, **attrs: Any) -> Call:
    """Returns a call of an operator by name."""
    return get_op(op)(*args, **attrs)


def scalar(value: Any, dtype: str) -> Constant:
    """Returns a constant without axes."""
    return Constant(np.asarray(value, dtype=to_numpy(dtype)))


def constant(values: Any) -> Constant:
    """Returns known numbers as a constant."""
    return Constant(np.array(values, order="C"))


def reshaped(x: Expr, shape: Sequence[Dim]) -> Expr:
    """Returns `x` in another shape: itself if it has that shape, a view if it is a constant."""
    shape = tuple(shape)
    if x.tensor.shape == shape:
        return x
    known = all(isinstance(d, int) for d in shape)
    if isinstance(x, Constant) and known and product(shape) == x.tensor.size:
        return Constant(x.data.reshape(shape), name=x.name, span=x.span)
    return call("reshape", x, shape=shape)


def cast(x: Expr, dtype: str) -> Expr:
    """Returns `x` in a dtype: itself if it has that dtype."""
    return x if x.tensor.dtype == dtype else call("cast", x, dtype=dtype)


def cast_wide(x: Expr) -> Expr:
    """Returns a narrow float as f32, for several operators in a row, each of which would round; `x`
    itself of other dtypes.
    """
    return cast(x, "f32") if x.tensor.dtype in NARROW_FLOATS else x


def cast_saturated(x: Expr, dtype: str) -> Expr:
    """Returns `x` in a dtype; for 8-bit floats, values that are too large become the largest
    number.
    """
    limit, source = LARGEST.get(dtype), x.tensor.dtype
    if limit is not None and source != dtype:
        wide = x if is_float(source) and source not in STORAGE else cast(x, "f32")
        x = call("clip", wide, min=-limit, max=limit)
    return cast(x, dtype)


def turned(x: Expr) -> Expr:
    """Returns matrices with rows as columns."""
    rank = x.tensor.rank
    return call("transpose", x, axes=(*range(rank - 2), rank - 1, rank - 2))


def per_channel(x: Expr, rank: int, axis: int = 1) -> Expr:
    """Returns a vector shaped to broadcast along one axis of a tensor with `rank` axes."""
    return reshaped(x, (*x.tensor.shape, *(1,) * (rank - axis - 1)))


def fields(expr: Expr, count: int) -> list[Expr]:
    """Returns the first fields of a tuple."""
    return [TupleGetItem(expr, n) for n in range(count)]


def filled(value: Any, dtype: str, shape: Sequence[Dim]) -> Expr:
    """Returns a tensor of equal elements: a splat constant if the shape is known."""
    if all(isinstance(d, int) for d in shape):
        return Constant.splat(value, TensorType(tuple(shape), dtype))
    return call("full", shape=tuple(shape), value=np.asarray(value).item(), dtype=dtype)
