"""Quantized tensors: to and from integers with scales and zero points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, cast, cast_saturated, reshaped, scalar
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ir.types import NARROW_FLOATS, STORAGE, is_integer
from clew.ops.common import differ
from clew.ops.math.quantization import QUANTIZED
from clew.te.convert import convert

# The dtype of integer sums.
_SUM: Final = "i32"


@converter("DequantizeLinear")
def dequantize_linear(layer: Layer) -> Result:
    """`(x - zero_point) * scale`, for the whole tensor, along an axis, or in blocks along it.

    The difference of integers of up to 16 bits is exact. It is multiplied in `f32`, even if the
    result is `f16` or `bf16`: for 8 bits the results equal those of the narrow types, as the
    standard requires; for more bits they are more accurate, as in ONNX Runtime.
    """
    x, scale = layer.input(0), layer.input(1)
    source, factor = layer.type(0).dtype, layer.type(1).dtype
    zero = _zero_point(layer, 2)
    if zero is not None and zero.tensor.dtype != source:
        raise layer.wrong(f"has a zero point of {zero.tensor.dtype} for a tensor of {source}")
    dtype = _output_dtype(layer, "" if factor in STORAGE else factor)
    if not dtype:
        raise layer.wrong(f"has a scale of {factor}, which cannot be the result's, and no other")
    (scale, *zeros), place = _placed(layer, scale, zero)
    native = dtype if dtype not in STORAGE else "f32"
    return cast(call("dequantize", x, scale, *zeros, dtype=native, **place), dtype)


@converter("QuantizeLinear")
def quantize_linear(layer: Layer) -> Result:
    """`saturate(round(x / scale) + zero_point)`, for the whole tensor, along an axis, or in blocks
    along it.

    The quotient has the layer's precision attribute, or the scale's dtype; the zero point is added
    in at least `f32`. For float results nothing is rounded before the end. NaN becomes the lowest
    integer, as in ONNX Runtime.
    """
    x, scale, zero = layer.input(0), layer.input(1), _zero_point(layer, 2)
    dtype = _output_dtype(layer, "u8")
    given = layer.optional(2)
    if given is not None:
        if _output_dtype(layer, given.tensor.dtype) != given.tensor.dtype:
            raise layer.wrong(f"gives {dtype} with a zero point of {given.tensor.dtype}")
        dtype = given.tensor.dtype
    if dtype not in QUANTIZED:
        raise layer.wrong(f"cannot quantize to {dtype}")
    precision = _precision(layer)
    saturate = "saturate" not in layer.schema.attributes or layer.flag("saturate")
    if is_integer(scale.tensor.dtype):
        scale = cast(scale, precision)
    (scale, *zeros), place = _placed(layer, scale, zero)
    return call(
        "quantize", x, scale, *zeros, dtype=dtype, precision=precision, saturate=saturate, **place
    )


def _precision(layer: Layer) -> str:
    """Returns the dtype of the division."""
    if "precision" in layer.schema.attributes and (number := layer.integer("precision")):
        dtype = dtype_of(number, "the precision")
        if dtype not in (*NARROW_FLOATS, "f32", "f64"):
            raise layer.wrong(f"cannot divide in {dtype}")
        return dtype
    scale = layer.type(1).dtype
    if is_integer(scale):
        return "f64"
    return "f32" if scale in STORAGE else scale


def _zero_point(layer: Layer, index: int) -> Expr | None:
    """Returns a zero point, None if it is omitted or known to be 0."""
    zero = layer.optional(index)
    if isinstance(zero, Constant) and not convert(zero.data, "f64").any():
        return None
    return zero


def requantized(layer: Layer, total: Expr, factor: Expr, zero: Expr | None, dtype: str) -> Expr:
    """Returns sums of integer products, times a factor and plus a zero point, as integers.

    Errors: M012 for a dtype without quantization.
    """
    if dtype not in QUANTIZED:
        raise layer.wrong(f"cannot quantize to {dtype}")
    return call("requantize", total, factor, *(() if zero is None else (zero,)), dtype=dtype)


def _output_dtype(layer: Layer, default: str) -> str:
    if "output_dtype" in layer.schema.attributes and (number := layer.integer("output_dtype")):
        return dtype_of(number, "the result")
    return default


def _placed(layer: Layer, scale: Expr, zero: Expr | None) -> tuple[list[Expr], dict[str, int]]:
    """Returns a scale and a zero point shaped for the input, and the attributes that say how."""
    parameters = [scale] if zero is None else [scale, zero]
    attributes = layer.schema.attributes
    block = layer.integer("block_size") if "block_size" in attributes else 0
    if block < 0:
        raise layer.wrong(f"has a block_size of {block}")
    if not block or all(p.tensor.shape in ((), (1,)) for p in parameters):
        return [_along(layer, p) for p in parameters], {}
    axis = layer.positive(layer.integer("axis"), layer.rank())
    for n, parameter in enumerate(parameters):
        if parameter.tensor.shape in ((), (1,)):
            parameters[n] = reshaped(parameter, ())
        else:
            _check_blocks(layer, parameter, axis, block)
    return parameters, {"axis": axis, "block": block}


def _along(layer: Layer, parameter: Expr) -> Expr:
    """Returns a scale or zero point shaped to broadcast to the input."""
    shape = parameter.tensor.shape
    if shape in ((), (1,)):
        return reshaped(parameter, ())
    if len(shape) != 1 or "axis" not in layer.schema.attributes:
        raise layer.wrong(f"has a scale or zero point of type {parameter.type}")
    rank = layer.rank()
    axis = layer.positive(layer.integer("axis"), rank)
    size = layer.type(0).shape[axis]
    if differ(shape[0], size):
        raise layer.wrong(f"has {shape[0]} scales or zero points for an axis of {size}")
    return reshaped(parameter, (*shape, *(1,) * (rank - axis - 1)))


def _check_blocks(layer: Layer, parameter: Expr, axis: int, block: int) -> None:
    """Errors: M012 for a scale or zero point that is not one per block."""
    given, shape = parameter.tensor.shape, layer.type(0).shape
    fits = len(given) == len(shape)
    for position, (size, count) in enumerate(zip(shape, given, strict=False)):
        if position != axis:
            fits = fits and not differ(size, count)
        elif isinstance(size, int) and isinstance(count, int):
            fits = fits and -(-size // block) == count
    if not fits:
        raise layer.wrong(
            f"has a scale or zero point of type {parameter.type} "
            f"for blocks of {block} along axis {axis} of {layer.type(0)}"
        )


@converter("MatMulInteger")
def matmul_integer(layer: Layer) -> Result:
    """A product of integers minus their zero points, in i32."""
    operands = [layer.input(n) for n in range(2)]
    return integer_product(operands, [layer.optional(n) for n in (2, 3)])


def integer_product(operands: Sequence[Expr], zeros: Sequence[Expr | None]) -> Expr:
    """Returns a product of two operands minus their zero points, in i32. The first operand has one
    zero point or one per row, the second one or one per column.
    """
    less = []
    for n, (operand, zero) in enumerate(zip(operands, zeros, strict=True)):
        value = cast(operand, _SUM)
        if zero is not None:
            point = cast(zero, _SUM)
            if n == 0 and point.tensor.rank == 1 and point.tensor.shape != (1,):
                point = reshaped(point, (*point.tensor.shape, 1))
            value = call("subtract", value, point)
        less.append(value)
    return call("nn.matmul", *less)


@converter("QLinearMatMul")
def qlinear_matmul(layer: Layer) -> Result:
    """A product of dequantized operands, quantized; exact for integers, in `f32` for floats."""
    operands: list[Expr] = []
    for first in (0, 3):
        wide = _SUM if is_integer(layer.type(first).dtype) else "f32"
        value = call(
            "subtract",
            cast(layer.input(first), wide),
            _row_parameter(layer, first + 2, first, wide),
        )
        operands.append(value)
    if operands[0].tensor.dtype != operands[1].tensor.dtype:
        operands = [cast(operand, "f32") for operand in operands]
    total = call("nn.matmul", *operands)
    scales = [_row_parameter(layer, n, base, "f32") for n, base in ((1, 0), (4, 3))]
    factor = call("divide", call("multiply", *scales), reshaped(cast(layer.input(6), "f32"), ()))
    dtype, zero = layer.type(7).dtype, reshaped(layer.input(7), ())
    if is_integer(dtype) and total.tensor.dtype == _SUM:
        return requantized(layer, total, factor, zero, dtype)
    quotient = call("multiply", cast(total, "f32"), factor)
    if is_integer(dtype):
        return call("quantize", quotient, scalar(1.0, "f32"), zero, dtype=dtype)
    return cast_saturated(call("add", quotient, cast(zero, "f32")), dtype)


def _row_parameter(layer: Layer, index: int, operand: int, dtype: str) -> Expr:
    parameter = cast(layer.input(index), dtype)
    shape = parameter.tensor.shape
    if shape in ((), (1,)):
        return reshaped(parameter, ())
    if len(shape) == 1 and operand == 0:
        return reshaped(parameter, (*shape, 1))
    return parameter
