"""Recurrent cells on codes, bit-exact with LiteRT's integer kernels.

States have 16 bits. The sums of products of each operand are scaled to 16 bits separately, and
added with saturation.

Source: LiteRT's lstm_eval, svdf and tensor_utils; TFLite Micro's svdf for states of 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.lowering.recurrent import dense
from clew.frontends.names import display
from clew.frontends.tflite.converters.quantized.codes import (
    SUM,
    centered,
    of_whole,
    operand,
    result,
    scale_of,
    scaled,
    stored,
    zero_of,
)
from clew.frontends.tflite.file.model import TensorInfo
from clew.frontends.tflite.layer import TfliteLayer
from clew.ir.expr import Expr
from clew.ir.types import integer_limits

_STATE: Final = "i16"


def limited(value: Expr, dtype: str = _STATE) -> Expr:
    """Returns sums as codes, saturated."""
    low, high = integer_limits(dtype)
    return cast(call("clip", value, min=float(low), max=float(high)), dtype)


def check_scales(layer: TfliteLayer, tensors: Iterable[TensorInfo]) -> None:
    """Checks that tensors have one scale each. Errors: M012."""
    for tensor in tensors:
        if not of_whole(tensor) or not 0 < scale_of(tensor) < np.inf:
            raise layer.wrong(f"needs a scale for the tensor {display(tensor.name)!r}")


def halved(value: Expr, times: int) -> Expr:
    """Returns integers divided by a power of two, ties away from zero."""
    dtype = value.tensor.dtype
    below = cast(call("less", value, scalar(0, dtype)), dtype)
    half = call("subtract", call("add", value, scalar(1 << (times - 1), dtype)), below)
    return call("right_shift", half, scalar(times, dtype))


def svdf_of_codes(layer: TfliteLayer) -> Expr:
    """Returns the result of SVDF on codes. The state and the time weights have 16 bits, or 8 in
    files for microcontrollers, for which LiteRT reads out of bounds.
    """
    tensors = [operand(layer, n) for n in (0, 1, 2, 4)]
    x, features, times, state = tensors
    known = state.dtype in ("i8", _STATE) and times.dtype == state.dtype
    if not known or (x.dtype, features.dtype) != ("i8", "i8"):
        raise layer.unsupported(f"codes of {', '.join(each.dtype for each in tensors)}")
    check_scales(layer, [*tensors, result(layer)])
    filters, memory = layer.input(2).tensor.shape
    batch, rank = layer.input(0).tensor.shape[0], layer.integer("rank", 1)
    assert isinstance(filters, int)
    total = dense(centered(layer.input(0), zero_of(x)), cast(layer.input(1), SUM))
    step = scale_of(x) * scale_of(features) / scale_of(state)
    new = limited(scaled(total, step), state.dtype)
    after = shifted(layer.input(4), new, (batch, filters, memory))
    layer.keep(4, reshaped(after, layer.input(4).tensor.shape))
    products = call("multiply", cast(after, SUM), cast(layer.input(2), SUM))
    sums: Expr = call("sum", products, axes=(2,), keepdims=False)
    sums = reshaped(sums, (batch, filters // rank, rank))
    sums = call("sum", sums, axes=(2,), keepdims=False)
    bias = layer.optional(3)
    total = sums if bias is None else call("add", sums, bias)
    out = result(layer)
    return stored(scaled(total, scale_of(state) * scale_of(times) / scale_of(out)), out)


def shifted(state: Expr, new: Expr, shape: Sequence[Any]) -> Expr:
    """Returns the last values of each filter `[batch, filters, memory]`, the new one at the end."""
    batch, filters, memory = shape
    before = reshaped(state, shape)
    kept = call("slice", before, begin=(1,), end=(memory,), strides=(1,), axes=(2,))
    return call("concatenate", kept, reshaped(new, (batch, filters, 1)), axis=2)
