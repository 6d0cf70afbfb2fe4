"""Elementwise arithmetic on codes."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.frontends.building import call, cast, constant, scalar
from clew.frontends.tflite.converters.quantized.codes import (
    SUM,
    centered,
    limits,
    of_whole,
    operand,
    result,
    rounded,
    saturated,
    scale_of,
    scaled,
    scaled_shifted,
    stored,
    zero_of,
)
from clew.frontends.tflite.converters.quantized.sums import linear_sum
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Quantized, on_codes
from clew.ir.types import integer_limits

_LEFT: Final = {"i8": 20, "u8": 20, "i16": 15}
"""By how many bits codes are shifted to the left before they are added."""
_LEFT_OF_COMPARED: Final = 8


@on_codes("ADD", "SUB")
def add(layer: TfliteLayer) -> Quantized:
    """Sums and differences in units of half the finer scale."""
    a, b, out = operand(layer, 0), operand(layer, 1), result(layer)
    between = limits(layer, out) if of_whole(a, b, out) else None
    if between is None or out.dtype not in _LEFT:
        return None
    if out.dtype == "i16" and layer.flag("pot_scale_int16", True) and _powers(a, b, out):
        return _by_shifts(layer, a, b, out, between)
    left = _LEFT[out.dtype]
    form = linear_sum(a, b, out, between, left, 1 if layer.op == "ADD" else -1)
    if form is not None:
        return saturated(form.of(layer.input(0), layer.input(1)), out.dtype, between)
    most = 2 * max(np.float64(scale_of(a)), np.float64(scale_of(b)))
    parts = [
        scaled_shifted(centered(layer.input(n), zero_of(t)), left, scale_of(t) / most)
        for n, t in enumerate((a, b))
    ]
    total = call("add" if layer.op == "ADD" else "subtract", *parts)
    factor = most / (2.0**left * np.float64(scale_of(out)))
    return stored(scaled(total, factor), out, between)


def _powers(*tensors: TensorInfo) -> bool:
    """Whether scales are powers of two and zero points are 0."""
    return all(np.frexp(scale_of(t))[0] == 0.5 and not zero_of(t) for t in tensors)


def _by_shifts(
    layer: TfliteLayer, a: TensorInfo, b: TensorInfo, out: TensorInfo, between: tuple[int, int]
) -> Quantized:
    """Returns sums of 16-bit codes whose scales are powers of two; the finer operand is shifted."""
    exponents = [int(np.frexp(scale_of(t))[1]) for t in (a, b, out)]
    if max(exponents[:2]) != exponents[2] and layer.op == "ADD":
        return None
    parts = [
        scaled(cast(layer.input(n), SUM), 2.0 ** (exponents[n] - exponents[2])) for n in range(2)
    ]
    return stored(call("add" if layer.op == "ADD" else "subtract", *parts), out, between)


@on_codes("MUL")
def multiply(layer: TfliteLayer) -> Quantized:
    """Scaled products of codes."""
    a, b, out = operand(layer, 0), operand(layer, 1), result(layer)
    between = limits(layer, out) if of_whole(a, b, out) else None
    if between is None or out.dtype not in _LEFT:
        return None
    product = call(
        "multiply", *(centered(layer.input(n), zero_of(t)) for n, t in enumerate((a, b)))
    )
    factor = scale_of(a) * scale_of(b) / scale_of(out)
    return stored(scaled(product, factor), out, between)


@on_codes("SQUARED_DIFFERENCE")
def squared_difference(layer: TfliteLayer) -> Quantized:
    """Squares of differences in units of half the finer scale."""
    a, b, out = operand(layer, 0), operand(layer, 1), result(layer)
    if not of_whole(a, b, out) or out.dtype != "i8":
        return None
    most, left = 2 * max(np.float64(scale_of(a)), np.float64(scale_of(b))), 7
    parts = [
        scaled_shifted(centered(layer.input(n), zero_of(t)), left, scale_of(t) / most)
        for n, t in enumerate((a, b))
    ]
    difference = call("subtract", *parts)
    square = call("multiply", difference, difference)
    factor = most * most / (2.0 ** (2 * left) * np.float64(scale_of(out)))
    return stored(scaled(square, factor), out)


_COMPARED: Final = {
    "EQUAL": "equal", "NOT_EQUAL": "not_equal", "LESS": "less", "LESS_EQUAL": "less_equal",
    "GREATER": "greater", "GREATER_EQUAL": "greater_equal",
}  # fmt: skip


@on_codes(*_COMPARED)
def compare(layer: TfliteLayer) -> Quantized:
    """Comparisons. 8-bit codes are shifted and scaled first, 16-bit codes are not."""
    a, b = operand(layer, 0), operand(layer, 1)
    if a.dtype == "i16":
        return call(_COMPARED[layer.op], layer.input(0), layer.input(1))
    if not of_whole(a, b) or a.dtype not in ("i8", "u8"):
        return None
    parts = [
        scaled_shifted(centered(layer.input(n), zero_of(t)), _LEFT_OF_COMPARED, scale_of(t))
        for n, t in enumerate((a, b))
    ]
    return call(_COMPARED[layer.op], *parts)


@on_codes("NEG")
def negative(layer: TfliteLayer) -> Quantized:
    """Negated codes; scales and zero points are not applied."""
    return call("negative", layer.input(0))


@on_codes("MAXIMUM", "MINIMUM")
def larger(layer: TfliteLayer) -> Quantized:
    """Maximum or minimum of codes; all have the same scale."""
    return call(layer.op.lower(), layer.input(0), layer.input(1))


@on_codes("QUANTIZE")
def quantize(layer: TfliteLayer) -> Quantized:
    """Requantizes codes; quantizes floats with ties away from zero."""
    x, out = operand(layer, 0), result(layer)
    if out.quantization is None:
        return None
    if x.dtype == "f32":
        given = out.quantization
        shape = [1] * (len(out.shape) - given.axis) if given.by_channel else []
        if given.by_channel:
            shape[0] = given.scale.size
        from_zero = given.zero.astype(np.int32).reshape(shape)
        quotient = call("divide", layer.input(0), constant(given.scale.reshape(shape)))
        # A number beyond 32 bits is limited first: its code is a limit, too.
        quotient = call("clip", quotient, min=-(2.0**24), max=2.0**24)
        low, high = integer_limits(out.dtype)
        whole = call("add", rounded(quotient), constant(from_zero))
        return cast(call("clip", whole, min=float(low), max=float(high)), out.dtype)
    if not of_whole(x, out):
        return None
    value = centered(layer.input(0), zero_of(x))
    factor = np.float64(scale_of(x)) / np.float64(scale_of(out))
    return stored(scaled(value, factor), out)


@on_codes("PRELU")
def prelu(layer: TfliteLayer) -> Quantized:
    """Requantizes positive codes, and multiplies negative ones by the slope."""
    x, slope, out = operand(layer, 0), operand(layer, 1), result(layer)
    if not of_whole(x, slope, out):
        return None
    value = centered(layer.input(0), zero_of(x))
    product = call("multiply", value, centered(layer.input(1), zero_of(slope)))
    own = np.float64(scale_of(x)) / np.float64(scale_of(out))
    other = np.float64(scale_of(x) * scale_of(slope)) / np.float64(scale_of(out))
    positive = call("greater_equal", value, scalar(0, SUM))
    return stored(call("where", positive, scaled(value, own), scaled(product, other)), out)
