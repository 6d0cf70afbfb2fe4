"""ONNX Runtime's products of quantized tensors, with fused scales, biases and epilogues."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, reshaped, scalar
from clew.frontends.lowering.recurrent import Product
from clew.frontends.onnx.contrib.attention import with_projected
from clew.frontends.onnx.contrib.qlinear import one_number
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.converters.quantized import integer_product, requantized
from clew.frontends.onnx.converters.recurrent import lstm_with, of_direction, recurrent_size
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Expr
from clew.ops.math.quantization import quantized_in_own_range


def scaled_product(
    operands: Sequence[Expr], zeros: Sequence[Expr | None], scales: Sequence[Expr]
) -> Expr:
    """Returns a product of quantized operands in f32: the exact product, then times both scales."""
    shaped = [reshaped(s, ()) if s.tensor.shape == (1,) else s for s in scales]
    return call("dequantize", integer_product(operands, zeros), call("multiply", *shaped))


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(layer: Layer) -> Result:
    """A product of an f32 tensor, quantized in each run, and a quantized weight."""
    data, scale, point = quantized_in_own_range(layer.input(0))
    operands, scales = [data, layer.input(1)], [scale, layer.input(2)]
    return _plus(layer, scaled_product(operands, [point, layer.optional(3)], scales), 4)


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(layer: Layer) -> Result:
    """MatMulInteger, times scales, plus a bias."""
    zeros = [layer.optional(4), layer.optional(5)]
    operands, scales = ([layer.input(n) for n in pair] for pair in ((0, 1), (2, 3)))
    return _plus(layer, scaled_product(operands, zeros, scales), 6)


def _plus(layer: Layer, x: Expr, index: int) -> Expr:
    bias = layer.optional(index)
    return x if bias is None else call("add", x, bias)


@converter("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(layer: Layer) -> Result:
    """A product of 16-bit integers, in i32."""
    return integer_product([layer.input(0), layer.input(1)], [None, None])


@converter("QGemm", domain=MICROSOFT)
def qgemm(layer: Layer) -> Result:
    """`alpha * (A' * B' + C)`, quantized if a scale for that is given, else in f32."""
    if layer.rank(0) != 2 or layer.rank(3) != 2:
        raise layer.wrong(f"multiplies {layer.type(0)} by {layer.type(3)}, expected matrices")
    a, b = (
        call("transpose", layer.input(n), axes=(1, 0)) if layer.flag(name) else layer.input(n)
        for n, name in ((0, "transA"), (3, "transB"))
    )
    total = integer_product([a, b], [layer.input(2), layer.input(5)])
    if (bias := layer.optional(6)) is not None:
        total = call("add", total, bias)
    scale = call("multiply", one_number(layer, layer.input(1), "f32"), layer.input(4))
    if (alpha := layer.real("alpha")) != 1.0:
        scale = call("multiply", scale, scalar(alpha, "f32"))
    if layer.optional(7) is None:
        return call("dequantize", total, scale)
    scale = call("divide", scale, one_number(layer, layer.input(7), "f32"))
    zero = layer.optional(8)
    dtype = layer.type(0).dtype if zero is None else zero.tensor.dtype
    zero = None if zero is None else one_number(layer, zero, dtype)
    return requantized(layer, total, scale, zero, dtype)


@converter("QAttention", domain=MICROSOFT)
def qattention(layer: Layer) -> Result:
    """Attention whose input and weight are quantized."""
    if layer.rank(0) != 3 or layer.rank(1) != 2:
        raise layer.wrong(f"multiplies {layer.type(0)} by {layer.type(1)}")
    operands, scales, zeros = (
        [layer.input(0), layer.input(1)],
        [layer.input(3), layer.input(4)],
        [layer.optional(6), layer.optional(7)],
    )
    made = call("add", scaled_product(operands, zeros, scales), layer.input(2))
    return with_projected(layer, made, mask=5, past=8)


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(layer: Layer) -> Result:
    """LSTM with quantized weights, [directions, inputs, 4 * hidden]. Its other operands are
    quantized for each product.
    """

    def product(direction: int, weight: int, scale: int) -> Product:
        parameters = [of_direction(layer.input(n), direction) for n in (weight, scale, scale + 1)]

        def multiply(x: Expr, held: Sequence[Expr]) -> Expr:
            data, factor, point = quantized_in_own_range(x)
            return scaled_product([data, held[0]], [point, held[2]], [factor, held[1]])

        return Product(tuple(parameters), multiply)

    hidden = recurrent_size(layer, 1)
    return lstm_with(layer, hidden, lambda d: (product(d, 1, 8), product(d, 2, 10)))
