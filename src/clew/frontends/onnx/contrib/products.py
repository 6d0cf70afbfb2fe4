"""ONNX Runtime's products and convolutions with a fused activation, factor or sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from clew.frontends.building import call, scalar
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.converters.nn import conv, gemm
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr

# Each operator's attributes, with their defaults.
_ACTIVATIONS: Final[dict[str, tuple[str, dict[str, float]]]] = {
    "Relu": ("nn.relu", {}),
    "Tanh": ("tanh", {}),
    "Sigmoid": ("sigmoid", {}),
    "LeakyRelu": ("nn.leaky_relu", {"alpha": 0.01}),
    "Clip": ("clip", {"min": -3.4028234663852886e38, "max": 3.4028234663852886e38}),
    "HardSigmoid": ("nn.hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": ("nn.hard_swish", {}),
    "Elu": ("nn.elu", {"alpha": 1.0}),
    "Softplus": ("nn.softplus", {}),
    "Softsign": ("nn.softsign", {}),
    "ThresholdedRelu": ("nn.thresholded_relu", {"alpha": 1.0}),
    "Gelu": ("nn.gelu", {}),
    "QuickGelu": ("nn.swish", {"alpha": 1.702}),
    "Silu": ("nn.silu", {}),
}


def activated(layer: Layer, x: Expr, given: Sequence[float | None]) -> Expr:
    """Returns a result with the layer's activation, if any; `given` are its parameters in order,
    None or missing for defaults.
    """
    name = layer.text("activation")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise layer.unsupported(f"with the activation {name!r}")
    op, defaults = _ACTIVATIONS[name]
    if len(given) > len(defaults) and any(g is not None for g in given[len(defaults) :]):
        raise layer.wrong(f"has {len(given)} parameters for {name}")
    padded = [*given, *[None] * len(defaults)]
    values = {
        key: default if value is None else value
        for (key, default), value in zip(defaults.items(), padded, strict=False)
    }
    return call(op, x, **values)


def fused_conv(layer: Layer, made: Callable[[Layer], Result] = conv) -> Expr:
    """Returns a convolution with its bias, plus a tensor of its shape (input 3), activated."""
    result = made(layer)
    assert isinstance(result, Expr)
    if (added := layer.optional(3)) is not None:
        result = call("add", result, added)
    return activated(layer, result, layer.reals("activation_params"))


@converter("FusedConv", domain=MICROSOFT)
def fused_convolution(layer: Layer) -> Result:
    """`activation(conv(x) + z)`."""
    return fused_conv(layer)


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(layer: Layer) -> Result:
    """Gemm and an activation."""
    result = gemm(layer)
    assert isinstance(result, Expr)
    return activated(layer, result, _parameters(layer))


def _parameters(layer: Layer) -> list[float | None]:
    """Returns the activation's parameters, which are attributes by name."""
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    return [layer.real(name) if layer.has(name) else None for name in names]


@converter("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(layer: Layer) -> Result:
    """`alpha * A' * B'`, with the last two axes of either operand swapped, or its first axis moved
    before the last: with `transBatchA` an operand is [K, batch..., M] instead of [batch..., M, K].
    """
    a, b = _turned(layer, 0, "A"), _turned(layer, 1, "B")
    known = isinstance(b, Constant) and b.tensor.rank == 2 and a.tensor.rank >= 2
    if known and b is layer.input(1):
        result = call("nn.dense", a, b, weight_layout="KN")
    elif layer.rank(1) == 2 and isinstance(layer.input(1), Constant) and a.tensor.rank >= 2:
        result = call("nn.dense", a, layer.input(1), weight_layout="NK")
    else:
        result = call("nn.matmul", a, b)
    if (alpha := layer.real("alpha")) != 1.0:
        result = call("multiply", result, scalar(alpha, result.tensor.dtype))
    return result


def _turned(layer: Layer, index: int, letter: str) -> Expr:
    """Returns an operand with its axes in the product's order."""
    x, rank = layer.input(index), layer.rank(index)
    order = list(range(rank))
    name = f"transBatch{letter}"
    if name in layer.schema.attributes and layer.flag(name) and rank > 2:
        order = [*order[1 : rank - 1], order[0], order[rank - 1]]
    if layer.flag(f"trans{letter}") and rank > 1:
        order[-2:] = order[-1], order[-2]
    return x if order == list(range(rank)) else call("transpose", x, axes=tuple(order))


@converter("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(layer: Layer) -> Result:
    """FusedMatMul and an activation, which may be a softmax."""
    result = fused_matmul(layer)
    assert isinstance(result, Expr)
    if layer.text("activation") == "Softmax":
        axis = layer.positive(layer.integer("activation_axis", -1), result.tensor.rank)
        return call("nn.softmax", result, axis=axis)
    return activated(layer, result, _parameters(layer))
