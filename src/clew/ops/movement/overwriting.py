"""Overwriting: a part of a tensor replaced by other values."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ops.common import (
    assume_at_least,
    axis_of,
    differ,
    exceeds,
    f32,
    i32,
    i64,
    same_dtype,
)
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


@register_op(
    "overwrite",
    samples=(
        Sample(f32(2, 5, 3), f32(2, 2, 3), begin=1, axis=1),
        Sample(i64(4), i64(4), begin=0, axis=-1),
        Sample(f32(2, 5), f32(2, 0), begin=5, axis=1),
        Sample(f32(2, 5), i32(2, 1), begin=0, axis=1, error="T101"),
        Sample(f32(2, 5), f32(5), begin=0, axis=1, error="T102"),
        Sample(f32(2, 5), f32(3, 1), begin=0, axis=1, error="T108"),
        Sample(f32(2, 5), f32(2, 3), begin=3, axis=1, error="T108"),
        Sample(f32(2, 5), f32(2, 3), begin=-1, axis=1, error="T108"),
        Sample(f32(2, 5), f32(2, 3), begin=0, axis=2, error="T104"),
    ),
)
def overwrite(x: Tensor, new: Tensor, *, begin: int, axis: int) -> Tensor:
    """`x` with the elements from `begin` on along `axis` replaced by `new`, which has the shape of
    `x` except along that axis. Source: XLA DynamicUpdateSlice, without its clamping.

    Errors: T101, T102, T104, T108.
    """
    same_dtype("overwrite", x, new)
    along = axis_of("overwrite", axis, x.rank)
    if new.rank != x.rank:
        raise GraphTypeError("T102", f"overwrite: {x.type} and {new.type} differ in rank")
    end = begin + new.shape[along]
    sizes = enumerate(zip(x.shape, new.shape, strict=True))
    wrong = any(n != along and differ(a, b) for n, (a, b) in sizes)
    if wrong or exceeds(end, x.shape[along]) or exceeds(0, begin):
        raise GraphTypeError("T108", f"overwrite: {new.type} at {begin} does not fit {x.type}")
    assume_at_least(begin, 0)
    assume_at_least(x.shape[along], end)
    if new.shape[along] == 0:
        return te.compute(x.shape, lambda *i: x[i], "overwrite")

    def body(*i: Scalar) -> Scalar:
        place = i[along] - te.size(begin)
        written = te.all_of(te.size(begin) <= i[along], i[along] < te.size(end))
        return te.select(written, new[(*i[:along], place, *i[along + 1 :])], x[i])

    return te.compute(x.shape, body, "overwrite")


@overwrite.scatter
def _overwrite_scattered(x: Tensor, new: Tensor, *, begin: int, axis: int) -> Tensor:
    along = axis % x.rank
    each = te.reduce_axis(new.shape[along], "new")

    def updated(*i: Scalar) -> Scalar:
        place = (*i[:along], te.size(begin) + each, *i[along + 1 :])
        return te.scatter(x[i], place, new[(*i[:along], each, *i[along + 1 :])], [each], apart=True)

    return te.compute(x.shape, updated, "overwrite")


@overwrite.reference
def _overwrite_reference(x: Array, new: Array, *, begin: int, axis: int) -> Array:
    made = np.array(x)
    place = [slice(None)] * x.ndim
    place[axis] = slice(begin, begin + new.shape[axis])
    made[tuple(place)] = new
    return made
