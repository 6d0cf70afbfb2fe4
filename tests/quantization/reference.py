"""Quantized layers in NumPy: integers of weights and operands, and results of sums of products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.quantization import Scheme
from clew.quantization.parameters import Parameters

Array = NDArray[Any]


def weight_integers(w: Array, axis: int, scheme: Scheme) -> tuple[Array, Array, Array]:
    """Returns the integers, scales and zero points of `minmax` weights."""
    rows = np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1).astype(np.float64)
    rows = rows.reshape(1, -1) if scheme.granularity == "tensor" else rows
    low, high = scheme.weight_limits
    if scheme.weights == "i8":
        scales, zeros = np.abs(rows).max(1) / high, np.zeros(len(rows))
    else:
        least, most = np.minimum(rows.min(1), 0), np.maximum(rows.max(1), 0)
        scales = (most - least) / (high - low)
        zeros = np.clip(np.rint(low - least / scales), low, high)
    along = [1] * w.ndim
    along[axis] = -1
    s, z = scales.astype("f").reshape(along), zeros.reshape(along)
    return np.clip(np.rint(w / s) + z, low, high), scales.astype("f"), zeros


def data_integers(x: Array, p: Parameters) -> Array:
    """Returns the integers of an operand, less the zero point."""
    assert p.grid is not None
    low, high = {"u8": (0, 255), "i8": (-128, 127)}[p.grid.dtype]
    steps = np.clip(np.rint(x / np.float32(p.grid.scale)) + p.grid.zero, low, high)
    found: Array = steps.astype(np.int64) - p.grid.zero
    return found


def convolved(x: Array, w: Array, stride: int, pad: int, groups: int) -> Array:
    """Returns the sums [N, H, W, O] of a convolution of integers [N, C, H, W]."""
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    taps = w.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    parts = [
        np.einsum("nchwij,ocij->nhwo", some, k)
        for some, k in zip(np.split(windows, groups, 1), np.split(w, groups), strict=True)
    ]
    return np.concatenate(parts, -1)


def expected(sums: Array, p: Parameters, scales: Array, bias: Array | None) -> Array:
    """Returns a layer's result for sums of products of integers, channels last."""
    assert p.grid is not None
    scale = (np.float32(p.grid.scale) * scales).astype("f")
    if bias is not None:
        sums = sums + np.rint(bias.astype(np.float64) / scale).astype(np.int64)
    found: Array = sums.astype("f") * scale
    return found
