"""Quantized tensors: to and from integers with scales and zero points."""

from __future__ import annotations

from clew.frontends.onnx.build import cast, reshaped
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, call, converter
from clew.frontends.onnx.tensors import dtype_of
from clew.ir.expr import Expr
from clew.ir.types import bits, is_integer

# Where a product of integers is summed.
_SUM = "i32"


@converter("DequantizeLinear")
def dequantize_linear(layer: Layer) -> Result:
    """`(x - zero_point) * scale`, for the whole tensor or along an axis."""
    x, scale, zero = layer.input(0), layer.input(1), layer.optional(2)
    dtype = layer.type(1).dtype
    if is_integer(layer.type(0).dtype) and bits(layer.type(0).dtype) <= 16:
        value = cast(x, _SUM)
        if zero is not None:
            value = call("subtract", value, _along(layer, cast(zero, _SUM)))
        value = cast(value, dtype)
    else:
        value = cast(x, dtype)
        if zero is not None:
            value = call("subtract", value, _along(layer, cast(zero, dtype)))
    result = call("multiply", value, _along(layer, scale))
    return cast(result, _output_dtype(layer, dtype))


@converter("QuantizeLinear")
def quantize_linear(layer: Layer) -> Result:
    """`saturate(round(x / scale) + zero_point)`, for the whole tensor or along an axis."""
    x, scale, zero = layer.input(0), layer.input(1), layer.optional(2)
    dtype = layer.type(2).dtype if zero is not None else _output_dtype(layer, "u8")
    if not is_integer(dtype):
        raise layer.unsupported(f"to {dtype}")
    wide = layer.type(1).dtype if layer.type(1).dtype != "f16" else "f32"
    quotient = call("divide", cast(x, wide), _along(layer, cast(scale, wide)))
    return _saturated(layer, call("round", quotient), zero, dtype)


def _saturated(layer: Layer, rounded: Expr, zero: Expr | None, dtype: str) -> Expr:
    wide = rounded.tensor.dtype
    if zero is not None:
        rounded = call("add", rounded, _along(layer, cast(zero, wide)))
    signed = dtype[0] == "i"
    low = -(2 ** (bits(dtype) - 1)) if signed else 0
    high = 2 ** (bits(dtype) - signed) - 1
    return cast(call("clip", rounded, min=float(low), max=float(high)), dtype)


def _output_dtype(layer: Layer, default: str) -> str:
    if "output_dtype" in layer.schema.attributes and (number := layer.integer("output_dtype")):
        return dtype_of(number, "the result")
    return default


def _along(layer: Layer, parameter: Expr) -> Expr:
    """Returns a scale or zero point shaped to broadcast to the input."""
    if "block_size" in layer.schema.attributes and layer.integer("block_size"):
        raise layer.unsupported("block_size")
    shape = parameter.tensor.shape
    if shape in ((), (1,)):
        return reshaped(parameter, ())
    if len(shape) != 1:
        raise layer.unsupported(f"a scale of type {parameter.type}")
    rank = layer.rank()
    axis = layer.positive(layer.integer("axis"), rank)
    return reshaped(parameter, (*shape, *(1,) * (rank - axis - 1)))


@converter("MatMulInteger")
def matmul_integer(layer: Layer) -> Result:
    """A product of integers less their zero points, in i32."""
    operands = []
    for n in range(2):
        value, zero = cast(layer.input(n), _SUM), layer.optional(n + 2)
        if zero is not None:
            point = cast(zero, _SUM)
            if n == 0 and point.tensor.rank == 1 and point.tensor.shape != (1,):
                point = reshaped(point, (*point.tensor.shape, 1))
            value = call("subtract", value, point)
        operands.append(value)
    return call("nn.matmul", *operands)


@converter("QLinearMatMul")
def qlinear_matmul(layer: Layer) -> Result:
    """A product of dequantized operands, quantized."""
    operands = []
    for first in (0, 3):
        value = call(
            "subtract",
            cast(layer.input(first), _SUM),
            _row_parameter(layer, first + 2, first, _SUM),
        )
        operands.append(value)
    exact = cast(call("nn.matmul", *operands), "f32")
    scales = [_row_parameter(layer, n, base, "f32") for n, base in ((1, 0), (4, 3))]
    factor = call("divide", call("multiply", *scales), reshaped(cast(layer.input(6), "f32"), ()))
    rounded = call("round", call("multiply", exact, factor))
    zero = reshaped(layer.input(7), ())
    return _saturated(layer, rounded, zero, layer.type(7).dtype)


def _row_parameter(layer: Layer, index: int, operand: int, dtype: str) -> Expr:
    parameter = cast(layer.input(index), dtype)
    shape = parameter.tensor.shape
    if shape in ((), (1,)):
        return reshaped(parameter, ())
    if len(shape) == 1 and operand == 0:
        return reshaped(parameter, (*shape, 1))
    return parameter
