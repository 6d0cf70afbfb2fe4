"""Attention as its formula, which engines recognize."""

from __future__ import annotations

import math

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ops.math.attention import AXES


@writes("nn.attention")
def attention(w: Writing) -> str:
    """Products around a softmax. Narrow floats are computed in f32, as sums of them are."""
    attrs = w.attrs
    layouts = (attrs.q_layout, attrs.k_layout, attrs.v_layout)
    sizes = [dict(zip(o, w.shape(n), strict=True)) for n, o in enumerate(layouts)]
    heads, groups = sizes[0]["H"], sizes[1]["H"]
    dtype = "f64" if w.types[0].dtype == "f64" else "f32"
    operands = list(w.inputs[:3])
    for n, scales in zip((1, 2), w.inputs[4:], strict=False):  # of codes
        operands[n] = w.emit("Mul", w.cast(operands[n], dtype), scales)
    q, k, v = (
        w.cast(w.transposed(x, [layout.index(a) for a in axes]), dtype)
        for x, layout, axes in zip(operands, layouts, (AXES, "BHDS", AXES), strict=True)
    )
    if heads != groups:
        k, v = (_spread(w, x, heads // groups, n) for n, x in ((1, k), (2, v)))
    width = sizes[0]["D"]
    factor = attrs.scale or 1 / math.sqrt(width)
    scores = w.emit("Mul", w.emit("MatMul", q, k), w.scalar(factor, q))
    for bias in _biases(w, dtype, sizes[0]["S"], sizes[1]["S"]):
        scores = w.emit("Add", scores, bias)
    weights = w.emit("Softmax", scores, axis=-1)
    if attrs.guard:
        zero = w.scalar(0, weights)
        if attrs.guard == "nan":
            masked = w.emit("IsNaN", weights)
        else:
            top = w.emit("ReduceMax", scores, w.integers(-1), keepdims=1)
            masked = w.emit("IsInf", top, detect_positive=0)
        weights = w.emit("Where", masked, zero, weights)
    order = [AXES.index(a) for a in attrs.layout]
    return w.cast(w.transposed(w.emit("MatMul", weights, v), order), w.type.dtype)


def _spread(w: Writing, x: str, repeats: int, n: int) -> str:
    """Returns keys or values with each head repeated for the query heads that share it."""
    layout = (w.attrs.k_layout, w.attrs.v_layout)[n - 1]
    sizes = dict(zip(layout, w.shape(n), strict=True))
    rest = [sizes[a] for a in ("DS" if n == 1 else "SD")]
    batch, heads = sizes["B"], sizes["H"]
    apart = w.emit("Reshape", x, w.integers(batch, heads, 1, *rest))
    wide = w.emit("Expand", apart, w.integers(batch, heads, repeats, *rest))
    return w.emit("Reshape", wide, w.integers(batch, heads * repeats, *rest))


def _biases(w: Writing, dtype: str, rows: int, columns: int) -> list[str]:
    """Returns the terms that are added to the scores."""
    found = []
    if len(w.inputs) > 3:
        mask = w.inputs[3]
        if w.types[3].dtype == "bool":
            none = w.constant(np.asarray(0), dtype)
            mask = w.emit("Where", mask, none, w.constant(np.asarray(-math.inf), dtype))
        found.append(w.cast(mask, dtype))
    if w.attrs.causal:
        later = np.arange(columns) > np.arange(rows)[:, None]
        found.append(w.constant(np.where(later, -math.inf, 0.0), dtype))
    return found
