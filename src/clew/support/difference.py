"""Differences between a result and its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def largest(a: Any, b: Any, compare: Callable[[Any, Any], float]) -> float:
    """Returns the largest difference of corresponding tensors in two values: tensors, sequences of
    values, maps to them, or None. Infinite if the values have different parts.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return math.inf
        return max((largest(a[key], b[key], compare) for key in a), default=0.0)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if len(a) != len(b):
            return math.inf
        return max((largest(x, y, compare) for x, y in zip(a, b, strict=True)), default=0.0)
    several = (Mapping, tuple, list)
    if isinstance(a, several) or isinstance(b, several) or (a is None) != (b is None):
        return math.inf
    return 0.0 if a is b else compare(a, b)


def relative_error(value: Any, reference: Any) -> float:
    """Returns the largest difference of tensors in two values, relative to the largest magnitude in
    that of `reference`.

    Infinite if parts, shapes, NaN or infinities differ, or there is no value.
    """
    return largest(value, reference, _relative_error)


def _relative_error(value: Any, reference: Any) -> float:
    a, b = np.asarray(value), np.asarray(reference)
    if a.shape != b.shape:
        return float("inf")
    if b.dtype.kind not in "fciubV":
        return 0.0 if np.array_equal(a, b) else float("inf")
    wide = wide_dtype(a, b)
    x, y = a.astype(wide), b.astype(wide)
    finite = np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(x[finite]).all():
        return float("inf")
    error = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
    scale = float(np.abs(y[finite]).max(initial=0.0))
    return error / scale if scale else error


def wide_dtype(a: Any, b: Any) -> Any:
    """Returns the dtype in which to compare arrays of numbers."""
    return np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64


def relative_length(value: Any, reference: Any) -> float:
    """Returns the Euclidean length of the difference over that of `reference`.

    Ignores infinities common to both; infinite if infinities differ or there is NaN.
    """
    a, b = np.asarray(value), np.asarray(reference)
    wide = wide_dtype(a, b)
    x, y = a.astype(wide), b.astype(wide)
    same = np.isinf(y) & (x == y)
    if same.any():
        x, y = x[~same], y[~same]
    difference, length = np.linalg.norm(x - y), np.linalg.norm(y)
    found = float(difference / length) if length else float(difference)
    return found if math.isfinite(found) else math.inf
