"""Distinct elements: one kernel sorts all elements and marks the first of each kind. A second one
collects the marked elements into results with one element per kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, product, unknown_dim
from clew.ir.expr import Expr, TupleGetItem
from clew.ir.types import TensorType, TupleType, Type, is_native
from clew.ops.common import axis_of, boolean, capped, f32, i32, i64, tensor_type
from clew.ops.math.sorting import sort_key
from clew.ops.registry import Sample, Traits, get_op, register_op
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT, text_array
from clew.te import Scalar, Tensor
from clew.te.expr import Index

Array = np.ndarray[Any, Any]


@register_op(
    "unique",
    traits=Traits(collects=True),
    samples=(
        Sample(i32(9), low=0, high=3),
        Sample(i64(3, 4), low=0, high=1, axis=0),
        Sample(i64(3, 4), low=0, high=3),
        Sample(f32(2, 5), sort=False),
        Sample(np.array([["b", "a", "é"], ["a", "", "b"]], TEXT)),
        Sample(np.array(["b", "a", "b"], TEXT), sort=False),
        Sample(f32(3), axis=1, error="T104"),
    ),
)
def unique(  # type: ignore[empty-body]
    x: Tensor, *, axis: int | None = None, sort: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct slices along `axis` (or elements of the flattened `x`), the index of the first
    occurrence of each, for each slice of `x` the index of its distinct slice, and the counts.
    Unsorted results are in order of first occurrence.

    Source: ONNX Unique-11.
    """


@unique.types
def _unique_types(x: Type, *, axis: int | None, sort: bool) -> Type:
    source, count = tensor_type("unique", x), unknown_dim()
    shape: tuple[Any, ...] = (count,)
    slices = source.size
    if axis is not None:
        n = axis_of("unique", axis, source.rank)
        shape, slices = (*source.shape[:n], count, *source.shape[n + 1 :]), source.shape[n]
    counts = TensorType((count,), "i64")
    return TupleType(
        (TensorType(shape, source.dtype), counts, TensorType((slices,), "i64"), counts)
    )


@unique.reference
def _unique_reference(
    x: Array, *, axis: int | None, sort: bool
) -> tuple[Array, Array, Array, Array]:
    if x.dtype == TEXT and (axis is None or x.ndim == 1):
        return _unique_texts(x, sort)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sort:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, 0 if axis is None else axis)
        first, inverse, counts = first[order], rank[inverse], counts[order]
    return values, first.astype("i8"), inverse.astype("i8"), counts.astype("i8")


def _unique_texts(x: Array, sort: bool) -> tuple[Array, Array, Array, Array]:
    """Returns the results for texts, whose hashes take less time to compare than themselves."""
    texts = x.reshape(-1).tolist()
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    kinds = sorted(first) if sort else list(first)
    rank = {text: n for n, text in enumerate(kinds)}
    inverse = np.array(list(map(rank.__getitem__, texts)), np.int64)
    return (
        text_array(kinds, (len(kinds),)),
        np.array(list(map(first.__getitem__, kinds)), np.int64),
        inverse,
        np.bincount(inverse, minlength=len(kinds)).astype(np.int64, copy=False),
    )


@unique.decompose
def _unique_expanded(x: Expr, *, axis: int | None, sort: bool) -> Expr | None:
    if not is_native(x.type) or (axis is not None and x.tensor.rank > 1):
        return None  # slices are compared on the host
    flat = get_op("reshape")(x, shape=(product(x.tensor.shape),))
    sorted_ = get_op("sorted_kinds")(flat)
    order, starts = TupleGetItem(sorted_, 0), TupleGetItem(sorted_, 1)
    room = get_op("room")(get_op("count_nonzero")(starts))
    return get_op("kinds")(flat, order, starts, room, sort=sort)


@register_op(
    "sorted_kinds",
    samples=(
        Sample(i32(9), low=0, high=3),
        Sample(np.array([np.nan, 1, -np.inf, 0, -0.0, np.nan], "f4")),
        Sample(f32(3, 4), error="T102"),
    ),
)
def sorted_kinds(x: Tensor) -> tuple[Tensor, Tensor]:
    """The positions that sort a vector in ascending order, `i64[n]`, and whether each sorted
    element differs from the one before it, `bool[n]`. All NaNs count as equal, and as largest.

    Errors: T102.
    """
    if x.rank != 1:
        raise GraphTypeError("T102", f"sorted_kinds: {x.type} is not a vector")
    over = te.reduce_axis(x.shape[0], "over")
    order = te.compute(x.shape, lambda _: te.sort(_key(x, over), [over]), "order")

    def starts(n: Scalar) -> Scalar:
        key, before = (_key(x, _inside(order[place], x.shape[0])) for place in (n, _before(n)))
        return n.equal(0) | key.not_equal(before)

    return order, te.compute(x.shape, starts, "sorted_kinds")


def _before(n: Scalar) -> Scalar:
    return te.maximum(n - 1, 0)


def _key(x: Tensor, place: Scalar) -> Scalar:
    return sort_key(x[place], largest=False)


def _inside(place: Scalar, size: Dim) -> Scalar:
    """Returns a place that an operand gives, clamped to an axis."""
    return capped(te.maximum(place, 0), size)


@sorted_kinds.reference
def _sorted_kinds_reference(x: Array) -> tuple[Array, Array]:
    order = np.argsort(x, kind="stable")
    values = x[order]
    with np.errstate(invalid="ignore"):
        same = (values[1:] == values[:-1]) | (
            (values[1:] != values[1:]) & (values[:-1] != values[:-1])
        )
    return order, np.concatenate([np.ones(min(len(x), 1), bool), ~same])


_KINDS = (np.array([3, 1, 3], "i4"), np.array([1, 0, 2]), np.array([True, True, False]))


@register_op(
    "kinds",
    samples=(
        Sample(*_KINDS, boolean(2)),
        Sample(*_KINDS, boolean(2), sort=False),
        Sample(i32(3), i64(4), boolean(3), boolean(2), error="T108"),
    ),
)
def kinds(
    x: Tensor, order: Tensor, starts: Tensor, room: Tensor, *, sort: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`unique` of a vector, given the results of `sorted_kinds` and a value (`room`) with one
    element per kind.

    Errors: T108.
    """
    vectors = all(t.rank == 1 for t in (x, order, starts, room))
    if not vectors or not (x.shape == order.shape == starts.shape) or order.dtype != "i64":
        raise GraphTypeError("T108", f"kinds: {order.type} and {starts.type} of {x.type}")
    size, count = x.shape[0], room.shape[0]
    if size == 0 and isinstance(count, int) and count:
        raise GraphTypeError("T108", f"kinds: {count} of {x.type}")
    each = te.reduce_axis(size, "each")
    found = te.compute(
        (count,), lambda _: te.collect(te.cast("bool", starts[each]), each, [each]), "found"
    )
    first = te.compute((count,), lambda n: _inside(order[_inside(found[n], size)], size), "first")

    def repeated(n: Scalar) -> Scalar:
        following = found[te.minimum(n + 1, te.size(count) - 1)]
        return te.select(n + 1 < te.size(count), following, te.size(size)) - found[n]

    counts = te.compute((count,), repeated, "counts")
    numbers = te.compute((size,), lambda n: te.scan("sum", te.cast("i64", starts[n]), n), "numbers")

    def put(size: Dim, place: Scalar, value: Scalar, over: Index) -> Scalar:
        return te.scatter(te.as_scalar(0), [_inside(place, size)], value, [over])

    inverse = te.compute(
        (size,), lambda _: put(size, order[each], numbers[each] - 1, each), "inverse"
    )
    if not sort:
        kind = te.reduce_axis(count, "kind")
        met = te.compute((count,), lambda _: te.sort(te.cast("u64", first[kind]), [kind]), "met")
        rank = te.compute((count,), lambda _: put(count, met[kind], kind, kind), "rank")
        first, counts, inverse = (
            te.compute((count,), lambda n: first[_inside(met[n], count)], "first_met"),
            te.compute((count,), lambda n: counts[_inside(met[n], count)], "counts_met"),
            te.compute((size,), lambda n: rank[_inside(inverse[n], count)], "inverse_met"),
        )
    values = te.compute((count,), lambda n: x[_inside(first[n], size)], "kinds")
    return values, first, inverse, counts


@kinds.reference
def _kinds_reference(
    x: Array, order: Array, starts: Array, room: Array, *, sort: bool
) -> tuple[Array, Array, Array, Array]:
    size, count = len(x), len(room)
    order = np.clip(order, 0, size - 1)
    found = np.zeros(count, np.int64)
    places = np.flatnonzero(starts)[:count]
    found[: len(places)] = places
    counts = np.append(found[1:], size) - found
    first, inverse = order[found], np.zeros(size, np.int64)
    inverse[order] = np.cumsum(starts) - 1
    if not sort:
        met = np.argsort(first, kind="stable")
        rank = np.empty_like(met)
        rank[met] = np.arange(count)
        first, counts = first[met], counts[met]
        inverse = rank[np.clip(inverse, 0, count - 1)] if count else 0 * inverse
    return x[first], first, inverse, counts
