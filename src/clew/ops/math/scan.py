"""Running sums, products and extremes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.cost.policy.ordering import SHORT_SCAN
from clew.ir.expr import Attrs
from clew.ir.types import Type
from clew.ops.common import (
    axis_of,
    boolean,
    f32,
    f64,
    i32,
    i64,
    need_number,
    widen,
)
from clew.ops.math.reduce import narrowed
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.te import Scalar, Tensor
from clew.te.expr import Index
from clew.te.interpret import identity_of

Array = np.ndarray[Any, Any]
_SCANS = (
    Sample(f32(3, 5), axis=1),
    Sample(i64(3, 5), axis=0, exclusive=True),
    Sample(f32(3, 5), axis=-1, reverse=True),
    Sample(i32(2, 131), axis=1, exclusive=True, reverse=True, low=-9, high=9),
    Sample(i64(131, 2), axis=0, low=-9, high=9),
    Sample(f32(3, 5), axis=2, error="T104"),
    Sample(boolean(3), axis=0, error="T105"),
)


def _scanned(
    name: str, x: Tensor, axis: int, exclusive: bool, reverse: bool, combiner: str
) -> Tensor:
    """Returns the combination of all elements up to each position along an axis.

    Along a short axis, each result is a separate reduction, which fuses with other operators.

    Errors: T104, T105.
    """
    need_number(name, x)
    n = axis_of(name, axis, x.rank)
    size = x.shape[n]
    if isinstance(size, int) and size <= SHORT_SCAN:
        made = _in_parallel(name, x, n, size, exclusive, reverse, combiner)
    else:

        def element(*i: Index) -> Scalar:
            value = widen(x[i])
            return te.scan(combiner, value, i[n], exclusive=exclusive, reverse=reverse)

        made = te.compute(x.shape, element, name)
    return narrowed(made, x.dtype, f"{name}_cast")


def _in_parallel(
    name: str, x: Tensor, n: int, size: int, exclusive: bool, reverse: bool, combiner: str
) -> Tensor:
    over = te.reduce_axis(size, "k")

    def body(*i: Scalar) -> Scalar:
        place = te.size(size - 1) - over if reverse else over
        here = te.size(size - 1) - i[n] if reverse else i[n]
        counts = over < here if exclusive else over <= here
        value = widen(x[(*i[:n], place, *i[n + 1 :])])
        neutral = te.as_scalar(identity_of(combiner, value.dtype), value.dtype)
        return te.reduce(combiner, te.select(counts, value, neutral), over)

    return te.compute(x.shape, body, name)


def _scanned_reference(function: Any, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    y = np.flip(x, axis) if reverse else x
    if exclusive:
        size = y.shape[axis]
        first = np.take(y, range(min(1, size)), axis)
        neutral = np.full_like(first, int(function is np.cumprod))
        y = np.concatenate([neutral, np.take(y, range(size - 1), axis)], axis)
    total = function(y, axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else np.asarray(total)


@register_op("cumsum", traits=Traits(sizes="computed from integers"), samples=_SCANS)
def cumsum(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Sums of the elements up to each position (excluding it with `exclusive`; from the end with
    `reverse`).

    Errors: T104, T105. Source: ONNX CumSum-14.
    """
    return _scanned("cumsum", x, axis, exclusive, reverse, "sum")


@cumsum.reference
def _cumsum_reference(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    return _scanned_reference(np.cumsum, x, axis, exclusive, reverse)


@cumsum.dynamic
def _cumsum_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return types[0]


@register_op("cumprod", traits=Traits(sizes="computed from integers"), samples=_SCANS)
def cumprod(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Products of the elements up to each position, with the attributes of `cumsum`.

    Errors: T104, T105. Source: ONNX CumProd-26.
    """
    return _scanned("cumprod", x, axis, exclusive, reverse, "prod")


@cumprod.reference
def _cumprod_reference(x: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    return _scanned_reference(np.cumprod, x, axis, exclusive, reverse)


@cumprod.dynamic
def _cumprod_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return types[0]


_EXTREMES = (
    Sample(f32(3, 5), axis=1),
    Sample(i64(131, 2), axis=0, low=-9, high=9),
    Sample(i32(2, 7), axis=-1, low=-9, high=9),
    Sample(f64(80), axis=0),
    Sample(f32(3, 5), axis=2, error="T104"),
    Sample(boolean(3), axis=0, error="T105"),
)


@register_op("cummax", samples=_EXTREMES)
def cummax(x: Tensor, *, axis: int) -> Tensor:
    """The largest element up to each position; NaN from the first NaN on.

    Errors: T104, T105. Source: `torch.cummax`.
    """
    return _scanned("cummax", x, axis, False, False, "max")


@cummax.reference
def _cummax_reference(x: Array, *, axis: int) -> Array:
    return np.asarray(np.maximum.accumulate(x, axis))


@register_op("cummin", samples=_EXTREMES)
def cummin(x: Tensor, *, axis: int) -> Tensor:
    """The smallest element up to each position; NaN from the first NaN on.

    Errors: T104, T105. Source: `torch.cummin`.
    """
    return _scanned("cummin", x, axis, False, False, "min")


@cummin.reference
def _cummin_reference(x: Array, *, axis: int) -> Array:
    return np.asarray(np.minimum.accumulate(x, axis))
