"""Tensors of text: arrays of NumPy's `StringDType` inside clew, arrays of objects outside.

The elements of a `StringDType` array are references, so the array's own bytes do not hold the text.
Hashes and files use `packed` instead.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

TEXT: Final = np.dtypes.StringDType()
TEXT_NAME: Final = "str"
"""The dtype's name in files; NumPy's name gives the width of a reference."""


def is_text(value: object) -> bool:
    """Whether a value is an array of text."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "T"


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns a dtype's name, which `dtype_named` reads."""
    return TEXT_NAME if dtype.kind == "T" else dtype.name


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype with a name. Raises `TypeError` for an unknown name."""
    return TEXT if name == TEXT_NAME else np.dtype(name)


def as_text(array: Array) -> Array:
    """Returns an array of text, of bytes (UTF-8), or of objects that are either, as text.

    Raises `TypeError` for an element that is neither, `ValueError` for one that is not Unicode.
    """
    if array.dtype.kind == "T":
        return array
    texts = array.reshape(-1).tolist()
    if not set(map(type, texts)) <= {str}:
        texts = list(map(_text, texts))
    return np.array(texts, TEXT).reshape(array.shape)


def _text(item: object) -> str:
    if isinstance(item, bytes):
        return item.decode()
    if not isinstance(item, str):
        raise TypeError(f"{item!r} is not text")
    return item


def as_objects(array: Array) -> Array:
    """Returns an array of text as an array of Python strings."""
    return array.astype(object)


def text_bytes(x: Array) -> int:
    """Returns the number of bytes of all texts of an array, in UTF-8."""
    return sum(map(_utf8_bytes, x.flat))


def longest_text_bytes(x: Array) -> int:
    """Returns an upper bound of the bytes of an array's longest text; 0 without elements."""
    return 4 * int(np.strings.str_len(x).max(initial=0))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def inside(value: Any) -> Array:
    """Returns a tensor that a run returned in the form that clew uses inside: Python strings as
    text, anything else as an array.
    """
    array = np.asarray(value)
    return as_text(array) if array.dtype.kind == "O" else array


def content(array: Array) -> bytes:
    """Returns the elements as bytes, equal for equal elements."""
    return (packed(array) if is_text(array) else array).tobytes()


def packed(array: Array) -> Array:
    """Returns the elements as bytes, `u8[n]`, equal for equal texts. `unpacked` reads them."""
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    lengths = struct.pack(f"<{len(texts)}q", *map(len, texts))
    return np.frombuffer(lengths + b"".join(texts), np.uint8)


def unpacked(data: Array, shape: tuple[int, ...]) -> Array:
    """Returns the array that `packed` wrote. Raises `ValueError` for invalid bytes."""
    size = int(np.prod(shape, dtype=object)) if shape else 1
    head = size * 8
    if head > data.size:
        raise ValueError(f"{data.size} bytes do not hold {size} texts")
    lengths = data[:head].view("<i8").tolist()
    if min(lengths, default=0) < 0 or head + sum(lengths) != data.size:
        raise ValueError("the lengths of the texts do not match")
    raw, texts, start = data.tobytes(), [], head
    for length in lengths:
        texts.append(raw[start : start + length].decode())
        start += length
    return np.array(texts, TEXT).reshape(shape)
