"""Slices with bounds that are computed at run time, in two steps: one kernel computes the first
index and the number of elements, and a second one copies the elements into a result of that size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.expr import ArgRef, Attrs, Constant, Expr
from clew.ir.types import is_native
from clew.ops.common import axis_of, boolean, f32, i64, need_integer, need_rank, same_dtype
from clew.ops.movement.slicing import slice_
from clew.ops.registry import Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_BEGIN, _END = np.array([-3, 9]), np.array([7, -8])


@slice_.held
def slice_held(args: Sequence[Expr], attrs: Attrs) -> Expr | None:
    """Returns a `slice` with computed bounds as one slice per axis; None if the axes or strides are
    computed, too.
    """
    x, axes, strides = args[0], attrs.axes, attrs.strides
    if isinstance(axes, ArgRef) or isinstance(strides, ArgRef) or not is_native(x.type):
        return None
    strides = strides or (1,) * len(axes)
    begin, end = (_bounds(args, bound) for bound in (attrs.begin, attrs.end))
    sizes = begin.tensor.shape, end.tensor.shape
    if sizes != ((len(axes),),) * 2 or len(strides) != len(axes) or 0 in strides:
        return None
    for n, (axis, stride) in enumerate(zip(axes, strides, strict=True)):
        span = get_op("slice_span")(x, begin, end, axis=axis, stride=stride, number=n)
        count = get_op("gather")(span, Constant(np.asarray(1)), axis=0)
        room = get_op("room")(count)
        x = get_op("slice_into")(x, span, room, axis=axis, stride=stride)
    return x


def _bounds(args: Sequence[Expr], bound: ArgRef | tuple[int, ...]) -> Expr:
    return args[bound.index] if isinstance(bound, ArgRef) else Constant(np.array(bound, np.int64))


@register_op(
    "slice_span",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(5, 7), _BEGIN, _END, axis=1, stride=2, number=0),
        Sample(f32(5, 7), _BEGIN, _END, axis=1, stride=-3, number=1),
        Sample(f32(5), np.array([2], "i4"), np.array([-9], "i4"), axis=0, stride=-1, number=0),
        Sample(f32(5), i64(2), i64(2), axis=1, stride=1, number=0, error="T104"),
        Sample(f32(5), i64(2), i64(2), axis=0, stride=0, number=0, error="T107"),
        Sample(f32(5), i64(2), i64(2), axis=0, stride=1, number=2, error="T107"),
        Sample(f32(5), f32(2), f32(2), axis=0, stride=1, number=0, error="T105"),
    ),
)
def slice_span(
    x: Tensor, begin: Tensor, end: Tensor, *, axis: int, stride: int, number: int
) -> Tensor:
    """The first index of a slice along `axis`, and its number of elements: `i64[2]`. The bounds are
    those at index `number` of `begin` and `end`, with the meaning that they have in `slice`.

    Errors: T101, T102, T104, T105, T107.
    """
    name = "slice_span"
    same_dtype(name, begin, end)
    need_integer(name, begin)
    for what, bound in (("the begin", begin), ("the end", end)):
        need_rank(name, what, bound, 1)
        count = bound.shape[0]
        if not 0 <= number < (count if isinstance(count, int) else number + 1):
            raise GraphTypeError("T107", f"{name}: number={number} in {bound.type}")
    if stride == 0:
        raise GraphTypeError("T107", f"{name}: stride is 0")
    size = te.size(x.shape[axis_of(name, axis, x.rank)])

    def within(bound: Tensor, low: int, high: Scalar) -> Scalar:
        given = te.cast("i64", bound[(number,)])
        place = te.select(given < 0, given + size, given)
        return te.minimum(te.maximum(place, low), high)

    def body(i: Scalar) -> Scalar:
        if stride > 0:
            first, last = within(begin, 0, size), within(end, 0, size)
            left = last - first
        else:
            first, last = within(begin, 0, size - 1), within(end, -1, size - 1)
            left = first - last
        count = te.select(left > 0, (left - 1) // abs(stride) + 1, te.as_scalar(0))
        return te.select(i.equal(0), first, count)

    return te.compute((2,), body, name)


@slice_span.reference
def _slice_span_reference(
    x: Array, begin: Array, end: Array, *, axis: int, stride: int, number: int
) -> Array:
    size, sign = x.shape[axis], 1 if stride > 0 else -1
    low, high = (int(n) + size * (n < 0) for n in (begin[number], end[number]))
    first = min(max(low, 0), size - (sign < 0))
    last = min(max(high, 0 if sign > 0 else -1), size - (sign < 0))
    return np.array([first, max(-(-(last - first) // stride), 0)], np.int64)


@register_op(
    "slice_into",
    samples=(
        Sample(f32(5, 7), np.array([1, 3]), boolean(3), axis=1, stride=2),
        Sample(f32(5, 7), np.array([4, 4]), boolean(4), axis=0, stride=-1),
        Sample(f32(5), i64(3), boolean(2), axis=0, stride=1, error="T108"),
        Sample(f32(5), i64(2), boolean(2, 2), axis=0, stride=1, error="T102"),
        Sample(f32(5), i64(2), boolean(2), axis=1, stride=1, error="T104"),
        Sample(f32(5), f32(2), boolean(2), axis=0, stride=1, error="T105"),
    ),
)
def slice_into(x: Tensor, span: Tensor, room: Tensor, *, axis: int, stride: int) -> Tensor:
    """Every `stride`-th element along `axis`, starting at index `span[0]`. `room`, whose elements
    are not read, has as many elements as the result has along `axis`.

    Errors: T102, T104, T105, T108.
    """
    name = "slice_into"
    n = axis_of(name, axis, x.rank)
    need_integer(name, span)
    if room.rank != 1 or span.rank != 1:
        raise GraphTypeError("T102", f"{name}: {span.type} into {room.type}")
    if span.shape != (2,):
        raise GraphTypeError("T108", f"{name}: the span is {span.type}, expected i64[2]")

    def body(*i: Scalar) -> Scalar:
        place = te.cast("i64", span[(0,)]) + i[n] * stride
        inside = te.minimum(te.maximum(place, 0), te.size(x.shape[n]) - 1)
        return x[(*i[:n], inside, *i[n + 1 :])]

    return te.compute((*x.shape[:n], room.shape[0], *x.shape[n + 1 :]), body, name)


@slice_into.reference
def _slice_into_reference(x: Array, span: Array, room: Array, *, axis: int, stride: int) -> Array:
    size = x.shape[axis]
    if not size:  # as kernels read where there is no element
        return np.zeros((*x.shape[:axis], len(room), *x.shape[axis + 1 :]), x.dtype)
    return x.take(np.clip(np.arange(len(room)) * stride + int(span[0]), 0, size - 1), axis)
