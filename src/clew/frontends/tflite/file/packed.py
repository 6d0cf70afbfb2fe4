"""Elements of constants as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.ir.types import bits, to_numpy


def unpacked(data: NDArray[np.uint8], dtype: str, count: int) -> NDArray[Any] | None:
    """Returns `count` elements, which share the bytes where possible; None if the bytes hold
    another number of elements.
    """
    if dtype == "str":
        return _texts(data, count)
    if bits(dtype) == 4:
        return _nibbles(data, dtype, count)
    target = to_numpy(dtype)
    if data.size != count * target.itemsize:
        return None
    aligned = data.ctypes.data % target.itemsize == 0
    return (data if aligned else data.copy()).view(target)


def _nibbles(data: NDArray[np.uint8], dtype: str, count: int) -> NDArray[Any] | None:
    """Unpacks 4-bit integers, two per byte, the first in the low half."""
    if data.size != (count + 1) // 2:
        return None
    halves = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[:count].view(np.int8)
    if dtype == "i4":
        halves = (halves ^ 8) - 8
    return halves.astype(to_numpy(dtype))


def _texts(data: NDArray[np.uint8], count: int) -> NDArray[Any] | None:
    """Unpacks strings, stored as their number, the offset of each and of the end, and the bytes."""
    if data.size < 4 or data.size < 4 * (count + 2):
        return None
    numbers = data[: 4 * (count + 2)].view("<i4")
    places = numbers[1:]
    if numbers[0] != count or (np.diff(places) < 0).any() or places[-1] > data.size:
        return None
    if places[0] < 4 * (count + 2):
        return None
    whole = data.tobytes()
    spans = zip(places[:-1].tolist(), places[1:].tolist(), strict=True)
    found = np.empty(count, to_numpy("str"))
    found[:] = [whole[a:b].decode("utf-8", "replace") for a, b in spans]
    return found
