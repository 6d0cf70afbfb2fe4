"""Evaluates tensor expressions with numpy: the reference of operators that give none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.ir.types import bits, is_float, is_integer, to_numpy
from clew.support.bounds import clamping
from clew.te.convert import convert
from clew.te.expr import (
    Binary,
    Bitcast,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Intrinsic,
    Load,
    Reduce,
    Scalar,
    Select,
    Unary,
)
from clew.te.tensor import Tensor, stages
from clew.te.walk import post_order

Array = np.ndarray[Any, Any]

_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "mod": np.mod, "min": np.minimum, "max": np.maximum, "pow": np.power, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
_LOGIC: Final[dict[str, tuple[Any, Any]]] = {
    "and": (np.logical_and, np.bitwise_and),
    "or": (np.logical_or, np.bitwise_or),
    "xor": (np.logical_xor, np.bitwise_xor),
}


def _erf(x: Any) -> Array:
    """Returns the error function in float64."""
    wide = np.asarray(x, np.float64)
    found = map(math.erf, wide.reshape(-1).tolist())
    return np.fromiter(found, np.float64, wide.size).reshape(wide.shape)


def _sigmoid(x: Any) -> Any:
    """Of the side where `exp` cannot overflow, which in f16 it does at 11."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(small), small) / (1 + small)


INTRINSICS: Final[dict[str, Callable[..., Any]]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log1p": np.log1p, "tanh": np.tanh, "erf": _erf, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc, "isnan": np.isnan,
    "isinf": np.isinf, "fma": lambda a, b, c: a * b + c, "copysign": np.copysign,
    "fmod": np.fmod,
}  # fmt: skip
COMBINE: Final[dict[str, Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


def identity_of(combiner: str, dtype: str) -> Any:
    """Returns the value that a reduction over nothing gives."""
    if combiner in ("and", "or"):
        return combiner == "and"
    if combiner in ("sum", "prod"):
        return int(combiner == "prod")
    if is_float(dtype):
        return float("-inf") if combiner == "max" else float("inf")
    if dtype == "bool":
        return combiner == "min"
    unsigned, width = dtype[0] == "u", bits(dtype)
    if combiner == "max":
        return 0 if unsigned else -(1 << (width - 1))
    return (1 << (width if unsigned else width - 1)) - 1


def evaluate(outputs: Sequence[Tensor], inputs: Mapping[Tensor, Array]) -> list[Array]:
    """Returns the values of `outputs`. Each stage is evaluated whole, over numpy index grids."""
    values: dict[int, Array] = {id(t): np.asarray(a) for t, a in inputs.items()}
    with np.errstate(all="ignore"):
        for stage in stages(outputs):
            values[id(stage)] = _stage(stage, values)
    return [values[id(t)] for t in outputs]


def _stage(stage: Tensor, values: dict[int, Array]) -> Array:
    assert stage.body is not None
    shape = stage.type.concrete
    body, axes = stage.body, list(stage.axes)
    if isinstance(body, Reduce):
        axes += body.axes
    extents = [_extent(a) for a in axes]
    grid: dict[int, Array] = {}
    for position, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
        at = [1] * len(axes)
        at[position] = extent
        grid[id(axis)] = np.arange(extent).reshape(at)
    dtype = to_numpy(stage.dtype)
    value = body.value if isinstance(body, Reduce) else body
    full = np.broadcast_to(_value(value, grid, values), extents)
    if isinstance(body, Reduce):
        over = tuple(range(len(shape), len(axes)))
        wide = full.astype(np.float64) if is_float(stage.dtype) else full
        start = identity_of(body.combiner, stage.dtype)
        full = COMBINE[body.combiner].reduce(wide, axis=over, initial=start)
    return np.ascontiguousarray(full.astype(dtype)).reshape(shape)


def _extent(axis: Index) -> int:
    assert isinstance(axis.extent, int), f"axis {axis.name} has no number of elements yet"
    return axis.extent


def _value(root: Scalar, grid: dict[int, Array], values: dict[int, Array]) -> Array:
    memo: dict[int, Any] = dict(grid)
    order = post_order(root, memo)
    for node in order:
        memo[id(node)] = apply(node, [memo[id(c)] for c in node.children], values)
    if not clamping() and any(isinstance(node, Checked) for node in order):
        _check(order, memo)
    return np.asarray(memo[id(root)])


def _check(order: Sequence[Scalar], memo: Mapping[int, Any]) -> None:
    """Checks the indices that are wanted: all but those in branches of selects that are not taken.

    Errors: I320.
    """
    wanted: dict[int, Any] = {id(order[-1]): np.asarray(True)}
    for node in reversed(order):
        here = wanted[id(node)]
        if isinstance(node, Checked):
            wrapped, outside = _wrapped(node, memo[id(node.value)])
            found = np.extract(*np.broadcast_arrays(outside & here, wrapped))
            if found.size:
                raise node.places.error(node.places.unwrapped(int(found[0])))
        each = [here] * len(node.children)
        if isinstance(node, Select):
            taken = np.asarray(memo[id(node.cond)], bool)
            each[1:] = [here & taken, here & ~taken]
        for child, more in zip(node.children, each, strict=True):
            known = wanted.get(id(child))
            wanted[id(child)] = more if known is None else known | more


def _wrapped(node: Checked, index: Any) -> tuple[Array, Array]:
    """Returns an index counted from the front, and whether it is out of range."""
    count, index = int(node.places.count), np.asarray(index, np.int64)
    if node.places.from_end:
        index = np.where(index < 0, index + count, index)
    return index, (index < 0) | (index >= count)


def apply(node: Scalar, args: list[Any], values: Mapping[int, Array] | None = None) -> Any:
    """Returns a node's value for those of its children. `values` are what loads read, by tensor."""
    match node:
        case Imm():
            return np.asarray(node.value, to_numpy(node.dtype))
        case Load():
            assert values is not None
            array = values[id(node.source)]
            # A load in a branch not taken may lie outside: it is read somewhere and dropped.
            if array.size == 0:
                return np.zeros(np.broadcast_shapes(*(np.shape(i) for i in args)), array.dtype)
            inside = [np.clip(i, 0, n - 1) for i, n in zip(args, array.shape, strict=True)]
            return array[tuple(inside)] if array.ndim else array[()]
        case Binary():
            return _binary(node, *args)
        case Unary(op="not"):
            return np.logical_not(args[0]) if node.dtype == "bool" else np.invert(args[0])
        case Unary():
            return np.negative(args[0]) if node.op == "neg" else np.abs(args[0])
        case Intrinsic():
            result = INTRINSICS[node.name](*args)
            return result if node.dtype == "bool" else np.asarray(result, to_numpy(node.dtype))
        case Select():
            return np.where(args[0], args[1], args[2])
        case Cast():
            return convert(args[0], node.dtype)
        case Bitcast():
            return (
                np.ascontiguousarray(args[0]).view(to_numpy(node.dtype)).reshape(np.shape(args[0]))
            )
        case Inlined():
            return args[0]
        case Checked():
            index, _ = _wrapped(node, args[0])
            return np.clip(index, 0, max(int(node.places.count) - 1, 0)) if node.hold else args[0]
        case Index():
            raise AssertionError(f"axis {node.name} is not bound")
    raise AssertionError(type(node))


def _binary(node: Binary, a: Any, b: Any) -> Any:
    if node.op in _LOGIC:
        return _LOGIC[node.op][node.a.dtype != "bool"](a, b)
    if node.op == "div":
        if is_integer(node.dtype):
            by = np.where(np.equal(b, 0), 1, b)
            rest = np.fmod(a, by)  # with the sign of `a`: what is left over has no remainder
            return np.floor_divide(np.subtract(a, rest), by).astype(to_numpy(node.dtype))
        return np.divide(a, b)
    return _BINARY[node.op](a, b)
