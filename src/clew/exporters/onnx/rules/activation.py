"""Elementwise activation functions."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.exporters.onnx.registry import Rule, Writing, writes
from clew.exporters.onnx.rules.unary import direct

_DIRECT: Final = {
    "nn.hard_swish": "HardSwish",
    "nn.mish": "Mish",
    "nn.prelu": "PRelu",
    "nn.softplus": "Softplus",
    "nn.softsign": "Softsign",
}
_WITH_ALPHA: Final = {
    "nn.elu": "Elu",
    "nn.leaky_relu": "LeakyRelu",
    "nn.swish": "Swish",
    "nn.thresholded_relu": "ThresholdedRelu",
}


def _with_alpha(op: str) -> Rule:
    return lambda w: w.emit(op, *w.inputs, alpha=w.real("alpha"))


for _name, _op in _DIRECT.items():
    writes(_name)(direct(_op))
for _name, _op in _WITH_ALPHA.items():
    writes(_name)(_with_alpha(_op))


@writes("nn.relu")
def relu(w: Writing) -> str:
    """`Relu`, which is not defined for unsigned integers: these do not change."""
    return w.emit("Identity" if w.types[0].dtype[0] == "u" else "Relu", *w.inputs)


@writes("nn.silu")
def silu(w: Writing) -> str:
    """`Swish` with `alpha` 1."""
    return w.emit("Swish", *w.inputs, alpha=1.0)


@writes("nn.selu")
def selu(w: Writing) -> str:
    """`Selu`."""
    return w.emit("Selu", *w.inputs, alpha=w.real("alpha"), gamma=w.real("gamma"))


@writes("nn.celu")
def celu(w: Writing) -> str:
    """`alpha * Elu(x / alpha)`: `Celu` is defined for f32 only."""
    (x,), alpha = w.inputs, w.real("alpha")
    if w.types[0].dtype == "f32":
        return w.emit("Celu", x, alpha=alpha)
    if alpha == 1.0:
        return w.emit("Elu", x, alpha=1.0)
    if alpha <= 0:
        w.refuse(f"alpha={alpha}")
    factor = w.constant(np.asarray(alpha), w.types[0].dtype)
    return w.emit("Mul", w.emit("Elu", w.emit("Div", x, factor), alpha=1.0), factor)


@writes("nn.gelu")
def gelu(w: Writing) -> str:
    """`Gelu`, also where a lower accuracy suffices."""
    return w.emit("Gelu", *w.inputs, approximate=w.attrs.approximate)


@writes("nn.hard_sigmoid")
def hard_sigmoid(w: Writing) -> str:
    """`HardSigmoid`."""
    return w.emit("HardSigmoid", *w.inputs, alpha=w.real("alpha"), beta=w.real("beta"))


@writes("nn.shrink")
def shrink(w: Writing) -> str:
    """`Shrink`."""
    return w.emit("Shrink", *w.inputs, lambd=w.real("lambd"), bias=w.real("bias"))
