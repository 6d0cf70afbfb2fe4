"""Elements by index. Indices may be negative, and are clamped to the axis, so no other memory is
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, unknown_dim
from clew.ir.expr import Attrs
from clew.ir.types import TensorType, Type
from clew.ops.common import axis_of, differ, exceeds, f32, i64, need_integer, tensor_type
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.bounds import Places, held
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]


def index_at(
    name: str,
    indices: Tensor,
    place: Sequence[Scalar],
    axis: int,
    size: Dim,
    from_end: bool = True,
) -> Scalar:
    """Returns the index at a position, counted from the front of an axis of a size.

    Errors: T110 for an axis without elements if there are indices; at run time I320 for an index
    out of range.
    """
    _need_elements(name, indices.shape, size)
    places = Places(name, axis, size, size, from_end)
    return te.Checked(te.cast("i64", indices[tuple(place)]), places)


def _need_elements(name: str, indices: Sequence[Dim], size: Dim) -> None:
    """Checks that an axis has elements if there are indices. Data-dependent sizes may still turn
    out to be 0.

    Errors: T110.
    """
    if size == 0 and all(isinstance(d, int) and d for d in indices):
        raise GraphTypeError("T110", f"{name}: the indexed axis has no elements")


def indices_in(name: str, indices: Array, axis: int, size: int, from_end: bool = True) -> Array:
    """Returns indices counted from the front of an axis of a size, `i64`.

    Errors: T110 for an axis without elements if there are indices, I320 for one out of range.
    """
    _need_elements(name, indices.shape, size)
    return held(indices, Places(name, axis, size, size, from_end))


@register_op(
    "gather",
    traits=Traits(sizes="computed", collects=True),
    samples=(
        Sample(f32(5, 3), np.array([0, 4, -1, 2]), axis=0),
        Sample(f32(2, 5, 3), np.array([[0, 4], [-5, 2]]), axis=1),
        Sample(f32(5), np.array(3, "i4"), axis=0),
        Sample(f32(5, 3), np.array([4, -5], "i1"), axis=0),
        Sample(f32(5, 3), np.array([7, 0]), axis=0, error="I320"),
        Sample(f32(5, 3), np.array([0, -6], "i4"), axis=0, error="I320"),
        Sample(f32(5, 3), np.array([4, 0]), axis=0, from_end=False),
        Sample(f32(5, 3), np.array([4, -1]), axis=0, from_end=False, error="I320"),
        Sample(f32(5, 3), f32(2), axis=0, error="T105"),
        Sample(f32(5, 3), i64(2), axis=2, error="T104"),
        Sample(f32(0, 3), i64(4, 0), axis=0),
        Sample(f32(0, 3), i64(2), axis=0, error="T110"),
    ),
)
def gather(x: Tensor, indices: Tensor, *, axis: int = 0, from_end: bool = True) -> Tensor:
    """Slices of `x` along `axis` by index: the axes of `indices` replace `axis`. Negative indices
    count from the end, or are out of range without `from_end`; an index out of range raises an
    error in the run.

    Errors: T104, T105, T110, I320. Source: ONNX Gather-13.
    """
    need_integer("gather", indices)
    n = axis_of("gather", axis, x.rank)
    last = n + indices.rank

    def body(*i: Scalar) -> Scalar:
        index = index_at("gather", indices, i[n:last], n, x.shape[n], from_end)
        return x[(*i[:n], index, *i[last:])]

    return te.compute((*x.shape[:n], *indices.shape, *x.shape[n + 1 :]), body, "gather")


@gather.reference
def _gather_reference(x: Array, indices: Array, *, axis: int, from_end: bool) -> Array:
    n = axis % x.ndim
    if from_end and indices.dtype.kind == "i":
        try:
            return np.take(x, indices, n)
        except IndexError:  # reported, or clamped, below
            pass
    return np.take(x, indices_in("gather", indices, n, x.shape[n], from_end), n)


@register_op(
    "gather_elements",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(3, 5), np.array([[0, 2, -1], [1, 1, 0]]), axis=0),
        Sample(f32(2, 5), np.array([[4, -5, 3], [1, 1, 0]], "i4"), axis=1),
        Sample(f32(2, 5), np.array([[4, -5, 5], [1, 1, 0]], "i4"), axis=1, error="I320"),
        Sample(f32(3, 5), i64(3), axis=0, error="T102"),
        Sample(f32(3, 5), i64(4, 5), axis=1, error="T108"),
        Sample(f32(3, 5), f32(3, 5), axis=0, error="T105"),
    ),
)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """For each element of `indices`, the element of `x` at the same position, with the coordinate
    on `axis` replaced by the index. Negative indices count from the end; an index out of range
    raises an error in the run.

    Errors: T102, T104, T105, T108, T110, I320. Source: ONNX GatherElements-13.
    """
    need_integer("gather_elements", indices)
    n = axis_of("gather_elements", axis, x.rank)
    if indices.rank != x.rank:
        raise GraphTypeError("T102", f"gather_elements: {indices.type} indexes {x.type}")
    for k, (size, most) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if k != n and exceeds(size, most):
            raise GraphTypeError(
                "T108", f"gather_elements: {indices.type} is larger than {x.type} in axis {k}"
            )

    def body(*i: Scalar) -> Scalar:
        at = index_at("gather_elements", indices, i, n, x.shape[n])
        return x[(*i[:n], at, *i[n + 1 :])]

    return te.compute(indices.shape, body, "gather_elements")


@gather_elements.reference
def _gather_elements_reference(x: Array, indices: Array, *, axis: int) -> Array:
    n = axis % x.ndim
    part = x[tuple(slice(None) if k == n else slice(s) for k, s in enumerate(indices.shape))]
    return np.take_along_axis(part, indices_in("gather_elements", indices, n, x.shape[n]), n)


@register_op(
    "gather_nd",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(3, 4, 5), np.array([[0, 1], [2, -1]])),
        Sample(f32(3, 4), np.array([[0, 1], [2, 3], [-3, -4]], "i4")),
        Sample(f32(3, 4), np.array([[0, 1], [2, 3], [2, 4]], "i4"), error="I320"),
        Sample(f32(2, 3, 4), np.array([[[1]], [[2]]]), batch_dims=1),
        Sample(f32(3, 4), i64(2, 3), error="T108"),
        Sample(f32(3, 4), i64(2, 1), batch_dims=1, error="T108"),
        Sample(f32(3, 4), i64(), error="T102"),
    ),
)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Slices of `x` by the index tuples in the last axis of `indices`, after `batch_dims` shared
    axes. Negative indices count from the end; an index out of range raises an error in the run.

    Errors: T102, T105, T108, T110, I320. Source: ONNX GatherND-13.
    """
    need_integer("gather_nd", indices)
    if indices.rank == 0 or not isinstance(indices.shape[-1], int):
        raise GraphTypeError("T102", f"gather_nd: {indices.type} does not hold index tuples")
    depth, outer = indices.shape[-1], indices.rank - 1
    shared = zip(x.shape[:batch_dims], indices.shape[:batch_dims], strict=False)
    if batch_dims > outer or batch_dims + depth > x.rank or any(differ(a, b) for a, b in shared):
        raise GraphTypeError(
            "T108", f"gather_nd: {indices.type} does not index {x.type}, batch_dims={batch_dims}"
        )

    def body(*i: Scalar) -> Scalar:
        picked = [
            index_at("gather_nd", indices, (*i[:outer], te.as_scalar(k)), n, x.shape[n])
            for k, n in enumerate(range(batch_dims, batch_dims + depth))
        ]
        return x[(*i[:batch_dims], *picked, *i[outer:])]

    return te.compute((*indices.shape[:-1], *x.shape[batch_dims + depth :]), body, "gather_nd")


@register_op(
    "one_hot",
    samples=(
        Sample(np.array([0, 2, -1, 5]), np.array([0.0, 1.0], "f4"), depth=4),
        Sample(np.array([[0, 2], [1, -3]]), np.array([2, 7], "i4"), depth=3, axis=0),
        Sample(i64(3), f32(3), depth=4, error="T108"),
        Sample(f32(3), f32(2), depth=4, error="T105"),
        Sample(i64(3), f32(2), depth=4, axis=2, error="T104"),
    ),
)
def one_hot(indices: Tensor, values: Tensor, *, depth: int, axis: int = -1) -> Tensor:
    """`values[1]` where the position on the new axis equals the index (negative: from the end),
    else `values[0]`. The new axis has size `depth`; an index out of its range gives only
    `values[0]`.

    Errors: T104, T105, T108. Source: ONNX OneHot-11 (with integer indices).
    """
    need_integer("one_hot", indices)
    if values.rank != 1 or differ(values.shape[0], 2):
        raise GraphTypeError("T108", f"one_hot: values are {values.type}, expected off and on")
    n = axis_of("one_hot", axis, indices.rank + 1)

    def body(*i: Scalar) -> Scalar:
        index, size = te.cast("i64", indices[(*i[:n], *i[n + 1 :])]), te.size(depth)
        hot = i[n].equal(te.select(index < 0, index + size, index))
        return te.select(hot, values[1], values[0])

    return te.compute((*indices.shape[:n], depth, *indices.shape[n:]), body, "one_hot")


@one_hot.dynamic
def _one_hot_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    indices, values = tensor_type("one_hot", types[0]), tensor_type("one_hot", types[1])
    n = axis_of("one_hot", attrs.axis, indices.rank + 1)
    return TensorType((*indices.shape[:n], unknown_dim(), *indices.shape[n:]), values.dtype)
