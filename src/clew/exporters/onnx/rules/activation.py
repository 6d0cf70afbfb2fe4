"""Elementwise activation functions."""

from __future__ import annotations

import numpy as np

from clew.exporters.onnx.registry import Writing, writes


@writes("nn.relu")
def relu(w: Writing) -> str:
    """`Relu`, which is not defined for unsigned integers: these do not change."""
    return w.emit("Identity" if w.types[0].dtype[0] == "u" else "Relu", *w.inputs)


@writes("nn.silu")
def silu(w: Writing) -> str:
    """`Swish` with `alpha` 1."""
    return w.emit("Swish", *w.inputs, alpha=1.0)


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
