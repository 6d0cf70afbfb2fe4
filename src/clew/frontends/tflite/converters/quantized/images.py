"""Pooling, concatenation, means, resizing and softmax of codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.tflite.converters import images
from clew.frontends.tflite.converters.quantized.codes import (
    by_factor,
    centered,
    limits,
    multiplier,
    of_whole,
    operand,
    result,
    rounded,
    scale_of,
    scaled,
    stored,
    zero_of,
)
from clew.frontends.tflite.converters.quantized.tables import entries, interpolated, sampled
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized, on_codes
from clew.ir.dims import product
from clew.ir.expr import Expr
from clew.ir.types import to_numpy

Places = NDArray[np.int64]
_SHORT: Final = ("i8", "u8")
_FACTOR_BITS: Final = 31


@on_codes("AVERAGE_POOL_2D")
def average_pool(layer: TfliteLayer) -> Quantized:
    """Means of codes, ties away from zero. They are quotients of small integers, so division in
    floats rounds every tie correctly.
    """
    x, out = operand(layer, 0), result(layer)
    between = limits(layer, out) if of_whole(x, out) else None
    if between is None:
        return None
    wide = cast(layer.input(0), "f32" if x.dtype in _SHORT else "f64")
    mean = images.average_pool(layer.with_inputs(wide).with_options(activation=0))
    assert isinstance(mean, Expr)
    low, high = between
    return cast(call("clip", rounded(mean), min=float(low), max=float(high)), out.dtype)


@on_codes("MAX_POOL_2D")
def max_pool(layer: TfliteLayer) -> Quantized:
    """The largest code of each window."""
    out = result(layer)
    between = limits(layer, out) if of_whole(operand(layer, 0), out) else None
    if between is None:
        return None
    found = images.max_pool(layer.with_options(activation=0))
    assert isinstance(found, Expr)
    low, high = between
    return call("clip", found, min=float(low), max=float(high))


@on_codes("CONCATENATION")
def concatenation(layer: TfliteLayer) -> Quantized:
    """Concatenates codes; operands with another scale are requantized first."""
    out = result(layer)
    if layer.integer("activation", 0) or not of_whole(out):
        return None
    parts = []
    for n, value in enumerate(layer.present()):
        given = operand(layer, n)
        if not of_whole(given):
            return None
        if (scale_of(given), zero_of(given)) != (scale_of(out), zero_of(out)):
            if out.dtype != "u8":
                return None
            inverse = np.float32(1) / scale_of(out)
            scale = scale_of(given) * inverse
            bias = np.float32(-zero_of(given)) * scale
            moved = call("multiply", cast(value, "f32"), scalar(scale, "f32"))
            moved = call("add", moved, scalar(bias, "f32"))
            value = stored(rounded(moved), out)
        parts.append(value)
    return parts[0] if len(parts) == 1 else call("concatenate", *parts, axis=layer.axis())


@on_codes("MEAN", "SUM")
def mean(layer: TfliteLayer) -> Quantized:
    """Sums of codes less their zero points, times the quotient of the scales; for means, its factor
    is divided by their number.
    """
    x, out = operand(layer, 0), result(layer)
    if not of_whole(x, out):
        return None
    rank, shape = layer.rank(), layer.type(0).shape
    axes = sorted({layer.positive(axis, rank) for axis in layer.numbers(1, "the axes")})
    total = centered(layer.input(0), zero_of(x))
    if axes:
        keep = layer.flag("keep_dims", False)
        total = call("sum", total, axes=tuple(axes), keepdims=keep)
    count = product(tuple(shape[axis] for axis in axes))
    if not isinstance(count, int) or not count:
        return None
    factor, shift = multiplier(np.float64(scale_of(x)) / np.float64(scale_of(out)))
    if layer.op == "MEAN":
        bits = min(count.bit_length() - 1, 32, _FACTOR_BITS + int(shift))
        factor = np.asarray((int(factor) << bits) // count, np.int32)
        shift = np.asarray(shift - bits, np.int32)
    return stored(by_factor(total, factor, shift), out)


@on_codes("RESIZE_BILINEAR")
def resize_bilinear(layer: TfliteLayer) -> Quantized:
    """Bilinear interpolation of codes with 10-bit weights; of unsigned codes with float weights."""
    x, out = operand(layer, 0), result(layer)
    height, width = layer.type(0).shape[1:3] if layer.rank() == 4 else (None, None)
    if not of_whole(x, out) or not isinstance(height, int) or not isinstance(width, int):
        return None
    sizes = layer.numbers(1, "the sizes")
    if x.dtype == "u8":
        return _by_floats(layer, (height, width), sizes)
    dtype = "i32" if x.dtype == "i8" else "i64"
    value = cast(layer.input(0), dtype)
    for axis, (size, wanted) in enumerate(zip((height, width), sizes, strict=True), start=1):
        low, high, part = _places(layer, size, wanted)
        value = _weighted(value, axis, (low, high), (1024 - part, part), dtype)
    # Halves go away from zero: what is added has the sign of the sum, and the quotient is cut.
    negative = call("less_equal", value, scalar(0, dtype))
    half = call("where", negative, scalar(-(1 << 19), dtype), scalar(1 << 19, dtype))
    found = call("divide", call("add", value, half), scalar(1 << 20, dtype))
    return cast(found, out.dtype)


def _places(layer: TfliteLayer, size: int, wanted: int) -> tuple[Places, Places, Places]:
    """Returns the source indices before and after each element of the result, and the distance from
    the former in units of 1 / 1024.
    """
    whole, parts = size, wanted
    if layer.flag("align_corners", False) and wanted > 1:
        whole, parts = size - 1, wanted - 1
    step = ((1 << 10) * whole + parts // 2) // parts
    place = np.arange(wanted) * step
    if layer.flag("half_pixel_centers", False):
        place = place + step // 2 - (1 << 9)
    low = np.maximum(np.trunc(place / 1024).astype(np.int64), 0)
    high = np.minimum(np.trunc((place + 1023) / 1024).astype(np.int64), size - 1)
    return low, high, place - 1024 * low


def _weighted(
    x: Expr, axis: int, places: Sequence[Places], weights: Sequence[Any], dtype: str
) -> Expr:
    shape = [1] * x.tensor.rank
    parts = []
    for place, weight in zip(places, weights, strict=True):
        shape[axis] = len(place)
        factor = constant(np.asarray(weight).astype(to_numpy(dtype)).reshape(shape))
        parts.append(call("multiply", call("gather", x, constant(place), axis=axis), factor))
    return call("add", *parts)


def _by_floats(layer: TfliteLayer, given: Sequence[int], sizes: Sequence[int]) -> Quantized:
    wide = cast(layer.input(0), "f32")
    corners, centers = layer.flag("align_corners", False), layer.flag("half_pixel_centers", False)
    found = []
    for size, wanted in zip(given, sizes, strict=True):
        place = np.arange(wanted, dtype=np.float32)
        step = np.float32(size) / np.float32(wanted)
        if corners and wanted > 1:
            step = np.float32(size - 1) / np.float32(wanted - 1)
        half = np.float32(0.5)
        place = (place + half) * step - half if centers else place * step
        low = np.maximum(np.floor(place), 0).astype(np.int64)
        high = np.minimum(np.ceil(place), size - 1).astype(np.int64)
        found.append((low, high, place - low.astype(np.float32)))
    (top, bottom, down), (left, right, across) = found
    rows, columns = down.reshape(1, -1, 1, 1), across.reshape(1, 1, -1, 1)
    one, terms = np.float32(1), []
    for row, column, y, x in (
        (top, left, one - rows, one - columns), (bottom, left, rows, one - columns),
        (top, right, one - rows, columns), (bottom, right, rows, columns),
    ):  # fmt: skip
        corner = call("gather", wide, constant(row), axis=1)
        corner = call("gather", corner, constant(column), axis=2)
        terms.append(call("multiply", call("multiply", corner, constant(y)), constant(x)))
    total: Expr = terms[0]
    for term in terms[1:]:
        total = call("add", total, term)
    return cast(cast(call("add", total, scalar(0.5, "f32")), "i32"), "u8")


@on_codes("SOFTMAX")
def softmax(layer: TfliteLayer) -> Quantized:
    """Softmax of 16-bit codes, by tables of the exponential function and of reciprocals."""
    x, out = operand(layer, 0), result(layer)
    if not of_whole(x, out) or not x.dtype == out.dtype == "i16":
        return None
    rank = layer.rank()
    value = cast(layer.input(0), "i32")
    most = call("max", value, axes=(rank - 1,), keepdims=True)
    unit = 10.0 / 65535
    scale = np.float64(scale_of(x) * np.float32(layer.real("beta", 0))) / unit
    moved = scaled(call("subtract", value, most), scale)
    place = call("clip", call("add", moved, scalar(65535, "i32")), min=0.0, max=65535.0)
    part = 2.0 / 65535
    power = sampled(np.exp, (unit, 32767), (part, 0), np.float64)
    inverse = sampled(lambda v: 1 / (1 + v), (1 / 65535, -32768), (part, 0), np.float64)
    each = entries(interpolated(power).astype(np.int32), place)
    total = call("sum", each, axes=(rank - 1,), keepdims=True)
    # The sum as a number from 1 to 2, and the power of two.
    length = reshaped(total, (*total.tensor.shape, 1))
    limits_ = constant((1 << np.arange(31)).astype(np.int32))
    bits = cast(call("greater_equal", length, limits_), "i32")
    bits = call("sum", bits, axes=(rank,), keepdims=False)
    left = cast(call("subtract", scalar(31, "i32"), bits), "i64")
    wide = call("left_shift", cast(total, "i64"), left)
    shifted = call("right_shift", call("add", wide, scalar(1 << 13, "i64")), scalar(14, "i64"))
    at = call("subtract", shifted, scalar(1 << 16, "i64"))
    at = call("clip", at, min=0.0, max=65535.0)
    factor = cast(entries(interpolated(inverse).astype(np.int32), at), "i64")
    right = cast(call("subtract", bits, scalar(1, "i32")), "i64")
    half = call("right_shift", call("left_shift", scalar(1, "i64"), right), scalar(1, "i64"))
    product_ = call("add", call("multiply", cast(each, "i64"), factor), half)
    found = call("right_shift", product_, right)
    return cast(call("clip", found, min=0.0, max=32767.0), "i16")
