"""Tensors of text: inside clew arrays of numpy's `StringDType`, outside arrays of objects.

Their elements are references, so that the bytes of the array itself say nothing: what is hashed or
written to a file is `packed`.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

TEXT: Final = np.dtypes.StringDType()
TEXT_NAME: Final = "str"
"""The name that files give the dtype; numpy's own says how wide a reference is."""


def is_text(value: object) -> bool:
    """Whether a value is an array of text."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "T"


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype that `dtype_named` reads."""
    return TEXT_NAME if dtype.kind == "T" else dtype.name


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype of a name. Raises `TypeError` for a name of none."""
    return TEXT if name == TEXT_NAME else np.dtype(name)


def as_text(array: Array) -> Array:
    """Returns an array of text, bytes (UTF-8) or objects that are either as text.

    Raises `TypeError` for an element that is neither, `ValueError` for one that is no Unicode.
    """
    if array.dtype.kind == "T":
        return array
    texts = [_text(item) for item in array.reshape(-1).tolist()]
    return np.array(texts, TEXT).reshape(array.shape)


def _text(item: object) -> str:
    if isinstance(item, bytes):
        return item.decode()
    if not isinstance(item, str):
        raise TypeError(f"{item!r} is no text")
    return item


def as_objects(array: Array) -> Array:
    """Returns an array of text as one of Python's strings."""
    return array.astype(object)


def packed(array: Array) -> Array:
    """Returns the elements as bytes, `u8[n]`: equal for equal texts; `unpacked` reads them."""
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    lengths = struct.pack(f"<{len(texts)}q", *map(len, texts))
    return np.frombuffer(lengths + b"".join(texts), np.uint8)


def unpacked(data: Array, shape: tuple[int, ...]) -> Array:
    """Returns the array that `packed` wrote. Raises `ValueError` for bytes that are none."""
    size = int(np.prod(shape, dtype=object)) if shape else 1
    head = size * 8
    if head > data.size:
        raise ValueError(f"{data.size} bytes hold no {size} texts")
    lengths = data[:head].view("<i8").tolist()
    if min(lengths, default=0) < 0 or head + sum(lengths) != data.size:
        raise ValueError("the lengths of the texts do not fit")
    raw, texts, start = data.tobytes(), [], head
    for length in lengths:
        texts.append(raw[start : start + length].decode())
        start += length
    return np.array(texts, TEXT).reshape(shape)
