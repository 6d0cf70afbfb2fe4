"""ONNX Runtime's operators on quantized tensors that compute in floats: each operand is
dequantized, and the result quantized, by one scale and zero point.
"""

from __future__ import annotations

from collections.abc import Callable

from clew.frontends.building import call, cast, reshaped
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.converters.integer_conv import qlinear_conv
from clew.frontends.onnx.converters.nn import average_pool, global_average_pool
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Expr
from clew.ops.math.quantization import QUANTIZED


def one_number(layer: Layer, x: Expr, dtype: str) -> Expr:
    """Returns a scale or zero point of a whole tensor, in a dtype. Errors: M012 for several."""
    if x.tensor.shape not in ((), (1,)):
        raise layer.wrong(f"has a scale or zero point of type {x.type} for a whole tensor")
    return reshaped(cast(x, dtype), ())


def dequantized(layer: Layer, index: int) -> Expr:
    """Returns an operand in f32; its scale and zero point, if it has one, are the next inputs."""
    value, zero = layer.input(index), layer.optional(index + 2)
    points = () if zero is None else (one_number(layer, zero, value.tensor.dtype),)
    scale = one_number(layer, layer.input(index + 1), "f32")
    return call("dequantize", value, scale, *points)


def quantized(layer: Layer, value: Expr, scale: int, dtype: str) -> Expr:
    """Returns an f32 tensor as integers; input `scale` holds their scale, the next one their zero
    point, if there is one.
    """
    zero = layer.optional(scale + 1)
    if zero is not None:
        dtype = zero.tensor.dtype
        if dtype not in QUANTIZED:
            raise layer.wrong(f"cannot quantize to {dtype}")
        zero = one_number(layer, zero, dtype)
    points = () if zero is None else (zero,)
    return call(
        "quantize", value, one_number(layer, layer.input(scale), "f32"), *points, dtype=dtype
    )


def _unary(layer: Layer, compute: Callable[[Expr], Expr]) -> Expr:
    """Returns the quantized result of a function in f32 of input 0; the result's scale is
    input 3.
    """
    return quantized(layer, compute(dequantized(layer, 0)), 3, layer.type(0).dtype)


@converter("QLinearAdd", domain=MICROSOFT)
def add(layer: Layer) -> Result:
    """A sum."""
    total = call("add", dequantized(layer, 0), dequantized(layer, 3))
    return quantized(layer, total, 6, layer.type(0).dtype)


@converter("QLinearMul", domain=MICROSOFT)
def multiply(layer: Layer) -> Result:
    """A product."""
    product = call("multiply", dequantized(layer, 0), dequantized(layer, 3))
    return quantized(layer, product, 6, layer.type(0).dtype)


@converter("QLinearSigmoid", domain=MICROSOFT)
def sigmoid(layer: Layer) -> Result:
    """The logistic function."""
    return _unary(layer, lambda x: call("sigmoid", x))


@converter("QLinearLeakyRelu", domain=MICROSOFT)
def leaky_relu(layer: Layer) -> Result:
    """Negative elements times `alpha`."""
    return _unary(layer, lambda x: call("nn.leaky_relu", x, alpha=layer.real("alpha")))


@converter("QLinearSoftmax", domain=MICROSOFT)
def softmax(layer: Layer) -> Result:
    """Before opset 13 all axes from `axis` on count as one."""
    shape, axis = layer.type(0).shape, layer.axis()

    def compute(x: Expr) -> Expr:
        if layer.integer("opset") >= 13:
            return call("nn.softmax", x, axis=axis)
        rest = 1
        for size in shape[axis:]:
            rest = rest * size  # type: ignore[assignment]
        flat = reshaped(x, (*shape[:axis], rest))
        return reshaped(call("nn.softmax", flat, axis=axis), shape)

    return _unary(layer, compute)


@converter("QLinearReduceMean", domain=MICROSOFT)
def reduce_mean(layer: Layer) -> Result:
    """The mean over some axes."""
    axes = tuple(layer.positive(a, layer.rank()) for a in layer.integers("axes"))
    keep = layer.flag("keepdims")
    return _unary(layer, lambda x: call("mean", x, axes=axes, keepdims=keep))


@converter("QLinearConcat", domain=MICROSOFT)
def concat(layer: Layer) -> Result:
    """Operands, each with its own scale and zero point, requantized to one scale."""
    count, rest = divmod(len(layer.inputs) - 2, 3)
    if rest or not count:
        raise layer.wrong(f"has {len(layer.inputs)} inputs, expected a scale and zero point each")
    axis = layer.axis(rank=layer.rank(2))
    parts = [dequantized(layer, 2 + 3 * n) for n in range(count)]
    whole = parts[0] if count == 1 else call("concatenate", *parts, axis=axis)
    return quantized(layer, whole, 0, layer.type(2).dtype)


@converter("QLinearWhere", domain=MICROSOFT)
def where(layer: Layer) -> Result:
    """Elements of one of two tensors, selected by a condition."""
    chosen = call("where", layer.input(0), dequantized(layer, 1), dequantized(layer, 4))
    return quantized(layer, chosen, 7, layer.type(1).dtype)


# --- images, whose channels may come last ---------------------------------------------------------


def channels_first(x: Expr) -> Expr:
    """Returns an image with its last axis moved after the batch."""
    rank = x.tensor.rank
    return call("transpose", x, axes=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Expr) -> Expr:
    """Returns an image with the axis after the batch moved last."""
    return call("transpose", x, axes=(0, *range(2, x.tensor.rank), 1))


def of_images(layer: Layer, compute: Callable[[Layer], Result], *, last: bool) -> Expr:
    """Returns a converter's result for the layer's first input with channels first; with `last`,
    input and result have channels last.
    """
    if not last:
        return _one(compute(layer))
    if layer.rank() < 3:
        raise layer.wrong(f"takes images, got {layer.type(0)}")
    first = layer.with_inputs(channels_first(layer.input(0)), *layer.inputs[1:])
    return channels_last(_one(compute(first)))


def _one(result: Result) -> Expr:
    return result if isinstance(result, Expr) else result[0]


def _pooled(layer: Layer, compute: Callable[[Layer], Result]) -> Expr:
    def in_floats(inner: Layer) -> Expr:
        pooled = _one(compute(inner.with_inputs(dequantized(inner, 0))))
        return quantized(inner, pooled, 3, inner.type(0).dtype)

    return of_images(layer, in_floats, last=layer.flag("channels_last"))


@converter("QLinearGlobalAveragePool", domain=MICROSOFT)
def pool_all(layer: Layer) -> Result:
    """The mean over all spatial axes."""
    return _pooled(layer, global_average_pool)


@converter("QLinearAveragePool", domain=MICROSOFT)
def pool(layer: Layer) -> Result:
    """Windows' means; padding counts as the zero point."""
    return _pooled(layer, average_pool)


@converter("QLinearConv", domain=MICROSOFT)
def conv(layer: Layer) -> Result:
    """ONNX's QLinearConv, whose channels may come last."""
    return of_images(layer, qlinear_conv, last=layer.flag("channels_last"))
