"""ONNX Runtime's activations, also with a bias before them, and operators that predate ONNX's.

An operator that equals one of ONNX's in another domain uses ONNX's converter.
"""

from __future__ import annotations

from clew.frontends.building import call, filled, reshaped
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Expr


@converter("Gelu", domain=MICROSOFT)
def gelu(layer: Layer) -> Result:
    """The exact GELU."""
    return call("nn.gelu", layer.input(0), approximate="none")


@converter("BiasGelu", domain=MICROSOFT)
def bias_gelu(layer: Layer) -> Result:
    """The exact GELU of a sum."""
    return call("nn.gelu", call("add", layer.input(0), layer.input(1)), approximate="none")


@converter("FastGelu", domain=MICROSOFT)
def fast_gelu(layer: Layer) -> Result:
    """GELU by tanh, of a sum if there is a bias."""
    x, bias = layer.input(0), layer.optional(1)
    return call("nn.gelu", x if bias is None else call("add", x, bias), approximate="tanh")


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(layer: Layer) -> Result:
    """`x * sigmoid(alpha * x)`."""
    return call("nn.swish", layer.input(0), alpha=layer.real("alpha"))


@converter("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(layer: Layer) -> Result:
    """The first half of the last axis of a sum, times the GELU of the second."""
    total = call("add", layer.input(0), layer.input(1))
    axis, width = total.tensor.rank - 1, total.tensor.shape[-1]
    if isinstance(width, int) and width % 2:
        raise layer.wrong(f"halves an axis of {width}")

    def part(begin: object, end: object) -> Expr:
        return call("slice", total, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))

    gate = call("nn.gelu", part(width // 2, width), approximate="none")
    return call("multiply", part(0, width // 2), gate)


@converter("BiasAdd", domain=MICROSOFT)
def bias_add(layer: Layer) -> Result:
    """`x + bias + skip`."""
    return call("add", call("add", layer.input(0), layer.input(1)), layer.input(2))


@converter("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(layer: Layer) -> Result:
    """A softmax of a sum, over the axes from `axis` on.

    A bias without the middle axes (such as the heads of a mask) has them with size 1 or not at all:
    `is_inner_broadcast`: whether the missing axes follow those that it has.
    """
    x, bias = layer.input(0), layer.input(1)
    axis, shape = layer.axis(), x.tensor.shape
    if layer.flag("is_inner_broadcast") and bias.tensor.rank < len(shape):
        missing = len(shape) - bias.tensor.rank
        lead = axis - missing
        if lead < 0:
            raise layer.wrong(f"adds {bias.type} to {x.type}")
        sizes = bias.tensor.shape
        bias = reshaped(bias, (*sizes[:lead], *(1,) * missing, *sizes[lead:]))
    total = call("add", x, bias)
    if axis == len(shape) - 1:
        return call("nn.softmax", total, axis=axis)
    rows = 1
    for size in shape[axis:]:
        rows = rows * size  # type: ignore[assignment]
    flat = call("nn.softmax", reshaped(total, (*shape[:axis], rows)), axis=axis)
    return reshaped(flat, shape)


@converter("BiasDropout", domain=MICROSOFT)
def bias_dropout(layer: Layer) -> Result:
    """`x + bias + residual`: a dropout in inference passes its input on."""
    mode = layer.optional(4)
    if mode is not None and layer.known_one(4) is not False:
        raise layer.unsupported("in training mode")
    total = call("add", layer.input(0), layer.input(1))
    if (residual := layer.optional(2)) is not None:
        total = call("add", total, residual)
    return [total, filled(True, "bool", total.tensor.shape)]
