"""Pools of codes, means, and joints of codes with different scales."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.frontends.building import call, cast, scalar
from clew.frontends.tflite.converters import images
from clew.frontends.tflite.converters.quantized.codes import (
    limits,
    of_whole,
    operand,
    result,
    rounded,
    scale_of,
    stored,
    zero_of,
)
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized, on_codes
from clew.ir.dims import product
from clew.ir.expr import Expr

_SHORT: Final = ("i8", "u8")


@on_codes("AVERAGE_POOL_2D")
def average_pool(layer: TfliteLayer) -> Quantized:
    """Means of codes, ties away from zero. They are quotients of small integers, which floats
    round to the right side of a tie.
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
    """Codes one after the other; those of other scales first get that of the result."""
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
    """Sums of codes in 32 bits, times the quotient of the scales in `f32`, ties away from zero."""
    x, out = operand(layer, 0), result(layer)
    if not of_whole(x, out):
        return None
    rank, shape = layer.rank(), layer.type(0).shape
    axes = sorted({layer.positive(axis, rank) for axis in layer.numbers(1, "the axes")})
    total = cast(layer.input(0), "i32")
    if axes:
        keep = layer.flag("keep_dims", False)
        total = call("sum", total, axes=tuple(axes), keepdims=keep)
    count = product(tuple(shape[axis] for axis in axes))
    if not isinstance(count, int) or not count:
        return None
    same = (scale_of(x), zero_of(x)) == (scale_of(out), zero_of(out))
    if same and layer.op == "MEAN":
        return cast(call("divide", total, scalar(count, "i32")), out.dtype)
    scale = scale_of(x) / scale_of(out)
    value = cast(total, "f32")
    bias = np.float32(-zero_of(x)) * scale
    if layer.op == "MEAN":
        value = call("divide", value, scalar(count, "f32"))
    else:
        bias = np.float32(bias * np.float32(count))
    value = call("add", call("multiply", value, scalar(scale, "f32")), scalar(bias, "f32"))
    return stored(rounded(value), out)
