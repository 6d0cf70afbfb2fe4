"""Quantization: integers that stand for numbers, `scale * (integer - zero_point)`.

Scales and zero points broadcast to the tensor: one number for all of it, or `[C, 1, 1]` for one per
channel of an image. With `block`, each element of a parameter with axes covers `block` elements of
the tensor along `axis`; along the other axes, the parameter broadcasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.expr import Attrs, Constant, Expr
from clew.ir.types import (
    NARROW_FLOATS,
    STORAGE,
    TensorType,
    bits,
    integer_limits,
    is_float,
    is_integer,
)
from clew.ops.common import (
    at,
    axis_of,
    broadcast_place,
    broadcast_shapes,
    differ,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    u8,
)
from clew.ops.registry import Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.analysis import Kind

Array: TypeAlias = "np.ndarray[Any, Any]"

QUANTIZED: Final = ("i8", "u8", "i16", "u16", *(d for d in STORAGE if d != "f8e8m0fnu"))
"""The dtypes of quantized tensors."""
SUM: Final = "i32"
"""The dtype of sums of products of quantized tensors."""
LARGEST: Final = {
    "f8e4m3fn": 448.0,
    "f8e4m3fnuz": 240.0,
    "f8e5m2": 57344.0,
    "f8e5m2fnuz": 57344.0,
}
"""The largest finite numbers of float types that also have an infinity or NaN."""
_SCALES: Final = (*NARROW_FLOATS, "f32", "f64", *STORAGE)


class _Parameters:
    """The scale and the zero point of a tensor.

    Errors: T100 for shapes that do not fit the tensor, T101 for the dtype of a zero point, T142 for
    that of a scale, T013 for more than one zero point.
    """

    def __init__(
        self, name: str, x: Tensor, scale: Tensor, zero: Sequence[Tensor], axis: int, block: int
    ) -> None:
        self._name, self._shape = name, x.shape
        self._axis, self._block = axis, block
        if len(zero) > 1:
            raise GraphTypeError("T013", f"{name}: takes one zero point, got {len(zero)}")
        if block < 0:
            raise GraphTypeError("T107", f"{name}: a block of {block} elements")
        if block:
            self._axis = axis_of(name, axis, x.rank)
        for parameter in (scale, *zero):
            self._check(parameter)
        self.scale = scale
        self.zero = zero[0] if zero else None

    def _check(self, parameter: Tensor) -> None:
        if self._blocks(parameter):
            fits = parameter.rank == len(self._shape)
            for n, (size, count) in enumerate(zip(self._shape, parameter.shape, strict=False)):
                if n != self._axis:
                    fits = fits and (count == 1 or not differ(size, count))
                else:
                    fits = fits and not differ(-(-size // self._block), count)
        else:
            joint = broadcast_shapes(self._name, self._shape, parameter.shape)
            fits = len(joint) == len(self._shape) and not any(map(differ, joint, self._shape))
        if not fits:
            along = f" in blocks of {self._block} along axis {self._axis}" if self._block else ""
            raise GraphTypeError(
                "T100",
                f"{self._name}: parameter {parameter.type} does not fit {list(self._shape)}{along}",
            )

    def _blocks(self, parameter: Tensor) -> bool:
        return bool(self._block and parameter.rank)

    def at(self, parameter: Tensor, indices: Sequence[Scalar]) -> Scalar:
        """Returns the element of a parameter for an element of the tensor."""
        if not self._blocks(parameter):
            return at(parameter, self._shape, indices)
        shape: list[Dim] = list(parameter.shape)
        shape[self._axis] = self._shape[self._axis]  # so that a single block does not broadcast
        place = list(broadcast_place(shape, self._shape, indices))
        place[self._axis] = place[self._axis] // self._block
        return parameter[tuple(place)]


def _wide(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def _need_scale(name: str, scale: Tensor, dtypes: Sequence[str] = _SCALES) -> None:
    if scale.dtype not in dtypes:
        raise GraphTypeError(
            "T142",
            f"{name}: a scale of {scale.dtype}",
            hint=f"scales are {', '.join(dtypes[:4])}",
        )


def _need_quantized(name: str, dtype: str) -> None:
    if dtype not in QUANTIZED:
        raise GraphTypeError(
            "T106", f"{name}: cannot quantize to {dtype}", hint=f"use {', '.join(QUANTIZED)}"
        )


def _need_point(name: str, zero: Tensor | None, dtype: str) -> None:
    if zero is not None and zero.dtype != dtype:
        raise GraphTypeError("T101", f"{name}: a zero point of {zero.dtype} for {dtype}")


def _saturated(value: Scalar, zero: Scalar | None, dtype: str) -> Scalar:
    """Returns floats, rounded to even, plus a zero point, clamped to the range of the dtype. NaN
    becomes the lowest integer: the upper bound is applied in floats, the lower one in `i32`, where
    NaN is lowest. No sum overflows, because both are applied before the zero point is added.
    """
    low, high = (te.as_scalar(bound, SUM) for bound in integer_limits(dtype))
    point = None if zero is None else te.cast(SUM, zero)
    if point is not None:
        low, high = low - point, high - point
    bounded = te.minimum(value, te.cast(value.dtype, high))
    whole = te.maximum(te.cast(SUM, te.call("round", bounded)), low)
    return te.cast(dtype, whole if point is None else whole + point)


@register_op(
    "dequantize",
    traits=Traits(keeps_finite=True, well_conditioned=True, parameters=(1, 2)),
    samples=(
        Sample(u8(3, 5), f32(), u8(), low=0, high=9),
        Sample(i8(2, 3, 4), f32(3, 1), low=-9, high=9),
        Sample(u8(2, 3, 4), f32(3, 1), u8(3, 1), low=0, high=9),
        Sample(i8(2, 7), f32(2, 3), i8(2, 3), axis=1, block=3, low=-9, high=9),
        Sample(i32(3, 5), f16(5), low=-99, high=99),
        Sample(i8(4), f32(), dtype="f64", low=-9, high=9),
        Sample(u8(3), f32(2), error="T100", low=0, high=9),
        Sample(u8(3), f32(), i8(), error="T101", low=0, high=9),
        Sample(u8(3), i32(), error="T142", low=0, high=9),
        Sample(f32(3), f32(), error="T105"),
    ),
)
def dequantize(
    x: Tensor, scale: Tensor, *zero: Tensor, axis: int = 0, block: int = 0, dtype: str = ""
) -> Tensor:
    """`(x - zero) * scale`, in `dtype` (default: that of the scale).

    The difference of integers of up to 16 bits is exact. It is multiplied in `f32`, even if the
    result is narrower. Source: ONNX DequantizeLinear-25.
    """
    name = "dequantize"
    if not is_integer(x.dtype) and x.dtype not in STORAGE:
        raise GraphTypeError("T105", f"{name}: {x.dtype} is not a dtype of quantized tensors")
    _need_scale(name, scale)
    dtype = dtype or scale.dtype
    if not is_float(dtype) or dtype in STORAGE:
        raise GraphTypeError("T106", f"{name}: a result of {dtype}", hint="set dtype to f32")
    given = _Parameters(name, x, scale, zero, axis, block)
    _need_point(name, given.zero, x.dtype)
    wide = _wide(scale.dtype)
    exact = is_integer(x.dtype) and bits(x.dtype) <= 16

    def body(*i: Scalar) -> Scalar:
        value = te.cast(SUM if exact else wide, x[i])
        if given.zero is not None:
            value = value - te.cast(value.dtype, given.at(given.zero, i))
        return te.cast(dtype, te.cast(wide, value) * te.cast(wide, given.at(scale, i)))

    return te.compute(x.shape, body, name, layout=x.layout)


@register_op(
    "dequantize_offset",
    traits=Traits(keeps_finite=True, well_conditioned=True, parameters=(1, 2)),
    samples=(
        Sample(u8(2, 7), f32(2, 3), f32(2, 3), axis=1, block=3, low=0, high=9),
        Sample(i8(2, 3, 4), f32(3, 1), f32(3, 1), low=-9, high=9),
        Sample(u8(4, 6), f16(4, 2), f32(4, 2), axis=1, block=3, dtype="f32", low=0, high=9),
        Sample(u8(3), f32(2), f32(), error="T100", low=0, high=9),
        Sample(u8(3), f32(), i8(), error="T142", low=0, high=9),
        Sample(f32(3), f32(), f32(), error="T105"),
    ),
)
def dequantize_offset(
    x: Tensor, scale: Tensor, offset: Tensor, *, axis: int = 0, block: int = 0, dtype: str = ""
) -> Tensor:
    """`x * scale + offset`, in `dtype` (default: that of the scale). Both are rounded to `f32`.

    Source: ggml, `ggml-quants.c` (Q4_1, Q4_K and their kin).
    """
    name = "dequantize_offset"
    if not is_integer(x.dtype) and x.dtype not in STORAGE:
        raise GraphTypeError("T105", f"{name}: {x.dtype} is not a dtype of quantized tensors")
    for parameter in (scale, offset):
        _need_scale(name, parameter)
    dtype = dtype or scale.dtype
    if not is_float(dtype) or dtype in STORAGE:
        raise GraphTypeError("T106", f"{name}: a result of {dtype}", hint="set dtype to f32")
    given = _Parameters(name, x, scale, (offset,), axis, block)
    wide = _wide(scale.dtype)

    def body(*i: Scalar) -> Scalar:
        value = te.cast(wide, x[i]) * te.cast(wide, given.at(scale, i))
        return te.cast(dtype, value + te.cast(wide, given.at(offset, i)))

    return te.compute(x.shape, body, name, layout=x.layout)


@register_op(
    "quantize",
    traits=Traits(keeps_finite=True, parameters=(1, 2)),
    samples=(
        Sample(f32(3, 5), np.float32(0.01), u8(), low=0, high=9),
        Sample(f32(3, 5), np.float32(0.01), dtype="i8"),
        Sample(f32(2, 3, 4), np.array([[0.5], [0.1], [0.02]], "f4"), u8(3, 1), low=0, high=9),
        Sample(f32(2, 7), np.full((2, 3), 0.1, "f4"), axis=1, block=3, dtype="i8"),
        Sample(f16(9), np.float16(0.03), dtype="i16"),
        Sample(f32(4, 4), np.float32(0.01), dtype="u16"),
        Sample(f64(4, 4), np.float64(0.01), dtype="u8"),
        Sample(i32(9), np.float32(3), dtype="i8", low=-999, high=999),
        Sample(f32(3), f32(2), error="T100"),
        Sample(f32(3), f32(), u8(), dtype="i8", error="T101"),
        Sample(f32(3), f32(), dtype="i64", error="T106"),
        Sample(f32(3), i32(), error="T142"),
    ),
)
def quantize(
    x: Tensor,
    scale: Tensor,
    *zero: Tensor,
    axis: int = 0,
    block: int = 0,
    dtype: str = "u8",
    precision: str = "",
    saturate: bool = True,
) -> Tensor:
    """`saturate(round(x / scale) + zero)`, ties to even; NaN becomes the lowest integer.

    The quotient has the dtype `precision` (default: that of the scale, `f32` for a dtype without
    arithmetic); the zero point is added in at least `f32`. For float results nothing is rounded
    before the end, and `saturate` says whether numbers that are too large become the largest one.
    Source: ONNX QuantizeLinear-25.
    """
    name = "quantize"
    _need_quantized(name, dtype)
    _need_scale(name, scale)
    precision = precision or ("f32" if scale.dtype in STORAGE else scale.dtype)
    if not is_float(precision) or precision in STORAGE:
        raise GraphTypeError("T106", f"{name}: cannot divide in {precision}")
    given = _Parameters(name, x, scale, zero, axis, block)
    _need_point(name, given.zero, dtype)
    wide = _wide(precision)

    def body(*i: Scalar) -> Scalar:
        quotient = te.cast(precision, x[i]) / te.cast(precision, given.at(scale, i))
        point = None if given.zero is None else given.at(given.zero, i)
        if is_integer(dtype):
            return _saturated(te.cast(wide, quotient), point, dtype)
        if point is not None:
            quotient = te.cast(wide, quotient) + te.cast(wide, point)
        limit = LARGEST.get(dtype) if saturate else None
        if limit is not None:
            quotient = te.minimum(te.maximum(te.cast(wide, quotient), -limit), limit)
        return te.cast(dtype, quotient)

    return te.compute(x.shape, body, name, layout=x.layout)


@register_op(
    "requantize",
    traits=Traits(keeps_finite=True, parameters=(1, 2)),
    samples=(
        Sample(i32(3, 5), np.float32(0.3), u8(), low=0, high=99),
        Sample(
            i32(2, 3, 4), np.array([[0.5], [0.1], [0.02]], "f4"), dtype="i8", low=-999, high=999
        ),
        Sample(i32(3, 5), np.float32(0.3), i8(5), dtype="i8", low=-99, high=99),
        Sample(i32(3), f32(2), error="T100"),
        Sample(i32(3), f16(), error="T142"),
        Sample(i32(3), f32(), dtype="i32", error="T106"),
        Sample(f32(3, 5), np.float32(30), u8(), low=0, high=9),
        Sample(i64(3), f32(), error="T105"),
    ),
)
def requantize(x: Tensor, scale: Tensor, *zero: Tensor, dtype: str = "u8") -> Tensor:
    """`saturate(round(x * scale) + zero)`, ties to even.

    For sums of integer products, `scale` is the product of the operands' scales divided by the
    result's. For floats, it is the reciprocal of the result's. Source: ONNX QLinearConv-10.
    """
    name = "requantize"
    if x.dtype not in (SUM, "f32"):
        raise GraphTypeError("T105", f"{name}: takes {SUM} or f32, got {x.dtype}")
    _need_quantized(name, dtype)
    if not is_integer(dtype):
        raise GraphTypeError("T106", f"{name}: a result of {dtype}", hint="use i8 or u8")
    _need_scale(name, scale, ("f32",))
    given = _Parameters(name, x, scale, zero, 0, 0)
    _need_point(name, given.zero, dtype)

    def body(*i: Scalar) -> Scalar:
        point = None if given.zero is None else given.at(given.zero, i)
        return _saturated(te.cast("f32", x[i]) * given.at(scale, i), point, dtype)

    return te.compute(x.shape, body, name, layout=x.layout)


@register_op(
    "fake_quantize",
    traits=Traits(keeps_finite=True, parameters=(1, 2, 3)),
    samples=(
        Sample(f32(3, 5), np.float32(30), f32(), u8(), low=0, high=9),
        Sample(i32(3, 5), np.float32(0.3), f32(5), dtype="i8", low=-999, high=999),
        Sample(i32(2, 3), np.array([0.3, 2, 9], "f4"), f32(), i8(3), dtype="i8", low=-99, high=99),
        Sample(f32(3), f32(), f32(2), error="T100"),
        Sample(f32(3), f32(), f16(), error="T142"),
        Sample(f32(3), f32(), f32(), dtype="f8e5m2", error="T106"),
        Sample(f16(3), f32(), f32(), error="T105"),
    ),
)
def fake_quantize(
    x: Tensor, scale: Tensor, step: Tensor, *zero: Tensor, dtype: str = "u8"
) -> Tensor:
    """`dequantize(requantize(x, scale, zero), step, zero)`: numbers on the grid of a quantized
    tensor, in f32. NaN becomes the lowest number of the grid.
    """
    name = "fake_quantize"
    if x.dtype not in (SUM, "f32"):
        raise GraphTypeError("T105", f"{name}: takes {SUM} or f32, got {x.dtype}")
    _need_quantized(name, dtype)
    if not is_integer(dtype):
        raise GraphTypeError("T106", f"{name}: a grid of {dtype}", hint="use i8 or u8")
    for parameter in (scale, step):
        _need_scale(name, parameter, ("f32",))
    given = _Parameters(name, x, scale, zero, 0, 0)
    _Parameters(name, x, step, (), 0, 0)
    _need_point(name, given.zero, dtype)

    def body(*i: Scalar) -> Scalar:
        low, high = (te.as_scalar(float(bound), "f32") for bound in integer_limits(dtype))
        if given.zero is not None:
            point = te.cast("f32", given.at(given.zero, i))
            low, high = low - point, high - point
        whole = te.call("round", te.cast("f32", x[i]) * given.at(scale, i))
        whole = te.select(whole >= low, te.minimum(whole, high), low)
        return whole * given.at(step, i)

    return te.compute(x.shape, body, name, layout=x.layout)


@register_op(
    "apply_table",
    kind=Kind.ELEMENTWISE,  # a table stays in the L1 cache
    traits=Traits(keeps_finite=True, parameters=(1,)),
    samples=(
        Sample(u8(3, 5), u8(256), low=0, high=255),
        Sample(i8(70), i8(256), low=-128, high=127),
        Sample(i8(2, 3, 40), u8(256), low=-128, high=127),
        Sample(u8(33), f32(256), low=0, high=255),
        Sample(u8(3), u8(255), low=0, high=9, error="T100"),
        Sample(i32(3), u8(256), low=0, high=9, error="T105"),
    ),
)
def apply_table(x: Tensor, table: Tensor) -> Tensor:
    """`table[x]` for 8-bit integers, whose bits as an unsigned number are the index."""
    if x.dtype not in ("i8", "u8"):
        raise GraphTypeError("T105", f"apply_table: takes i8 or u8, got {x.dtype}")
    if table.rank != 1 or differ(table.shape[0], 256):
        raise GraphTypeError("T100", f"apply_table: a table of {table.type}, expected 256 elements")

    def body(*i: Scalar) -> Scalar:
        return table[te.cast("i64", te.Bitcast("u8", x[i]) if x.dtype == "i8" else x[i])]

    return te.compute(x.shape, body, "apply_table", layout=x.layout)


@apply_table.reference
def _(x: Array, table: Array) -> Array:
    found: Array = table[x.view(np.uint8)]
    return found


@apply_table.layout
def _(attrs: Attrs, types: Sequence[TensorType], layout: str) -> tuple[tuple[str, str], Attrs, str]:
    return (layout, "NCHW"), attrs, layout


def quantized_in_own_range(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Returns an f32 tensor as u8 with the scale and zero point of its range, which contains 0.

    Source: ONNX DynamicQuantizeLinear-11; an empty range has the scale 1, as in ONNX Runtime.
    """
    axes, none = tuple(range(x.tensor.rank)), Constant(np.float32(0))
    low = get_op("minimum")(get_op("min")(x, axes=axes, keepdims=False), none)
    high = get_op("maximum")(get_op("max")(x, axes=axes, keepdims=False), none)
    width = get_op("subtract")(high, low)
    step = get_op("divide")(width, Constant(np.float32(255)))
    scale = get_op("where")(get_op("equal")(width, none), Constant(np.float32(1)), step)
    offset = get_op("divide")(get_op("negative")(low), scale)
    place = get_op("clip")(offset, min=0.0, max=255.0)
    point = get_op("cast")(get_op("round")(place), dtype="u8")
    return get_op("quantize")(x, scale, point), scale, point
