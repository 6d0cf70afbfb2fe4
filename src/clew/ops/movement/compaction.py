"""Elements selected by conditions, in two steps: one kernel counts them, and a second one collects
them into a result of that size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, at_least, dim_min, product, unknown_dim
from clew.ir.expr import Expr
from clew.ir.types import TensorType, Type
from clew.ops.common import axis_of, boolean, capped, exceeds, f32, i32, tensor_type
from clew.ops.registry import Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import zeros
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


@register_op("nonzero", samples=(Sample(boolean(3, 4)), Sample(f32(5)), Sample(i32(), low=1)))
def nonzero(x: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Positions of nonzero elements, `i64[rank, count]`. For a scalar, the shape is `[0, 1]` or
    `[0, 0]`, as the standard requires (ONNX Runtime adds an axis).

    Errors: I265. Source: ONNX NonZero-13.
    """


@nonzero.types
def _nonzero_types(x: Type) -> Type:
    return TensorType((tensor_type("nonzero", x).rank, unknown_dim()), "i64")


@nonzero.reference
def _nonzero_reference(x: Array) -> Array:
    check_run_bytes("the result of nonzero", 8 * x.ndim * int(np.count_nonzero(x)))
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim]


@nonzero.decompose
def _nonzero_expanded(x: Expr) -> Expr | None:
    if not x.tensor.rank:
        return None
    return get_op("nonzero_positions")(x, _room_for(x))


def _room_for(x: Expr) -> Expr:
    """Returns a value with as many elements as `x` has nonzero ones."""
    return get_op("room")(get_op("count_nonzero")(x))


@register_op("count_nonzero", samples=(Sample(boolean(3, 40)), Sample(f32(5)), Sample(i32())))
def count_nonzero(x: Tensor) -> Tensor:
    """The number of nonzero elements, `i64[]`."""
    over = [te.reduce_axis(size, f"k{n}") for n, size in enumerate(x.shape)]
    return te.compute((), lambda: te.reduce("sum", _holds(x, over), over), "count_nonzero")


@count_nonzero.reference
def _count_nonzero_reference(x: Array) -> Array:
    return np.asarray(np.count_nonzero(x), np.int64)


def _holds(x: Tensor, place: list[Any]) -> Scalar:
    value = x[tuple(place)]
    return te.cast("i64", value if x.dtype == "bool" else value.not_equal(te.as_scalar(0, x.dtype)))


@register_op(
    "room",
    host=True,
    traits=Traits(collects=True),
    samples=(Sample(np.array(3)), Sample(np.array(0)), Sample(np.array(-1), error="T107")),
)
def room(count: Array) -> Array:
    """A value with `count` elements, `bool[count]`, of which only the size matters: an operator
    whose result has a data-dependent size takes it as an operand.

    Errors: I265, T107.
    """
    number = int(count)
    if number < 0:
        raise GraphTypeError("T107", f"room: a size of {number}")
    check_run_bytes("a result whose size is determined in the run", 8 * number)
    return np.zeros(number, bool)


@room.types
def _room_types(count: Type) -> Type:
    if tensor_type("room", count).rank:
        raise GraphTypeError("T102", f"room: count is {count}, expected i64[]")
    return TensorType((unknown_dim(),), "bool")


@register_op(
    "first_rows",
    host=True,
    traits=Traits(passes_on=True),
    samples=(
        Sample(f32(3, 4), np.array(2)),
        Sample(f32(3), np.array(0)),
        Sample(f32(), np.array(0), error="T102"),
    ),
)
def first_rows(x: Array, count: Array) -> Array:
    """The first `count` rows of `x`, as a view of its memory. An operator whose result is small
    even if all candidates are kept computes rows for all of them; `count` is the number of valid
    rows.

    Errors: T102.
    """
    return x[: int(count)]


@first_rows.types
def _first_rows_types(x: Type, count: Type) -> Type:
    source = tensor_type("first_rows", x)
    if not source.rank or tensor_type("first_rows", count).rank:
        raise GraphTypeError("T102", f"first_rows: {count} rows of {source}")
    return TensorType((unknown_dim(), *source.shape[1:]), source.dtype)


def _found(x: Tensor, count: Dim) -> Tensor:
    """Returns the places of nonzero elements in the flattened `x`, `i64[count]`."""
    over = [te.reduce_axis(size, f"k{n}") for n, size in enumerate(x.shape)]
    place = te.as_scalar(0)
    for size, axis in zip(x.shape, over, strict=True):
        place = place * te.size(size) + axis
    where = _holds(x, over).equal(1)
    return te.compute((count,), lambda _: te.collect(where, place, over), "found", axes=("place",))


@register_op(
    "nonzero_positions",
    samples=(
        Sample(np.array([[1, 0, 2], [0, 0, 3]], "f4"), boolean(3)),
        Sample(np.array([True, False, True]), boolean(2)),
        Sample(boolean(4), boolean(2, 2), error="T102"),
        Sample(boolean(), boolean(1), error="T102"),
    ),
)
def nonzero_positions(x: Tensor, room: Tensor) -> Tensor:
    """`nonzero` with as many positions as `room` has elements; if fewer exist, the rest is 0.

    Errors: T102.
    """
    if room.rank != 1 or not x.rank:
        raise GraphTypeError("T102", f"nonzero_positions: {x.type} into {room.type}")
    count = room.shape[0]
    found = _found(x, count)

    def position(axis: Scalar, element: Scalar) -> Scalar:
        steps = [product(x.shape[n + 1 :]) for n in range(x.rank)]
        value = te.as_scalar(0)
        for n, (step, size) in reversed(list(enumerate(zip(steps, x.shape, strict=True)))):
            index = found[element] // te.size(step)
            value = te.select(axis.equal(n), index % te.size(size) if n else index, value)
        return value

    return te.compute((x.rank, count), position, "nonzero_positions")


@nonzero_positions.reference
def _nonzero_positions_reference(x: Array, room: Array) -> Array:
    places = _places(x, room)
    if not x.size:
        return np.zeros((x.ndim, len(room)), np.int64)
    return np.array(np.unravel_index(places, x.shape), np.int64)


def _places(x: Array, room: Array) -> Array:
    """Returns as many places of nonzero elements as `room` has elements; any rest is 0."""
    places = np.zeros(len(room), np.int64)
    found = np.flatnonzero(x)[: len(room)]
    places[: len(found)] = found
    return places


@register_op(
    "compress",
    samples=(
        Sample(f32(3, 4), boolean(4), axis=1),
        Sample(f32(3, 4), boolean(7)),
        Sample(f32(3, 4), boolean(20)),
        Sample(f32(3, 4), boolean(2, 2), error="T102"),
        Sample(f32(3, 4), boolean(2), axis=2, error="T104"),
    ),
)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:  # type: ignore[empty-body]
    """The slices along `axis` (or elements of the flattened `x`) whose condition holds. Slices
    beyond the last condition are left out. Source: ONNX Compress-11.
    """


@compress.types
def _compress_types(x: Type, condition: Type, *, axis: int | None) -> Type:
    source, chosen = tensor_type("compress", x), tensor_type("compress", condition)
    if chosen.rank != 1 or chosen.dtype != "bool":
        raise GraphTypeError("T102", f"compress: condition is {chosen}, expected bool[n]")
    if axis is None:
        return TensorType((unknown_dim(),), source.dtype)
    n = axis_of("compress", axis, source.rank)
    return TensorType((*source.shape[:n], unknown_dim(), *source.shape[n + 1 :]), source.dtype)


@compress.reference
def _compress_reference(x: Array, condition: Array, *, axis: int | None) -> Array:
    return np.compress(condition[: x.size if axis is None else x.shape[axis]], x, axis)


@compress.decompose
def _compress_expanded(x: Expr, condition: Expr, *, axis: int | None) -> Expr:
    if axis is None:
        x, axis = get_op("reshape")(x, shape=(product(x.tensor.shape),)), 0
    size, given = x.tensor.shape[axis], condition.tensor.shape[0]
    if not at_least(size - given):
        condition = get_op("slice")(condition, begin=(0,), end=(dim_min(size, given),), axes=(0,))
    return get_op("compressed")(x, condition, _room_for(condition), axis=axis)


@register_op(
    "compressed",
    samples=(
        Sample(f32(3, 4), np.array([True, False, True, True]), boolean(3), axis=1),
        Sample(i32(5), np.array([False, True, True]), boolean(2), axis=0),
        Sample(f32(3, 4), boolean(4), boolean(2, 2), axis=1, error="T102"),
        Sample(f32(3, 4), boolean(5), boolean(2), axis=1, error="T108"),
        Sample(f32(3, 4), boolean(2), boolean(2), axis=2, error="T104"),
    ),
)
def compressed(x: Tensor, condition: Tensor, room: Tensor, *, axis: int) -> Tensor:
    """`compress` with as many slices as `room` has elements; if fewer conditions hold, the rest are
    copies of the first slice. `condition` must not be longer than the axis.

    Errors: T102, T104, T108.
    """
    if room.rank != 1 or condition.rank != 1:
        raise GraphTypeError("T102", f"compressed: {condition.type} into {room.type}")
    n = axis_of("compressed", axis, x.rank)
    size, given = x.shape[n], condition.shape[0]
    if exceeds(given, size):
        raise GraphTypeError("T108", f"compressed: {given} conditions on {size} slices")
    found = _found(condition, room.shape[0])

    def element(*i: Scalar) -> Scalar:
        return x[(*i[:n], capped(found[i[n]], size), *i[n + 1 :])]

    return te.compute((*x.shape[:n], room.shape[0], *x.shape[n + 1 :]), element, "compressed")


@compressed.reference
def _compressed_reference(x: Array, condition: Array, room: Array, *, axis: int) -> Array:
    if not x.size:
        return zeros((*x.shape[:axis], len(room), *x.shape[axis:][1:]), x.dtype)
    return np.take(x, _places(condition, room), axis)
