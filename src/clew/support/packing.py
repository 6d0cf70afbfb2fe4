"""Numbers of 4 bits, two to a byte, the first in the lower half."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def packed_halves(numbers: Array) -> Array:
    """Returns the lower 4 bits of integers `[..., K]`, as bytes `[..., (K + 1) // 2]`."""
    low = numbers.astype(np.uint8) & 15
    if low.shape[-1] % 2:
        low = np.concatenate([low, np.zeros((*low.shape[:-1], 1), np.uint8)], axis=-1)
    found: Array = low[..., ::2] | low[..., 1::2] << 4
    return found


def unpacked_halves(packed: Array, count: int) -> Array:
    """Returns the first `count` numbers of each row of bytes, unsigned."""
    halves = np.stack([packed & 15, packed >> 4], axis=-1)
    found: Array = halves.reshape(*packed.shape[:-1], -1)[..., :count]
    return found
