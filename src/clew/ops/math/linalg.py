"""Linear algebra other than products."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.expr import Constant, Expr, TupleGetItem
from clew.ir.types import TensorType, Type, is_float, to_numpy
from clew.ops.common import accumulator, differ, f16, f32, f64, i32, need_float, tensor_type
from clew.ops.registry import Sample, get_op, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import unary

Array = np.ndarray[Any, Any]

# LAPACK eliminates matrices with more rows: here, each column is a separate kernel.
_MOST_ROWS: Final = 32


def _square(name: str, x: Type) -> TensorType:
    source = tensor_type(name, x)
    if source.rank < 2:
        raise GraphTypeError("T102", f"{name}: {source} does not hold matrices")
    if differ(*source.shape[-2:]):
        raise GraphTypeError("T108", f"{name}: the matrices of {source} are not square")
    return source


def _square_floats(name: str, x: Type) -> TensorType:
    source = _square(name, x)
    if not is_float(source.dtype):
        raise GraphTypeError("T105", f"{name}: input is {source}, expected a float dtype")
    return source


def _of_each(function: Callable[[Array], Any], x: Array) -> Array:
    """Returns `function`, computed in f64, of each matrix; NaN where it raises LinAlgError."""
    wide = x.astype(np.float64)
    try:
        return np.asarray(function(wide)).astype(x.dtype)
    except np.linalg.LinAlgError:
        found = np.full(wide.shape, np.nan)
        for place in np.ndindex(*x.shape[:-2]):
            with suppress(np.linalg.LinAlgError):
                found[place] = function(wide[place])
        return found.astype(x.dtype)


@register_op(
    "eliminate_column",
    samples=(
        Sample(f32(2, 4, 4)),
        Sample(f64(1, 1)),
        Sample(np.array([[0.0, 2.0], [0.0, 3.0]], "f4")),
        Sample(np.array([[2.0, 1.0, 4.0], [np.nan, 2.0, 1.0], [0.0, 3.0, 5.0]], "f4")),
        Sample(f32(2, 3), error="T108"),
        Sample(f32(2), error="T102"),
        Sample(i32(2, 2), error="T105"),
    ),
)
def eliminate_column(x: Tensor) -> tuple[Tensor, Tensor]:
    """One step of Gaussian elimination of matrices `f32[..., n, n]`. It returns the remaining
    `n - 1` rows without their first column, and the pivot: the largest element of that column or a
    NaN, negated unless it was in the first row. The determinant is the pivot times the determinant
    of the rest.

    Errors: T102, T105, T108.
    """
    need_float("eliminate_column", x)
    *outer, _, n = _square("eliminate_column", x.type).shape
    count, k = len(outer), te.reduce_axis(n, "k")
    last = te.size(n - 1)

    def largest(*i: Scalar) -> Scalar:
        return te.max(unary("abs", x[(*i, k, 0)]), k)

    peak = te.compute(outer, largest, "peak")
    row = te.reduce_axis(n, "row")

    def first(*i: Scalar) -> Scalar:
        value = x[(*i, row, 0)]
        found = unary("abs", value).equal(peak[i]) | te.call("isnan", value)
        return te.min(te.select(found, row, last), row)

    place = te.compute(outer, first, "place")

    def signed(*i: Scalar) -> Scalar:
        value = x[(*i, place[i], 0)]
        return te.select(place[i].equal(0), value, -value)

    pivot = te.compute(outer, signed, "pivot")

    def eliminated(*i: Scalar) -> Scalar:
        batch, (r, c) = i[:count], i[count:]
        swapped = te.select((r + 1).equal(place[batch]), 0, r + 1)
        top = x[(*batch, place[batch], 0)]
        factor = te.select(top.equal(0.0), 0.0, x[(*batch, swapped, 0)] / top)
        return x[(*batch, swapped, c + 1)] - factor * x[(*batch, place[batch], c + 1)]

    rest = te.compute((*outer, n - 1, n - 1), eliminated, "rest")
    return rest, pivot


@register_op(
    "det",
    samples=(
        Sample(f32(3, 3)),
        Sample(f32(2, 3, 5, 5)),
        Sample(f64(4, 2, 2)),
        Sample(f16(2, 2)),
        Sample(f32(1, 1)),
        Sample(f64(2, 0, 0)),
        Sample(np.array([[0, 2, 1], [0, 3, 1], [1, 0, 0]], "f4")),
        Sample(f64(33, 33)),
        Sample(np.array([[1, 2, 3], [-np.inf, 1, -1], [np.inf, 0, 2]], "f4")),
        Sample(np.array([[1, 2, 3], [np.nan, 1, -1], [0, 1, 2]], "f4")),
        Sample(f32(2, 3), error="T108"),
        Sample(f32(2), error="T102"),
        Sample(i32(2, 2), error="T105"),
    ),
)
def det(x: Tensor) -> Tensor:  # type: ignore[empty-body]
    """Determinants of `f32[..., n, n]`, by elimination with the largest of each column as pivot.

    Errors: T102, T105, T108. Source: ONNX Det-22.
    """


@det.types
def _det_types(x: Type) -> Type:
    source = _square_floats("det", x)
    return TensorType(source.shape[:-2], source.dtype)


@det.reference
def _det_reference(x: Array) -> Array:
    wide = x.astype(np.float64)
    found = np.asarray(np.linalg.det(wide))
    # The order of steps decides between an infinity and a NaN.
    odd = ~np.isfinite(wide).all(axis=(-2, -1))
    if odd.any():
        found[odd] = _eliminated(wide[odd])
    return found.astype(x.dtype)


def _eliminated(x: Array) -> Array:
    """Returns the determinants of `f64[batch, n, n]`, with the steps in the order that defines
    `det`.
    """
    found, each = np.ones(len(x)), np.arange(len(x))
    while x.shape[1]:
        place = np.abs(x[:, :, 0]).argmax(1)
        row = x[each, place]
        found = found * np.where(place == 0, row[:, 0], -row[:, 0])
        x[each, place] = x[:, 0]
        top = np.where(row[:, 0] == 0, 1, row[:, 0])
        x = x[:, 1:, 1:] - (x[:, 1:, :1] / top[:, None, None]) * row[:, None, 1:]
    return found


@det.decompose
def _det_decomposed(x: Expr) -> Expr | None:
    type_ = x.tensor
    n = type_.shape[-1]
    if not isinstance(n, int) or n > _MOST_ROWS:
        return None
    wide = accumulator(type_.dtype)
    rest = x if wide == type_.dtype else get_op("cast")(x, dtype=wide)
    if n == 0:
        one = Constant(np.asarray(1, to_numpy(type_.dtype)))
        return get_op("broadcast_to")(one, shape=type_.shape[:-2])
    found: Expr | None = None
    for _ in range(n):
        step = get_op("eliminate_column")(rest)
        rest, pivot = TupleGetItem(step, 0), TupleGetItem(step, 1)
        found = pivot if found is None else get_op("multiply")(found, pivot)
    assert found is not None
    return found if wide == type_.dtype else get_op("cast")(found, dtype=type_.dtype)


@register_op(
    "inverse",
    host=True,
    samples=(
        Sample(np.array([[2, 1], [1, 3]], "f4")),
        Sample(np.array([[[0, 1], [1, 0]], [[1, 2], [2, 4]]], "f8")),
        Sample(np.array([[4, 1], [2, 1]], "f2")),
        Sample(f64(2, 0, 0)),
        Sample(f32(2, 3), error="T108"),
        Sample(f32(2), error="T102"),
        Sample(i32(2, 2), error="T105"),
    ),
)
def inverse(x: Array) -> Array:
    """Inverses of `f32[..., n, n]`; that of a singular matrix is all NaN.

    Errors: T102, T105, T108. Source: `com.microsoft.Inverse`; LAPACK's `gesv`.
    """
    return _of_each(np.linalg.inv, x)


@inverse.types
def _inverse_types(x: Type) -> Type:
    return _square_floats("inverse", x)


@register_op(
    "cholesky",
    host=True,
    samples=(
        Sample(np.array([[4, 2], [2, 3]], "f4")),
        Sample(np.array([[[2, 0], [0, 9]], [[1, 2], [2, 1]]], "f8")),
        Sample(f64(2, 0, 0)),
        Sample(f32(2, 3), error="T108"),
        Sample(f32(2), error="T102"),
        Sample(i32(2, 2), error="T105"),
    ),
)
def cholesky(x: Array) -> Array:
    """Lower triangles `L` with `L L' = x` of positive definite `f32[..., n, n]`, of which the lower
    triangle is read; of other matrices, all NaN.

    Errors: T102, T105, T108. Source: `torch.linalg.cholesky_ex`; LAPACK's `potrf`.
    """
    return _of_each(np.linalg.cholesky, x)


@cholesky.types
def _cholesky_types(x: Type) -> Type:
    return _square_floats("cholesky", x)
