"""Reductions over axes.

Each takes `axes` (if empty, nothing is reduced) and `keepdims`. Sums of narrow floats are
accumulated in `f32`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir import symbolic
from clew.ir.dims import Dim, product
from clew.ir.expr import Attrs
from clew.ir.types import TensorType, Type, is_float
from clew.ops.common import (
    assume_at_least,
    axes_of,
    axis_of,
    boolean,
    f16,
    f32,
    f64,
    held_length,
    i32,
    i64,
    need_bool,
    need_float,
    need_number,
    tensor_type,
    unknown_tensor,
    widen,
)
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Index, unary

Array = np.ndarray[Any, Any]

_CASES = (
    Sample(f32(3, 5, 7), axes=(1,), keepdims=False),
    Sample(f32(3, 5, 7), axes=(0, 2), keepdims=True),
    Sample(f32(4, 3), axes=(-1,), keepdims=True),
    Sample(f32(4, 3), axes=(0, 1), keepdims=False),
    Sample(f32(4, 3), axes=()),
    Sample(f16(3, 33), axes=(1,)),
    Sample(f64(2, 3), axes=(0,)),
)
_WRONG = (
    Sample(f32(3, 4), axes=(2,), error="T104"),
    Sample(f32(3, 4), axes=(0, -2), error="T104"),
    Sample(boolean(3, 4), axes=(1,), error="T105"),
)
_FLOATS = (*_CASES, *_WRONG)
_NUMBERS = (*_CASES, Sample(i32(3, 5), axes=(1,)), Sample(i64(2, 3), axes=(0, 1)), *_WRONG)

Combine = Callable[[Scalar, Sequence[Index]], Scalar]


def reduced_shape(x: Tensor, axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """Returns the shape of `x` with axes dropped, or kept with size 1."""
    if keepdims:
        return tuple(1 if n in axes else d for n, d in enumerate(x.shape))
    return tuple(d for n, d in enumerate(x.shape) if n not in axes)


def reduce_over(
    x: Tensor,
    axes: Sequence[int],
    keepdims: bool,
    body: Callable[[Scalar, Sequence[Index], tuple[Scalar, ...]], Scalar],
    name: str,
) -> Tensor:
    """Returns the stage `body(element, reduction axes, its position)` over some axes of `x`."""
    over = {n: te.reduce_axis(x.shape[n], f"k{n}" if len(axes) > 1 else "k") for n in axes}

    def element(*indices: Scalar) -> Scalar:
        rest = iter(indices)
        place: list[Scalar] = []
        for n in range(x.rank):
            if keepdims or n not in over:
                place.append(next(rest))
                if n in over:
                    place[n] = over[n]
            else:
                place.append(over[n])
        return body(x[tuple(place)], list(over.values()), tuple(place))

    layout = x.layout if keepdims and _leaves_blocks(x, axes) else ""
    return te.compute(reduced_shape(x, axes, keepdims), element, name, layout=layout)


def _leaves_blocks(x: Tensor, axes: Sequence[int]) -> bool:
    """Whether a blocked tensor keeps its blocks in a reduction: the reduced axes are plain."""
    if not x.layout:
        return False
    layout = parse_layout(x.layout)
    return all(layout.axes[n].isupper() and layout.factor(layout.axes[n]) == 1 for n in axes)


def scaled(x: Tensor, body: Callable[[Scalar], Scalar], name: str) -> Tensor:
    """Returns the elementwise stage `body` of a tensor."""
    return te.compute(x.shape, lambda *i: body(x[i]), name, layout=x.layout)


def narrowed(x: Tensor, dtype: str, name: str) -> Tensor:
    """Returns `x` in `dtype`; `x` itself if it has that dtype."""
    return x if x.dtype == dtype else scaled(x, lambda v: te.cast(dtype, v), name)


def _reduction(
    name: str,
    x: Tensor,
    axes: Sequence[int],
    keepdims: bool,
    combine: Combine,
    value: Callable[[Scalar], Scalar] = lambda v: v,
) -> Tensor:
    found = axes_of(name, axes, x.rank)
    return reduce_over(x, found, keepdims, lambda v, over, _: combine(value(v), over), name)


@register_op(
    "sum",
    traits=Traits(
        symbolic=symbolic.SUM, sizes="computed from integers", never_negative="as operands"
    ),
    samples=_NUMBERS,
)
def sum_(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Sum. Source: ONNX ReduceSum-13."""
    need_number("sum", x)
    total = _reduction("sum", x, axes, keepdims, te.sum, widen)
    return narrowed(total, x.dtype, "sum_cast")


@register_op(
    "prod", traits=Traits(symbolic=symbolic.PROD, sizes="computed from integers"), samples=_NUMBERS
)
def prod(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Product. Source: ONNX ReduceProd-18."""
    need_number("prod", x)
    total = _reduction("prod", x, axes, keepdims, te.prod, widen)
    return narrowed(total, x.dtype, "prod_cast")


@register_op("max", traits=Traits(sizes="computed from integers"), samples=_NUMBERS)
def max_(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Maximum. Source: ONNX ReduceMax-20."""
    need_number("max", x)
    return _reduction("max", x, axes, keepdims, te.max)


@register_op("min", traits=Traits(sizes="computed from integers"), samples=_NUMBERS)
def min_(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Minimum. Source: ONNX ReduceMin-20."""
    need_number("min", x)
    return _reduction("min", x, axes, keepdims, te.min)


@register_op(
    "extremes",
    traits=Traits(selects=True),
    samples=(
        Sample(f32(3, 5, 7), axis=1),
        Sample(f32(2, 2, 64), axis=2),
        Sample(f32(4, 33), axis=0),
        Sample(i64(3, 5), axis=1),
        Sample(f16(6, 3), axis=1),
        Sample(f32(3, 4), axis=2, error="T104"),
        Sample(boolean(3, 4), axis=1, error="T105"),
    ),
)
def extremes(x: Tensor, *, axis: int) -> Tensor:
    """Minimum and maximum of each row, which `axis` and the axes after it form, as a last axis of
    two. The second one reads the row while it is in the cache.
    """
    need_number("extremes", x)
    first = axis_of("extremes", axis, x.rank)
    lead = x.shape[:first]

    def stage(name: str, combine: Combine) -> Tensor:
        def element(*row: Scalar) -> Scalar:
            over = [te.reduce_axis(d, f"k{n}") for n, d in enumerate(x.shape[first:])]
            return combine(x[(*row, *over)], over)

        return te.compute(lead, element, name)

    least, most = stage("least", te.min), stage("most", te.max)

    def either(*place: Scalar) -> Scalar:
        *row, which = place
        return te.select(which < 1, least[tuple(row)], most[tuple(row)])

    return te.compute((*lead, 2), either, "extremes")


def mean_stages(name: str, x: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """Returns the mean over axes, in the accumulator dtype: a sum stage, then a scale stage."""
    total = _reduction(f"{name}_sum", x, axes, keepdims, te.sum, widen)
    count = product(tuple(x.shape[n] for n in axes_of(name, axes, x.rank)))
    return scaled(total, lambda v: v / te.cast(v.dtype, te.size(count)), name)


@register_op("mean", traits=Traits(averages=True, never_negative="as operands"), samples=_NUMBERS)
def mean(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Arithmetic mean. For integers it is truncated; of no numbers it is NaN, as in NumPy (ONNX
    Runtime gives 0). Source: ONNX ReduceMean-18.
    """
    need_number("mean", x)
    return narrowed(mean_stages("mean", x, axes, keepdims), x.dtype, "mean_cast")


_TRUTHS = (
    Sample(boolean(3, 5), axes=(1,), keepdims=False),
    Sample(boolean(3, 5), axes=(0, 1), keepdims=True),
    Sample(f32(3), axes=(0,), error="T105"),
)


@register_op("all", traits=Traits(sizes="computed from integers"), samples=_TRUTHS)
def all_(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Whether all booleans hold."""
    need_bool("all", x)
    return _reduction("all", x, axes, keepdims, lambda v, over: te.reduce("and", v, over))


@register_op("any", traits=Traits(sizes="computed from integers"), samples=_TRUTHS)
def any_(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Whether any boolean holds."""
    need_bool("any", x)
    return _reduction("any", x, axes, keepdims, lambda v, over: te.reduce("or", v, over))


@register_op("l1", traits=Traits(never_negative="always"), samples=_NUMBERS)
def l1(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Sum of absolute values. Source: ONNX ReduceL1-18."""
    need_number("l1", x)
    total = _reduction("l1", x, axes, keepdims, te.sum, lambda v: _absolute(widen(v)))
    return narrowed(total, x.dtype, "l1_cast")


def _absolute(value: Scalar) -> Scalar:
    return value if value.dtype[0] == "u" else unary("abs", value)


def _square(value: Scalar) -> Scalar:
    wide = widen(value)
    return wide * wide


@register_op("sum_square", traits=Traits(never_negative="always"), samples=_NUMBERS)
def sum_square(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Sum of squares. Source: ONNX ReduceSumSquare-18."""
    need_number("sum_square", x)
    total = _reduction("sum_square", x, axes, keepdims, te.sum, _square)
    return narrowed(total, x.dtype, "sum_square_cast")


@register_op("l2", traits=Traits(never_negative="always"), samples=_FLOATS)
def l2(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Square root of the sum of squares. Source: ONNX ReduceL2-18."""
    need_float("l2", x)
    total = _reduction("l2_sum", x, axes, keepdims, te.sum, _square)
    return scaled(total, lambda v: te.cast(x.dtype, te.call("sqrt", v)), "l2")


@register_op("log_sum", samples=[Sample(f32(3, 5, 7), axes=(1,), low=0.1), *_WRONG])
def log_sum(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Logarithm of the sum. Source: ONNX ReduceLogSum-18."""
    need_float("log_sum", x)
    total = _reduction("log_sum_sum", x, axes, keepdims, te.sum, widen)
    return scaled(total, lambda v: te.cast(x.dtype, te.call("log", v)), "log_sum")


@register_op("logsumexp", samples=(*_FLOATS, Sample(np.full((2, 3), -np.inf, "f4"), axes=(1,))))
def logsumexp(x: Tensor, *, axes: tuple[int, ...], keepdims: bool = True) -> Tensor:
    """Logarithm of the sum of exponentials, without overflow. Source: ONNX ReduceLogSumExp-18."""
    need_float("logsumexp", x)
    found = axes_of("logsumexp", axes, x.rank)
    top = _reduction("logsumexp_max", x, found, True, te.max, widen)
    # A row of infinities has no finite maximum to subtract.
    peak = scaled(top, lambda v: te.select(te.call("isinf", v), 0.0, v), "logsumexp_peak")

    def kept(place: Sequence[Scalar]) -> tuple[Any, ...]:
        return tuple(0 if n in found else p for n, p in enumerate(place))

    total = reduce_over(
        x,
        found,
        True,
        lambda v, over, place: te.sum(te.call("exp", widen(v) - peak[kept(place)]), over),
        "logsumexp_sum",
    )

    def body(*i: Scalar) -> Scalar:
        rest = iter(i)
        place = [
            te.as_scalar(0) if n in found and not keepdims else next(rest) for n in range(x.rank)
        ]
        return te.cast(x.dtype, te.call("log", total[tuple(place)]) + peak[tuple(place)])

    return te.compute(reduced_shape(x, found, keepdims), body, "logsumexp")


def _position(
    name: str, x: Tensor, axis: int, keepdims: bool, select_last: bool, combine: Any
) -> Tensor:
    """Returns the position of the extreme element along an axis, from two stages: its value, then
    its first (last) position.
    """
    need_number(name, x)
    n = axis_of(name, axis, x.rank)
    _need_elements(name, n, x.shape)
    best = reduce_over(x, (n,), True, lambda v, over, _: combine(v, over), f"{name}_value")
    choose, missing = (
        (te.max, te.as_scalar(0)) if select_last else (te.min, te.size(x.shape[n] - 1))
    )

    def place_of(v: Scalar, over: Sequence[Index], place: tuple[Scalar, ...]) -> Scalar:
        kept = (*place[:n], te.as_scalar(0), *place[n + 1 :])
        found = v.equal(best[kept])
        if is_float(x.dtype):  # the extreme of a row with a NaN is NaN
            found = found | te.call("isnan", v)
        return choose(te.select(found, place[n], missing), over)

    return reduce_over(x, (n,), keepdims, place_of, name)


def _need_elements(name: str, axis: int, shape: Sequence[Dim]) -> None:
    """Checks that each row of the result has an element to find; a row whose length is free has.

    Errors: T170.
    """
    rest = [d for n, d in enumerate(shape) if n != axis]
    if shape[axis] == 0 and all(isinstance(d, int) and d for d in rest):
        raise GraphTypeError(
            "T170",
            f"{name}: axis {axis} of [{', '.join(map(str, shape))}] has no elements, so "
            "there is no index to return",
            hint="give it at least one element along the axis",
        )
    if shape[axis] != 0:
        assume_at_least(shape[axis], 1)


_PLACES = (
    Sample(f32(3, 5), axis=1, keepdims=False),
    Sample(f32(2, 3, 4), axis=-2),
    Sample(i32(4, 9), axis=1, low=0, high=3),
    Sample(i32(4, 9), axis=1, select_last=True, low=0, high=3),
    Sample(np.array([[1, np.nan, 3, np.nan], [np.inf, -np.inf, 0, 0]], "f4"), axis=1),
    Sample(f32(0, 3), axis=1),
    Sample(f32(3, 0), axis=1, error="T170"),
    Sample(f32(3), axis=1, error="T104"),
)


@register_op("argmax", samples=_PLACES)
def argmax(x: Tensor, *, axis: int, keepdims: bool = True, select_last: bool = False) -> Tensor:
    """Index of the largest element along `axis`, `i64`; of equal elements or NaNs, the first.

    Errors: T104, T105, T170 for an axis without elements. Source: ONNX ArgMax-13.
    """
    return _position("argmax", x, axis, keepdims, select_last, te.max)


@register_op("argmin", samples=_PLACES)
def argmin(x: Tensor, *, axis: int, keepdims: bool = True, select_last: bool = False) -> Tensor:
    """Index of the smallest element along `axis`, `i64`; of equal elements or NaNs, the first.

    Errors: T104, T105, T170 for an axis without elements. Source: ONNX ArgMin-13.
    """
    return _position("argmin", x, axis, keepdims, select_last, te.min)


@argmax.reference
def _argmax_reference(x: Array, *, axis: int, keepdims: bool, select_last: bool) -> Array:
    return _place("argmax", x, axis, keepdims, select_last)


@argmin.reference
def _argmin_reference(x: Array, *, axis: int, keepdims: bool, select_last: bool) -> Array:
    return _place("argmin", x, axis, keepdims, select_last)


def _place(name: str, x: Array, axis: int, keepdims: bool, select_last: bool) -> Array:
    _need_elements(name, axis % x.ndim, x.shape)
    find = getattr(np, name)
    if select_last:
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis, keepdims=True)
    else:
        found = find(x, axis, keepdims=True)
    return np.asarray(found if keepdims else np.squeeze(found, axis), np.int64)


def _reduction_type(types: Sequence[Type], attrs: Attrs) -> Type:
    """Returns the type of a reduction over axes known only at run time: each size may become 1.

    Errors: U102 if the number of dropped axes is unknown as well.
    """
    source = tensor_type("reduction", types[0])
    dropped = 0 if attrs.keepdims else held_length("reduction", types, attrs.axes)
    return unknown_tensor("reduction", source, source.rank - dropped)


for _op in (sum_, prod, max_, min_, mean, all_, any_, l1, l2, sum_square, log_sum, logsumexp):
    _op.dynamic(_reduction_type)


def _reduction_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Allows blocks if whole images are reduced and their axes are kept, as in global pooling."""
    source, block = types[0], parse_layout(layout).factor("C")
    if source.rank != 4 or not attrs.keepdims:
        return None
    axes = axes_of("reduction", attrs.axes, source.rank)
    channels = source.shape[1]
    if 1 in axes or not isinstance(channels, int) or channels % block:
        return None
    return (layout,), attrs.with_(axes=axes), layout


for _op in (sum_, prod, max_, min_, mean):
    _op.layout(_reduction_layout)
