"""Differences between a result and its reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def relative_error(value: Any, reference: Any) -> float:
    """Returns the largest difference, relative to the largest magnitude in `reference`.

    Infinite if shapes, NaN or infinities differ, or there is no value.
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


def relative_length(value: Any, reference: Any) -> float:
    """Returns the Euclidean length of the difference over that of `reference`.

    Ignores infinities common to both; infinite if infinities differ or there is NaN.
    """
    x, y = np.asarray(value).astype(np.float64), np.asarray(reference).astype(np.float64)
    same = np.isinf(y) & (x == y)
    if same.any():
        x, y = x[~same], y[~same]
    difference, length = np.linalg.norm(x - y), np.linalg.norm(y)
    found = float(difference / length) if length else float(difference)
    return found if math.isfinite(found) else math.inf
