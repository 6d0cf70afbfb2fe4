"""Special values of every dtype, graphs of them, and how results differ in their bits."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, is_float, to_numpy
from clew.ops.registry import get_op

Array: TypeAlias = "np.ndarray[Any, Any]"

FLOATS: Final = ("f16", "bf16", "f32", "f64")
INTEGERS: Final = ("i8", "i32", "u8", "u32", "i64")


def special(dtype: str) -> Array:
    """Returns the values of a dtype that rules get wrong."""
    kind = to_numpy(dtype)
    if is_float(dtype):
        info = ml_dtypes.finfo(kind)
        sizes = [0, info.smallest_subnormal, info.tiny, 0.3, 0.5, 1, 1.5, 2, 3, 100, info.max]
        values = [*map(float, sizes), math.inf]
        return np.array([*values, *(-v for v in values), math.nan]).astype(kind)
    limits = np.iinfo(kind)
    low, high = int(limits.min), int(limits.max)
    near = {low, low + 1, -3, -2, -1, 0, 1, 2, 3, 7, high // 2, high - 1, high}
    return np.array(sorted(v for v in near if low <= v <= high), kind)


def differing(a: Array, b: Array) -> Array:
    """Returns where arrays differ: their bits, except those of NaN."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if a.dtype.kind in "biu":
        return np.flatnonzero(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y)
    return np.flatnonzero(~same)


def splat(value: float, like: Expr, *, whole: bool = False) -> Constant:
    """Returns a constant of one element, or with all elements of a tensor equal."""
    one = np.array(value).astype(to_numpy(like.tensor.dtype))
    return Constant(np.broadcast_to(one, like.tensor.concrete) if whole else one)


def call(name: str, *args: Expr, **attrs: Any) -> Call:
    return get_op(name)(*args, **attrs)


def module_of(inputs: list[Expr], *results: Expr) -> Module:
    names = tuple(f"y{n}" for n in range(len(results)))
    return Module({"main": Function(inputs, Tuple(results), {"outputs": names})})  # type: ignore[arg-type]


def variables(dtype: str) -> tuple[Var, Var, dict[str, Array]]:
    """Returns two inputs that hold all pairs of special values."""
    values = special(dtype)
    whole = TensorType((values.size, values.size), dtype)
    x, z = Var("x", whole), Var("z", whole)
    grid = np.broadcast_to(values[:, None], whole.concrete)
    return x, z, {"x": np.array(grid), "z": np.array(grid.T)}
