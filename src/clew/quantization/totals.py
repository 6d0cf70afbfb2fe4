"""Sums and extremes of large tensors by channel, in few passes over memory and without copies."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_RUN: Final = 4096  # numbers along a row that are added in f32 before their sum becomes f64
_ROWS: Final = 256  # as many along a column, which are added one after the other


def channels_first(value: Any, axis: int) -> Array:
    """Returns a tensor, whose channels are on an axis counted from the end, as `[outer, channels,
    inner]`: a view, except of numbers in fewer than 32 bits, which become f32.
    """
    array = np.asarray(value)
    array = array if array.dtype == np.float64 else array.astype(np.float32, copy=False)
    array = array.reshape(1) if not array.ndim else array
    outer, channels = array.shape[:axis], array.shape[axis]
    inner = array.shape[array.ndim + axis + 1 :]
    return array.reshape(int(np.prod(outer)), channels, int(np.prod(inner)))


def lowest(rows: Array) -> Array:
    """Returns the smallest number of each channel of `[outer, channels, inner]`."""
    found: Array = rows.min(axis=2).min(axis=0) if rows.shape[2] > 1 else rows[:, :, 0].min(axis=0)
    return found


def highest(rows: Array) -> Array:
    """Returns the largest number of each channel of `[outer, channels, inner]`."""
    found: Array = rows.max(axis=2).max(axis=0) if rows.shape[2] > 1 else rows[:, :, 0].max(axis=0)
    return found


def totals(rows: Array) -> Array:
    """Returns the sum of each channel of `[outer, channels, inner]` in f64."""
    if rows.shape[2] > 1:
        found: Array = rows.sum(axis=2).sum(axis=0, dtype=np.float64)  # in pairs
        return found
    sums = np.stack([p.sum(axis=0) for p in _parts(rows)])
    return np.asarray(sums.sum(axis=0, dtype=np.float64))


def squared(rows: Array) -> Array:
    """Returns the sum of squares of each channel of `[outer, channels, inner]` in f64."""
    if rows.shape[2] > 1:
        found = np.zeros(rows.shape[1])
        for first in range(0, rows.shape[2], _RUN):
            part = rows[:, :, first : first + _RUN]
            found += np.einsum("ock,ock->oc", part, part).sum(axis=0, dtype=np.float64)
        return found
    sums = np.stack([np.einsum("oc,oc->c", p, p) for p in _parts(rows)])
    return np.asarray(sums.sum(axis=0, dtype=np.float64))


def total(numbers: Array) -> float:
    """Returns the sum of numbers in f64."""
    return float(np.sum(numbers, dtype=np.float64))


def _parts(rows: Array) -> list[Array]:
    flat = rows[:, :, 0]
    return [flat[n : n + _ROWS] for n in range(0, max(len(flat), 1), _ROWS)]
