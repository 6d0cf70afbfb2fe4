"""Conversions between dtypes in NumPy with the semantics of native code, defined for all
numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.ir.types import STORAGE, bits, from_numpy, is_float, is_integer, to_numpy

Array = np.ndarray[Any, Any]


def convert(array: Array, dtype: str) -> Array:
    """Returns an array in another dtype. Floats are rounded once, to nearest even.

    Floats to integers truncate; values out of range give the result of x86: the lowest `i32` or
    `i64`, also for NaN; shorter integers are the lowest bits of an `i32`, and `u32` those of an
    `i64`. Integers wrap.
    """
    array = np.asarray(array)
    source, wanted = from_numpy(array.dtype), to_numpy(dtype)
    if source == dtype:
        return array
    if bits(source) < 8:  # ml_dtypes also reads the bits above a code
        codes = np.array(array, order="C").view(np.uint8) & np.uint8(2 ** bits(source) - 1)
        array = codes.view(array.dtype)
    with np.errstate(all="ignore"):
        if is_float(source) and is_integer(dtype):
            return _to_integers(array.astype(np.float64), dtype)
        if source == "f64" and (dtype in STORAGE or dtype == "bf16"):
            return round_to_odd(array).astype(wanted)  # ml_dtypes would round to f32 first
        if is_integer(source) and dtype in STORAGE and is_integer(dtype):
            return _lowest_bits(array, dtype)
        if dtype == "bool" and source in STORAGE:
            return np.asarray(array.astype(np.float32) != 0)
        if is_integer(source) and source in STORAGE:
            array = array.astype(np.int8)  # ml_dtypes converts only to few dtypes
        elif source in STORAGE:
            array = array.astype(np.float32)
        if source == "bool" and dtype in STORAGE:
            array = array.astype(np.float32 if is_float(dtype) else np.int8)
        elif is_integer(source) and is_float(dtype) and dtype in STORAGE:
            array = array.astype(np.float32)
        converted: Array = array.astype(wanted)
    return converted


def round_to_odd(array: Array) -> Array:
    """Returns `f64` as `f32`, rounded to odd, so that a second rounding equals a single one."""
    near = array.astype(np.float32)
    back = near.astype(np.float64)
    away, inexact = np.abs(back) > np.abs(array), (back != array) & ~np.isnan(array)
    pattern: Array = (near.view(np.uint32) - away.astype(np.uint32)) | inexact.astype(np.uint32)
    return pattern.view(np.float32)


def _to_integers(number: Array, dtype: str) -> Array:
    if dtype == "u64":
        large = number >= 2.0**63
        low = _truncated(np.where(large, number - 2.0**63, number), 64).view(np.uint64)
        return np.where(large, low ^ np.uint64(1 << 63), low)
    whole = _truncated(number, 64 if dtype in ("u32", "i64") else 32)
    return _lowest_bits(whole, dtype) if dtype in STORAGE else whole.astype(to_numpy(dtype))


def _truncated(number: Array, width: int) -> Array:
    limit = 2.0 ** (width - 1)
    inside = np.where(np.abs(number) < limit, number, -limit)
    return inside.astype(np.int64 if width == 64 else np.int32)


def _lowest_bits(array: Array, dtype: str) -> Array:
    whole = array.astype(np.int8) if bits(from_numpy(array.dtype)) < 8 else array
    return (whole.astype(np.uint8) & np.uint8(2 ** bits(dtype) - 1)).view(to_numpy(dtype))
