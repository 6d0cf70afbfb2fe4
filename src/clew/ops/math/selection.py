"""Selection of the largest elements of rows without sorting whole rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

# Size of the groups whose maxima give a bound on the largest elements.
_GROUP: Final = 64
# The least number of groups per wanted element; with fewer, the bound is too low to help.
_GROUPS_FOR_ONE: Final = 8


# Sorting this few elements takes no longer than computing a bound.
_SORTED_WHOLE: Final = 4096
# From this length on, sorting distinct numbers is faster than a stable sort of positions.
_SORTED_AS_NUMBERS: Final = 512


def stable_order(rows: Array, *, largest: bool, count: int | None = None) -> Array:
    """Returns the order of each row's elements; equal elements keep their order, and NaN is the
    largest. If `count` is given, only its first `count` positions are returned.
    """
    order: Array
    if rows.size and _SORTED_AS_NUMBERS <= rows.shape[-1] < 1 << 32:
        numbers = _ordered_numbers(rows)
        if numbers is not None:
            numbers = ~numbers if largest else numbers
            keyed = (numbers << 32) | np.arange(rows.shape[-1])
            if count is not None and 0 < count <= rows.shape[-1] // 2:
                keyed = np.partition(keyed, count - 1, -1)[..., :count]
            keyed.sort(-1)
            keyed &= 0xFFFFFFFF
            return keyed[..., :count]
    if largest:
        order = rows.shape[-1] - 1 - np.argsort(rows[..., ::-1], -1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(rows, -1, kind="stable")
    return order[..., :count]


def _ordered_numbers(rows: Array) -> Array | None:
    """Returns i64 numbers of 32 bits and a sign in the order of the elements, with all NaNs equal
    and largest; None if the elements need more bits.
    """
    if rows.dtype.kind in "iu" and (rows.dtype.itemsize < 4 or rows.dtype.char == "i"):
        return rows.astype(np.int64)
    if rows.dtype.char not in "ef":
        return None
    numbers = rows.astype(np.float32)
    numbers += 0.0  # turns -0 into 0, because they are equal
    unknown = np.isnan(numbers)
    bits = numbers.view(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    bits[unknown] = 0x7FFFFFFF
    return bits.astype(np.int64)


def largest_places(rows: Array, k: int) -> Array:
    """Returns i64[rows, k]: the positions of the `k` largest numbers of each row, largest first;
    equal numbers keep their order, and NaN is the largest.

    Elements below a bound on the k-th largest are dropped before the rest is sorted.
    """
    few = rows.size <= _SORTED_WHOLE and rows.dtype.itemsize <= 4
    sought = 0 < k < rows.shape[1] and rows.dtype.isnative and not few
    bound = _bound(rows, k) if sought else None
    if bound is None:
        return stable_order(rows, largest=True, count=k)
    chosen = np.flatnonzero(rows >= bound[:, None])  # faster than the positions on two axes
    row = chosen // rows.shape[1]
    counts = np.bincount(row, minlength=len(rows))
    width = counts.max()
    assert counts.min() >= k
    if len(chosen) == width * len(rows):
        values, places = rows.reshape(-1)[chosen], chosen
    else:  # rows of unequal length are padded with the lowest number
        slot = np.arange(len(chosen)) - (np.cumsum(counts) - counts)[row] + row * width
        lowest = np.iinfo(rows.dtype).min if rows.dtype.kind in "iu" else -np.inf
        values = np.full(width * len(rows), lowest, rows.dtype)
        places = np.zeros(width * len(rows), np.int64)
        values[slot] = rows.reshape(-1)[chosen]
        places[slot] = chosen
    order = stable_order(values.reshape(len(rows), width), largest=True, count=k)
    first = np.arange(len(rows))[:, None]
    found: Array = places.reshape(-1, width)[first, order] - first * rows.shape[1]
    return found


def _bound(rows: Array, k: int) -> Array | None:
    """Returns, for each row, a number that is at most its k-th largest; None if there are NaNs."""
    if rows.dtype.kind not in "iu" and rows.dtype.char not in "fd":
        return None
    groups = rows.shape[1] // _GROUP
    if groups >= _GROUPS_FOR_ONE * k:  # at least k elements reach the k-th largest maximum
        parts = rows[:, : groups * _GROUP].reshape(len(rows), _GROUP, groups)
        rest = rows[:, groups * _GROUP :]
        rows = np.concatenate((parts.max(1), rest), 1)
    upper: Array = np.partition(rows, rows.shape[1] - k, -1)[:, rows.shape[1] - k :]
    if rows.dtype.kind == "f" and np.isnan(upper).any():
        return None
    lowest: Array = upper[:, 0]
    return lowest
