"""Compares the outputs of two programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.visit import post_order

_FLOATS: Final = 1e-3
"""The largest difference of outputs in floats, relative to the largest magnitude. Engines sum in
different orders and choose different algorithms of convolution."""
_QUANTIZED: Final = 0.05
"""The same for models that quantize values: a sum that rounds to the next code moves an output by a
step of its scale."""
_INTEGERS: Final = 1
"""The largest difference of 8-bit integers: engines round ties of quantization differently."""
_ROUNDING: Final = frozenset({"quantize", "requantize", "fake_quantize", "round_blocks"})
_MOST_ROUNDED: Final = 0.02  # the share of 8-bit integers that may differ


def tolerance_for(module: Module) -> float:
    """Returns the largest difference of a module's outputs between engines, relative to the
    largest magnitude.
    """
    nodes = post_order([f for _, f in module], into_functions=True)
    ops = {n.op_name for n in nodes if isinstance(n, Call)}
    return _FLOATS if ops.isdisjoint(_ROUNDING) else _QUANTIZED


def disagreement(found: Sequence[Any], expected: Sequence[Any], tolerance: float = _FLOATS) -> str:
    """Returns how outputs differ from those expected; empty if they agree. `tolerance` is for
    floats, relative to the largest magnitude; integers of more than 8 bits must be equal.
    """
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(one), np.asarray(other)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {number} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        if b.dtype.kind in "iu" and b.dtype.itemsize == 1:
            off = np.abs(a.astype(np.int32) - b)
            if off.max(initial=0) > _INTEGERS or np.mean(off > 0) > _MOST_ROUNDED:
                return f"output {number} differs by up to {off.max()}"
        elif b.dtype.kind in "iubUSOT":
            if not np.array_equal(a, b):
                return f"output {number} differs"
        else:
            error = _relative(a.astype(np.float64), b.astype(np.float64))
            if not error <= tolerance:
                return f"output {number} differs by {error:.2g} of the largest value"
    return ""


def _relative(a: Any, b: Any) -> float:
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    largest = float(np.abs(b).max(initial=0.0))
    return float(np.abs(a - b).max(initial=0.0)) / largest if largest else float(np.any(a != b))
