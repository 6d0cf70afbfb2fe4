"""Operators of torch's quantizers (pt2e), which convert tensors to integers and back.

Scales and zero points apply to the whole tensor, to each position along an axis (per channel), to
each row along the last axis (per token), or to groups of columns. Scales in `f64` hold numbers that
were computed in `f32`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, per_channel, reshaped, scalar
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr
from clew.ir.types import integer_limits, to_numpy
from clew.ops.math.quantization import QUANTIZED

_OF: Final = "quantized_decomposed."
_LEAST_TOKEN_SCALE: Final = 1e-5
_EXACT: Final = 1 << 53  # up to here, f64 holds all integers


@converter(f"{_OF}quantize_per_tensor")
def quantize_per_tensor(layer: Layer) -> Result:
    """`clamp(round(x / scale) + zero_point, quant_min, quant_max)`."""
    return _quantized(layer, _scale(layer, "scale"), _point(layer, "zero_point"))


@converter(f"{_OF}dequantize_per_tensor")
def dequantize_per_tensor(layer: Layer) -> Result:
    """`(x - zero_point) * scale`."""
    return _dequantized(layer, _scale(layer, "scale"), _point(layer, "zero_point"))


@converter(f"{_OF}quantize_per_channel")
def quantize_per_channel(layer: Layer) -> Result:
    """`quantize_per_tensor` with a scale and a zero point for each position along an axis."""
    return _quantized(layer, *_of_channels(layer))


@converter(f"{_OF}dequantize_per_channel")
def dequantize_per_channel(layer: Layer) -> Result:
    """`dequantize_per_tensor` with a scale and a zero point for each position along an axis."""
    return _dequantized(layer, *_of_channels(layer))


@converter(f"{_OF}quantize_per_token")
def quantize_per_token(layer: Layer) -> Result:
    """`quantize_per_tensor` with a scale and a zero point for each row along the last axis."""
    return _quantized(layer, *_of_tokens(layer))


@converter(f"{_OF}dequantize_per_token")
def dequantize_per_token(layer: Layer) -> Result:
    """`dequantize_per_tensor` with a scale and a zero point for each row along the last axis."""
    return _dequantized(layer, *_of_tokens(layer))


@converter(f"{_OF}quantize_per_channel_group")
def quantize_per_channel_group(layer: Layer) -> Result:
    """`quantize_per_tensor` with a scale and a zero point for groups of columns in each row."""
    scale, zero, block = _of_groups(layer)
    return _quantized(layer, scale, zero, axis=1, block=block)


@converter(f"{_OF}dequantize_per_channel_group")
def dequantize_per_channel_group(layer: Layer) -> Result:
    """`dequantize_per_tensor` with a scale and a zero point for groups of columns in each row."""
    scale, zero, block = _of_groups(layer)
    return _dequantized(layer, scale, zero, axis=1, block=block)


@converter(f"{_OF}choose_qparams.tensor")
def choose_qparams(layer: Layer) -> Result:
    """The scale and zero point for the range of a tensor, which is extended to contain 0."""
    low, high = _range(layer.tensor("input"))
    least, most = layer.integer("quant_min"), layer.integer("quant_max")
    width = call("divide", call("subtract", high, low), scalar(most - least, "f32"))
    scale = call("maximum", width, scalar(layer.number("eps"), "f32"))
    offset = call("round", call("divide", low, scale))
    zero = call("clip", call("negative", offset), min=0.0, max=float(most - least))
    point = call("add", cast(zero, "i64"), scalar(least, "i64"))
    return [layer.shaped(scale, 0), layer.shaped(point, 1)]


@converter(f"{_OF}choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(layer: Layer) -> Result:
    """The scale for the largest absolute value of a tensor; the zero point is in the middle of the
    dtype's range.
    """
    low, high = _range(layer.tensor("input"))
    largest = call("maximum", call("negative", low), high)
    half = (layer.integer("quant_max") - layer.integer("quant_min")) / 2
    scale = call("divide", largest, scalar(half, "f32"))
    scale = call("maximum", scale, scalar(layer.number("eps"), "f32"))
    point = 128 if layer.dtype() == "u8" else 0
    return [layer.shaped(scale, 0), layer.filled(point, 1)]


@converter(f"{_OF}choose_qparams_per_token")
def choose_qparams_per_token(layer: Layer) -> Result:
    """The scale for the largest absolute value of each row along the last axis, and zeros."""
    x = layer.tensor("input")
    largest = call("max", call("abs", x), axes=(x.tensor.rank - 1,), keepdims=True)
    wide = cast(largest, layer.result(0).dtype)
    scale = call("maximum", wide, layer.scalar(_LEAST_TOKEN_SCALE, wide))
    return [call("divide", scale, layer.scalar(127.0, scale)), layer.filled(0.0, 1)]


@converter(
    f"{_OF}choose_qparams_per_token_asymmetric", f"{_OF}_choose_qparams_per_token_asymmetric_impl"
)
def choose_qparams_per_token_asymmetric(layer: Layer) -> Result:
    """The scale and zero point, in `i8`, for the range of each row along the last axis."""
    low, high = _range(layer.tensor("input"), of_rows=True)
    scale = call("divide", call("subtract", high, low), scalar(255.0, "f32"))
    scale = call("maximum", scale, scalar(np.finfo(np.float32).eps, "f32"))
    below, above = call("divide", low, scale), call("divide", high, scale)
    least, most = scalar(-128.0, "f32"), scalar(127.0, "f32")
    errors = call("add", call("add", least, below), call("add", most, above))
    zero = call(
        "where",
        call("greater", errors, scalar(0.0, "f32")),
        call("subtract", least, below),
        call("subtract", most, above),
    )
    zero = call("round", call("clip", zero, min=-128.0, max=127.0))
    return [layer.to_result(scale, 0), layer.to_result(zero, 1)]


@converter(f"{_OF}convert_element_type.no_fuse")
def convert_element_type(layer: Layer) -> Result:
    """A cast."""
    return cast(layer.tensor("input"), layer.dtype())


# --- parameters -----------------------------------------------------------------------------------


def _scale(layer: Layer, name: str) -> Expr:
    """Returns scales in f32; a number, or a vector of one element, becomes a scalar."""
    found = layer.arguments[name]
    if not isinstance(found, Expr):
        return scalar(found, "f32")
    scale = cast(found, "f32")
    return reshaped(scale, ()) if scale.tensor.shape == (1,) else scale


def _point(layer: Layer, name: str) -> Expr | None:
    """Returns zero points in the dtype of the integers; None if they are known to be 0."""
    found, dtype = layer.arguments[name], layer.dtype()
    if found is None:
        return None
    if not isinstance(found, Expr):
        found = Constant(np.asarray(found))
    if isinstance(found, Constant):
        if not found.data.any():
            return None
        low, high = integer_limits(dtype)
        outside = found.data[(found.data < low) | (found.data > high)]
        if outside.size:
            text = f"a zero point of {outside.flat[0]} for {dtype}"
            raise layer.unsupported(text, hint=f"{dtype} holds integers from {low} to {high}")
        found = Constant(found.data.astype(to_numpy(dtype)), name=found.name, span=found.span)
    point = cast(found, dtype)
    return reshaped(point, ()) if point.tensor.shape == (1,) else point


def _of_channels(layer: Layer) -> tuple[Expr, Expr | None]:
    rank = layer.type("input").rank
    axis = layer.axis("axis", rank)

    def along(parameter: Expr) -> Expr:
        return per_channel(parameter, rank, axis) if parameter.tensor.rank else parameter

    zero = _point(layer, "zero_points")
    return along(_scale(layer, "scales")), None if zero is None else along(zero)


def _of_groups(layer: Layer) -> tuple[Expr, Expr | None, int]:
    """Returns scales and zero points of shape `[rows, groups]`, and the columns of a group."""
    rows, columns = layer.type("input").shape
    if not isinstance(columns, int):
        raise layer.unsupported("the number of columns is known only during the run")
    block = min(layer.integer("group_size"), columns)
    shape = (rows, columns // block)
    zero = _point(layer, "zero_points")
    zero = None if zero is None else reshaped(zero, shape)
    return reshaped(_scale(layer, "scales"), shape), zero, block


def _of_tokens(layer: Layer) -> tuple[Expr, Expr | None]:
    shape: Sequence[Dim] = (*layer.type("input").shape[:-1], 1)

    def along(parameter: Expr) -> Expr:
        return reshaped(parameter, shape) if parameter.tensor.rank else parameter

    zero = _point(layer, "zero_points")
    return along(_scale(layer, "scales")), None if zero is None else along(zero)


def _range(x: Expr, *, of_rows: bool = False) -> tuple[Expr, Expr]:
    """Returns the range of a tensor, or of each row along its last axis, extended to contain 0: the
    least and the largest value, in f32.
    """
    rank, zero = x.tensor.rank, scalar(0.0, "f32")
    axes = (rank - 1,) if of_rows else tuple(range(rank))
    low, high = (cast(call(op, x, axes=axes, keepdims=of_rows), "f32") for op in ("min", "max"))
    return call("minimum", low, zero), call("maximum", high, zero)


# --- conversions ----------------------------------------------------------------------------------


def _quantized(layer: Layer, scale: Expr, zero: Expr | None, **place: Any) -> Expr:
    x, dtype = cast(layer.tensor("input"), "f32"), layer.dtype()
    bounds = layer.integer("quant_min"), layer.integer("quant_max")
    if dtype not in QUANTIZED:
        if place:
            raise layer.unsupported(f"quantizes groups to {dtype}")
        return _rounded(x, scale, zero, bounds, dtype)
    zeros = () if zero is None else (zero,)
    found = call("quantize", x, scale, *zeros, dtype=dtype, **place)
    if bounds == integer_limits(dtype):
        return found
    return call("clip", found, min=bounds[0], max=bounds[1])


def _rounded(x: Expr, scale: Expr, zero: Expr | None, bounds: tuple[int, int], dtype: str) -> Expr:
    """Returns the integers of a dtype with more bits than quantized tensors have."""
    found: Expr = cast(call("round", call("divide", x, scale)), "f64")
    found = found if zero is None else call("add", found, cast(zero, "f64"))
    low, high = (float(max(min(bound, _EXACT), -_EXACT)) for bound in bounds)
    return cast(call("clip", found, min=low, max=high), dtype)


def _dequantized(layer: Layer, scale: Expr, zero: Expr | None, **place: Any) -> Expr:
    x, wanted = layer.tensor("input"), layer.result().dtype
    zeros = () if zero is None else (cast(zero, x.tensor.dtype),)
    return cast(call("dequantize", x, scale, *zeros, dtype="f32", **place), wanted)
