"""How far a result is from its reference."""

from __future__ import annotations

from typing import Any

import numpy as np


def relative_error(value: Any, reference: Any) -> float:
    """Returns the largest difference, relative to the largest magnitude in `reference`.

    Infinite where shapes, NaN or infinities differ, or there is no value.
    """
    if value is None:
        return float("inf")
    a, b = np.asarray(value), np.asarray(reference)
    if a.shape != b.shape:
        return float("inf")
    if b.dtype.kind not in "fiubV":
        return 0.0 if np.array_equal(a, b) else float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(x[finite]).all():
        return float("inf")
    error = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
    scale = float(np.abs(y[finite]).max(initial=0.0))
    return error / scale if scale else error
