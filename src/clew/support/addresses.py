"""Addresses of arrays."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

# In CPython, the address of an array's elements follows the head of its object.
# Source: NumPy C API, `PyArrayObject_fields`.
_DATA: Final = object.__basicsize__
_word_at: Final = ctypes.c_int64.from_address


def _has_layout() -> bool:
    """Whether the objects of arrays have this layout."""
    whole = np.zeros(4, np.uint8)
    return sys.implementation.name == "cpython" and all(
        _word_at(id(array) + _DATA).value == array.ctypes.data for array in (whole, whole[1:])
    )


HAS_LAYOUT: Final = _has_layout()
"""Whether the address of an array's elements is the word behind the head of its object."""


def address_of(array: np.ndarray) -> int:
    """Returns the address of an array's first element."""
    if HAS_LAYOUT and isinstance(array, np.ndarray):  # faster than `ctypes.data`
        return _word_at(id(array) + _DATA).value
    return array.ctypes.data


def write_addresses(arrays: Sequence[np.ndarray], words: ctypes.Array[ctypes.c_int64]) -> int:
    """Writes the addresses of arrays, none of a subclass of `ndarray`, to the first words. Returns
    the number of arrays.
    """
    position = 0
    for array in arrays:
        words[position] = _word_at(id(array) + _DATA).value if HAS_LAYOUT else array.ctypes.data
        position += 1
    return position
