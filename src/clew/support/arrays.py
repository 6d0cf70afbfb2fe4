"""Aligned, contiguous arrays for native code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

ALIGNMENT_BYTES: Final = 64
"""One cache line, and the widest vector."""


def number_dtype(name: Any) -> np.dtype[Any]:
    """Returns the dtype with a name, such as `float32`, or a dtype itself. Raises `TypeError` for
    an unknown name.

    The package of narrow floats and integers, whose names NumPy then knows, is imported for them.
    """
    found: np.dtype[Any]
    try:
        found = np.dtype(name)
    except TypeError:
        with LOADING, held_interrupts():
            import ml_dtypes  # noqa: F401, PLC0415
        found = np.dtype(name)
    return found


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Returns an uninitialized C-contiguous array aligned to a cache line."""
    kind = np.dtype(dtype)
    size_bytes = math.prod(shape) * kind.itemsize
    room = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    array: np.ndarray[Any, Any] = room[start : start + size_bytes].view(kind).reshape(shape)
    return array


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array in the machine's byte order: the same array if it already is."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array C-contiguous and aligned: the same array if it already is."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT_BYTES == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
