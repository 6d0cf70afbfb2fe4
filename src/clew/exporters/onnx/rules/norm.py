"""Normalization and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.exporters.onnx.registry import Writing, writes


def _scaled(w: Writing, value: str, *, gamma: int = 1, beta: int | None = None) -> str:
    """Returns a value times one argument, plus another."""
    value = w.emit("Mul", value, w.inputs[gamma])
    return value if beta is None else w.emit("Add", value, w.inputs[beta])


def _standardized(w: Writing, x: str, axes: Sequence[int]) -> str:
    """Returns a value less its mean over axes, over its standard deviation, in its own dtype."""
    over = w.integers(*axes)
    apart = w.emit("Sub", x, w.emit("ReduceMean", x, over, keepdims=1))
    variance = w.emit("ReduceMean", w.emit("Mul", apart, apart), over, keepdims=1)
    deviation = w.emit("Sqrt", w.emit("Add", variance, w.scalar(w.attrs.epsilon, x)))
    return w.emit("Div", apart, deviation)


@writes("nn.layer_norm")
def layer_norm(w: Writing) -> str:
    """`LayerNormalization`, which takes parameters of the shape of the normalized axes and computes
    in f32; others are applied after it, and f64 is written as its formula.
    """
    x, first = w.inputs[0], w.attrs.axis % w.types[0].rank
    shape = w.shape()[first:]
    beta = 2 if len(w.inputs) > 2 else None
    if w.types[0].dtype == "f64":
        value = _standardized(w, x, range(first, w.types[0].rank))
        return _scaled(w, value, beta=beta)
    attrs = {"axis": w.attrs.axis, "epsilon": w.attrs.epsilon}
    if all(w.shape(n) == shape for n in range(1, len(w.inputs))):
        return w.emit("LayerNormalization", *w.inputs, **attrs)
    ones = w.constant(np.ones(shape), w.types[0].dtype)
    return _scaled(w, w.emit("LayerNormalization", x, ones, **attrs), beta=beta)


@writes("nn.rms_norm")
def rms_norm(w: Writing) -> str:
    """`RMSNormalization`, with the limits of `LayerNormalization`."""
    x, rank = w.inputs[0], w.types[0].rank
    first = w.attrs.axis % rank
    shape = w.shape()[first:]
    if w.types[0].dtype == "f64":
        squares = w.emit(
            "ReduceMean", w.emit("Mul", x, x), w.integers(*range(first, rank)), keepdims=1
        )
        root = w.emit("Sqrt", w.emit("Add", squares, w.scalar(w.attrs.epsilon, x)))
        return _scaled(w, w.emit("Div", x, root))
    attrs = {"axis": w.attrs.axis, "epsilon": w.attrs.epsilon}
    if w.shape(1) == shape:
        return w.emit("RMSNormalization", *w.inputs, **attrs)
    ones = w.constant(np.ones(shape), w.types[0].dtype)
    return _scaled(w, w.emit("RMSNormalization", x, ones, **attrs))


def _need_plain(w: Writing, least: int) -> None:
    if w.attrs.layout != "NCHW":
        w.refuse(f"images are laid out as {w.attrs.layout}")
    if w.types[0].rank < least:
        w.refuse(f"{w.types[0]} has no spatial axes")


@writes("nn.instance_norm")
def instance_norm(w: Writing) -> str:
    """`InstanceNormalization`."""
    _need_plain(w, 3)
    return w.emit("InstanceNormalization", *w.inputs, epsilon=w.real("epsilon"))


@writes("nn.group_norm")
def group_norm(w: Writing) -> str:
    """`GroupNormalization`, which computes in f32."""
    _need_plain(w, 3)
    if w.types[0].dtype == "f64":
        w.refuse("ONNX normalizes groups in f32")
    return w.emit(
        "GroupNormalization", *w.inputs, epsilon=w.attrs.epsilon, num_groups=w.attrs.groups
    )


@writes("nn.l2_normalize")
def l2_normalize(w: Writing) -> str:
    """The input over the norm, which is at least `epsilon`; narrow floats in f32."""
    dtype = w.types[0].dtype
    x = w.cast(w.inputs[0], "f64" if dtype == "f64" else "f32")
    if not w.attrs.axes:
        norm = w.emit("Abs", x)
    else:
        norm = w.emit("ReduceL2", x, w.integers(*w.attrs.axes), keepdims=1)
    least = w.emit("Max", norm, w.scalar(w.attrs.epsilon, x))
    return w.cast(w.emit("Div", x, least), dtype)
