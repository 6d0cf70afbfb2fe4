"""The largest elements of rows, sorted. In long rows, only elements that reach a bound are
sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.cost.policy.ordering import GROUPS_FOR_ONE, GROUPS_OF_BOUND, MOST_COMPARED_GROUPS
from clew.ir.dims import Dim, ceil_div, dim_max, typical, unknown_dim
from clew.ir.expr import Attrs, Expr
from clew.ir.types import TensorType, TupleType, Type, from_numpy, is_float
from clew.ops.common import (
    assume_at_least,
    axis_of,
    boolean,
    capped,
    f16,
    f32,
    f64,
    i32,
    i64,
    tensor_type,
)
from clew.ops.math.selection import largest_places, stable_order
from clew.ops.registry import Sample, get_op, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_SIGN: Final = {"u32": 1 << 31, "u64": 1 << 63}


@register_op(
    "top_k",
    samples=(
        Sample(f32(3, 7), k=3),
        Sample(i32(5, 3), k=2, axis=0, largest=False, low=0, high=3),
        Sample(f32(4), k=0),
        Sample(f16(2, 9), k=9),
        Sample(f64(2, 40), k=3, largest=False),
        Sample(i64(2, 40), k=3),
        Sample(boolean(2, 9), k=3),
        Sample(np.array([[np.nan, 1, np.inf, np.nan, -0.0, 0, -np.inf]], "f4"), k=6),
        Sample(np.array([[np.nan, 1, np.inf, np.nan]], "f4"), k=3, largest=False),
        Sample(f32(2, 700), k=1),
        Sample(i32(300, 2), k=9, axis=0, low=0, high=20),
        Sample(f32(3, 7), k=8, error="T107"),
        Sample(f32(3, 7), k=1, axis=2, error="T104"),
    ),
)
def top_k(x: Tensor, *, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements along `axis`, sorted, and their indices (`i64`); of
    equal elements, the first comes first. NaN is the largest.

    Errors: T104, T107. Source: ONNX TopK-24.
    """
    return _sorted("top_k", x, k, axis, largest)


@register_op(
    "top_k_into",
    samples=(
        Sample(f32(3, 7), boolean(3)),
        Sample(i32(5, 3), boolean(2), axis=0, largest=False),
        Sample(f32(3, 7), boolean(8), error="T107"),
        Sample(f32(3, 7), boolean(2, 2), error="T102"),
        Sample(f32(3, 7), boolean(1), axis=2, error="T104"),
    ),
)
def top_k_into(
    x: Tensor, room: Tensor, *, axis: int = -1, largest: bool = True
) -> tuple[Tensor, Tensor]:
    """`top_k` with `k` given by the size of `room`.

    Errors: T102, T104, T107. Source: ONNX TopK-24.
    """
    if room.rank != 1:
        raise GraphTypeError("T102", f"top_k_into: {room.type} is not a vector")
    return _sorted("top_k_into", x, room.shape[0], axis, largest)


@top_k_into.reference
def _top_k_into_reference(x: Array, room: Array, *, axis: int, largest: bool) -> Any:
    return _top_k_reference(x, k=len(room), axis=axis, largest=largest)


def _sorted(name: str, x: Tensor, k: Dim, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    n = axis_of(name, axis, x.rank)
    size = x.shape[n]
    check_count(name, k, size, n)
    assume_at_least(size, k)
    rows = (*x.shape[:n], *x.shape[n + 1 :])
    # The last axis of a stage that sorts counts the sorted elements, so the other axes come first.

    def key_at(row: Sequence[Scalar], place: Scalar) -> Scalar:
        return sort_key(x[(*row[:n], place, *row[n:])], largest)

    group = _group_for(k, size)
    if isinstance(k, int) and group:
        order = _order_within_bound(rows, size, k, group, key_at)
    else:
        over = te.reduce_axis(size, "over")
        order = te.compute((*rows, k), lambda *i: te.sort(key_at(i[:-1], over), [over]), "order")

    def place(i: Sequence[Scalar]) -> Scalar:
        return capped(order[(*i[:n], *i[n + 1 :], i[n])], size)

    shape = (*x.shape[:n], k, *x.shape[n + 1 :])
    values = te.compute(shape, lambda *i: x[(*i[:n], place(i), *i[n + 1 :])], name)
    return values, te.compute(shape, lambda *i: place(i), "places")


def _group_for(k: Dim, size: Dim) -> int:
    """Returns the number of elements of a group; 0 if a bound does not help."""
    if not isinstance(k, int) or k == 0:
        return 0
    if not isinstance(size, int):
        return min(GROUPS_OF_BOUND)  # large sizes gain more than small ones lose
    return next((g for g in GROUPS_OF_BOUND if k * GROUPS_FOR_ONE * g <= typical(size)), 0)


def _order_within_bound(
    rows: Sequence[Dim],
    size: Dim,
    k: int,
    group: int,
    key_at: Callable[[Sequence[Scalar], Scalar], Scalar],
) -> Tensor:
    """Returns the places of the `k` lowest keys of each row. Only keys that reach a bound are
    sorted: keys no higher than the k-th lowest of the groups' lowest keys. At least `k` reach it.
    """
    groups = ceil_div(size, group)
    within = te.reduce_axis(group, "within")

    def lowest(*i: Scalar) -> Scalar:
        place = i[-1] * group + within
        key = key_at(i[:-1], place)
        return te.min(te.select(place < te.size(size), key, _highest(key.dtype)), within)

    # With fewer groups than wanted elements, all keys reach the bound.
    lows = te.compute((*rows, dim_max(groups, k)), lowest, "lows")
    bound = _of_rank(lows, k - 1)
    each, element = te.reduce_axis(groups, "each"), te.reduce_axis(group, "element")

    def sorted_(*i: Scalar) -> Scalar:
        row, place = i[:-1], each * group + element
        key = key_at(row, te.minimum(place, te.size(size) - 1))
        group_reaches = lows[(*row, each)] <= bound[row]
        reaches = te.all_of(group_reaches, place < te.size(size), key <= bound[row])
        return te.sort(key, [each, element], reaches)

    return te.compute((*rows, k), sorted_, "order")


def _of_rank(keys: Tensor, rank: int) -> Tensor:
    """Returns, for each row, the key at position `rank` in ascending order."""
    rows, size = keys.shape[:-1], keys.shape[-1]
    other = te.reduce_axis(size, "other")
    if not isinstance(size, int) or size > MOST_COMPARED_GROUPS:
        first = te.compute(
            (*rows, rank + 1), lambda *i: te.sort(keys[(*i[:-1], other)], [other]), "first"
        )

        def found(*i: Scalar) -> Scalar:
            place = capped(first[(*i, te.as_scalar(rank))], size)
            return keys[(*i, place)]

        return te.compute(rows, found, "bound")

    def lower(*i: Scalar) -> Scalar:
        a, b = keys[(*i[:-1], other)], keys[i]
        return te.sum(te.cast("u32", (a < b) | (a.equal(b) & (other < i[-1]))), other)

    ranks = te.compute(keys.shape, lower, "ranks")

    def highest(*i: Scalar) -> Scalar:
        place = (*i, other)
        within = ranks[place] <= te.as_scalar(rank, "u32")
        return te.max(te.select(within, keys[place], te.as_scalar(0, keys.dtype)), other)

    return te.compute(rows, highest, "bound")


def _highest(dtype: str) -> Scalar:
    return te.as_scalar(2 * _SIGN[dtype] - 1, dtype)


def sort_key(value: Scalar, largest: bool) -> Scalar:
    """Returns an unsigned integer key; ascending keys put values in the wanted order."""
    dtype = value.dtype
    if is_float(dtype):
        wide, unsigned = ("f64", "u64") if dtype == "f64" else ("f32", "u32")
        value, zero = te.cast(wide, value), te.as_scalar(0.0, wide)
        bits = te.Bitcast(unsigned, te.select(value.equal(zero), zero, value))  # -0 equals 0
        sign = te.as_scalar(_SIGN[unsigned], unsigned)
        key = te.select(bits >= sign, ~bits, bits ^ sign)
        key = te.select(te.call("isnan", value), _highest(unsigned), key)
    elif dtype == "u64":
        key = value
    elif dtype == "i64":
        key = te.Bitcast("u64", value) ^ te.as_scalar(_SIGN["u64"], "u64")
    elif dtype in ("bool", "u8", "u16", "u32"):
        key = te.cast("u32", value)
    else:
        key = te.Bitcast("u32", te.cast("i32", value)) ^ te.as_scalar(_SIGN["u32"], "u32")
    return ~key if largest else key


def check_count(name: str, k: Dim, size: Dim, axis: int) -> None:
    """Errors: T107 if the axis has fewer than `k` elements, or if `k` is negative."""
    if isinstance(k, int) and (k < 0 or (isinstance(size, int) and k > size)):
        raise GraphTypeError("T107", f"{name}: k={k} for the {size} elements of axis {axis}")
    assume_at_least(size, k)
    assume_at_least(k, 0)


@top_k.reference
def _top_k_reference(x: Array, *, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    last = np.swapaxes(x, axis, -1)
    rows = last.reshape(math.prod(last.shape[:-1]), last.shape[-1])
    # NumPy sorts NaN last only for its own dtypes.
    keys = rows.astype(np.float32) if from_numpy(rows.dtype) == "bf16" else rows
    if largest and rows.size:
        places = largest_places(keys, k)
    else:
        places = stable_order(keys, largest=largest, count=k)
    values = rows[np.arange(len(rows))[:, None], places]
    shape = (*last.shape[:-1], k)
    return tuple(np.swapaxes(v.reshape(shape), axis, -1) for v in (values, places))  # type: ignore[return-value]


@top_k.dynamic
def top_k_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    """Returns the types of `top_k` if `k` is only known at run time."""
    source = tensor_type("top_k", types[0])
    n = axis_of("top_k", attrs.axis, source.rank)
    shape = (*source.shape[:n], unknown_dim(), *source.shape[n + 1 :])
    return TupleType((TensorType(shape, source.dtype), TensorType(shape, "i64")))


@top_k.held
def top_k_held(args: Sequence[Expr], attrs: Attrs) -> Expr:
    """Returns `top_k` with the `k` that a value holds."""
    x, k = args
    return get_op("top_k_into")(x, get_op("room")(k), axis=attrs.axis, largest=attrs.largest)
