"""Tensors created from attributes and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir import symbolic
from clew.ir.dims import Dim, SymDim, dim_max, unknown_dim
from clew.ir.expr import Attrs
from clew.ir.types import DTYPES, TensorType, Type, is_float, to_numpy
from clew.ops.common import f32, held_length
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

# No machine can store a longer range.
_MOST: Final = 1 << 40


def _known_dtype(name: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise GraphTypeError(
            "T106", f"{name}: no dtype {dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}"
        )


@register_op(
    "full",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(shape=(2, 3), value=1.5, dtype="f32"),
        Sample(shape=(), value=2**62, dtype="i64"),
        Sample(shape=(0, 2), value=True, dtype="bool"),
        Sample(shape=(2,), value=1, dtype="int", error="T106"),
    ),
)
def full(*, shape: tuple[int, ...], value: int | float, dtype: str) -> Tensor:
    """A tensor with all elements equal to `value`. Source: ONNX ConstantOfShape-24."""
    _known_dtype("full", dtype)
    return te.compute(shape, lambda *i: te.as_scalar(value, dtype), "full")


@full.reference
def _full_reference(*, shape: tuple[int, ...], value: int | float, dtype: str) -> Array:
    return np.full(shape, value, to_numpy(dtype))


@full.dynamic
def _full_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    rank = held_length("full", types, attrs.shape)
    return TensorType(tuple(unknown_dim() for _ in range(rank)), attrs.dtype)


@register_op(
    "arange",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(start=0, stop=5, step=1, dtype="i64"),
        Sample(start=5, stop=-2, step=-2, dtype="i32"),
        Sample(start=0.5, stop=2.0, step=0.25, dtype="f32"),
        Sample(start=3, stop=1, step=1, dtype="i64"),
        Sample(start=0, stop=5, step=0, dtype="i64", error="T107"),
        Sample(start=0, stop=2**62, step=1, dtype="i64", error="T107"),
        Sample(start=0.0, stop=float("inf"), step=1.0, dtype="f32", error="T107"),
        Sample(start=0.0, stop=float("nan"), step=1.0, dtype="f32", error="T107"),
        Sample(start=0, stop=5, step=1, dtype="int", error="T106"),
    ),
)
def arange(
    *, start: int | float, stop: int | float, step: int | float = 1, dtype: str = "i64"
) -> Tensor:
    """`start + n * step`, excluding `stop`. Source: ONNX Range-11."""
    _known_dtype("arange", dtype)
    if step == 0:
        raise GraphTypeError("T107", "arange: step is 0")
    size = arange_size(start, stop, step)
    if isinstance(size, int) and size > _MOST:
        raise GraphTypeError("T107", f"arange: {size} numbers from {start} in steps of {step}")

    def value(i: Scalar) -> Scalar:
        if is_float(dtype):
            return te.cast(dtype, i) * float(step) + float(start)
        return te.cast(dtype, i * te.size(step) + te.size(start))  # type: ignore[arg-type]

    return te.compute((size,), value, "arange")


def arange_size(start: Any, stop: Any, step: Any) -> Dim:
    """Returns the number of values in a range."""
    if any(isinstance(v, SymDim) for v in (start, stop, step)):
        size: Dim = -((start - stop) // step)
        return dim_max(size, 0)
    if step == 0 or not all(math.isfinite(v) for v in (start, stop, step)):
        raise GraphTypeError("T107", f"arange: from {start} to {stop} in steps of {step}")
    whole = all(isinstance(v, int) for v in (start, stop, step))
    count = -((start - stop) // step) if whole else math.ceil((stop - start) / step)
    return max(0, int(count))


@arange.reference
def _arange_reference(*, start: Any, stop: Any, step: Any, dtype: str) -> Array:
    size = arange_size(start, stop, step)
    assert isinstance(size, int)
    return np.asarray(np.arange(size) * step + start).astype(to_numpy(dtype))


@register_op(
    "shape_of",
    traits=Traits(sizes="read", symbolic=symbolic.SHAPE, collects=True),
    samples=(Sample(f32(2, 3, 4)), Sample(f32()), Sample(f32(0, 1))),
)
def shape_of(x: Tensor) -> Tensor:
    """The sizes of the axes, `i64[rank]`. Source: ONNX Shape-24."""

    def body(n: Scalar) -> Scalar:
        value = te.as_scalar(0)
        for axis, size in reversed(list(enumerate(x.shape))):
            value = te.select(n.equal(axis), te.size(size), value)
        return value

    return te.compute((x.rank,), body, "shape_of")


@shape_of.reference
def _shape_of_reference(x: Array) -> Array:
    return np.array(x.shape, np.int64)


@arange.dynamic
def _arange_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return TensorType((unknown_dim(),), attrs.dtype)
