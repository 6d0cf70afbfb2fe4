"""Arrays as attributes and as JSON: dtype, shape, and one number or the bytes in hexadecimal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.support.arrays import number_dtype

Array: TypeAlias = "np.ndarray[Any, Any]"
Record: TypeAlias = "tuple[str, tuple[int, ...], str]"


def array_record(array: Array) -> Record:
    """Returns an array as plain values. If all elements are equal, the bytes are those of one
    element, after a `*`.
    """
    data = np.ascontiguousarray(array).reshape(-1)
    rows = data.view(np.uint8).reshape(data.size, data.itemsize)
    equal = data.size > 0 and bool((rows == rows[0]).all())
    content = f"*{rows[0].tobytes().hex()}" if equal else rows.tobytes().hex()
    return array.dtype.name, tuple(array.shape), content


def array_of(record: Sequence[Any]) -> Array:
    """Returns the array of a record, read-only. Raises `ValueError` or `TypeError` if it is not a
    record.
    """
    name, shape, content = record
    data = np.frombuffer(bytes.fromhex(content.removeprefix("*")), number_dtype(name))
    sizes = tuple(map(int, shape))
    if content.startswith("*"):
        return np.broadcast_to(data.reshape(()), sizes)
    return data.reshape(sizes)
