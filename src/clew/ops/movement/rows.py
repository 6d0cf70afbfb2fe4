"""Rows inserted and erased at positions that only the run knows: sequences as tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ops.common import differ, f32, i32, i64, need_integer, need_rank, same_dtype
from clew.ops.movement.indexing import index_at, indices_in
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.bounds import Places, held
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]
_NOUN: Final = "position from the front"


def _need_rows(name: str, x: Tensor, place: Tensor) -> None:
    """Checks that a tensor has rows, and that a position is one integer.

    Errors: T102, T105.
    """
    if not x.rank:
        raise GraphTypeError("T102", f"{name}: {x.type} has no rows")
    need_integer(name, place)
    need_rank(name, "the position", place, 0)


def _before(count: Dim) -> Places:
    """Returns the positions before, between and behind rows, counted from the front."""
    return Places("insert_row", 0, count, count + 1, from_end=False, noun=_NOUN)


@register_op(
    "insert_row",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(4, 3), f32(3), np.array(2)),
        Sample(f32(4, 3), f32(3), np.array(-4, "i4")),
        Sample(i64(3), i64(), np.array(3)),
        Sample(f32(1, 2, 3), f32(2, 3), np.array(0)),
        Sample(f32(4, 3), f32(3), np.array(5), error="I320"),
        Sample(f32(4, 3), f32(3), np.array(-5), error="I320"),
        Sample(f32(4, 3), f32(4), np.array(0), error="T108"),
        Sample(f32(4, 3), f32(1, 3), np.array(0), error="T102"),
        Sample(f32(4, 3), i32(3), np.array(0), error="T101"),
        Sample(f32(4, 3), f32(3), f32(), error="T105"),
        Sample(f32(4, 3), f32(3), i64(1), error="T102"),
    ),
)
def insert_row(x: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """The rows of `x` along axis 0, and `row` before the row at `place`: `f32[n + 1, ...]`. A
    negative position counts from the end; `n` is behind the last row.

    Errors: T101, T102, T105, T108; I320 for a position out of range.
    """
    name = "insert_row"
    same_dtype(name, x, row)
    _need_rows(name, x, place)
    if row.rank != x.rank - 1:
        raise GraphTypeError("T102", f"{name}: {row.type} is no row of {x.type}")
    if any(differ(a, b) for a, b in zip(x.shape[1:], row.shape, strict=True)):
        raise GraphTypeError("T108", f"{name}: {row.type} is no row of {x.type}")
    count = x.shape[0]

    def body(i: Scalar, *rest: Scalar) -> Scalar:
        given = te.cast("i64", place[()])
        front = te.select(given < 0, given + te.size(count), given)
        at = te.Checked(front, _before(count))
        old = x[(te.select(i < at, i, i - 1), *rest)]
        return te.select(i.equal(at), row[rest], old)

    return te.compute((count + 1, *x.shape[1:]), body, name)


@insert_row.reference
def _insert_row_reference(x: Array, row: Array, place: Array) -> Array:
    count = len(x)
    given = np.asarray(place).astype(np.int64)
    at = held(np.where(given < 0, given + count, given), _before(count))
    return np.insert(x, int(at), row, axis=0)


@register_op(
    "erase_row",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(4, 3), np.array(2)),
        Sample(f32(4, 3), np.array(-4, "i4")),
        Sample(i64(3), np.array(2)),
        Sample(f32(4, 3), np.array(4), error="I320"),
        Sample(f32(4, 3), np.array(-5), error="I320"),
        Sample(f32(0, 3), np.array(0), error="T110"),
        Sample(f32(), np.array(0), error="T102"),
        Sample(f32(4, 3), f32(), error="T105"),
    ),
)
def erase_row(x: Tensor, place: Tensor) -> Tensor:
    """The rows of `x` along axis 0 but the one at `place`: `f32[n - 1, ...]`. A negative position
    counts from the end. The position is not checked if a data-dependent number of rows is 0.

    Errors: T102, T105, T110; I320 for a position out of range.
    """
    _need_rows("erase_row", x, place)

    def body(i: Scalar, *rest: Scalar) -> Scalar:
        at = index_at("erase_row", place, (), 0, x.shape[0])
        return x[(te.select(i < at, i, i + 1), *rest)]

    if x.shape[0] == 0:
        raise GraphTypeError("T110", "erase_row: the indexed axis has no elements")
    return te.compute((x.shape[0] - 1, *x.shape[1:]), body, "erase_row")


@erase_row.reference
def _erase_row_reference(x: Array, place: Array) -> Array:
    return np.delete(x, int(indices_in("erase_row", np.asarray(place), 0, len(x))), axis=0)
