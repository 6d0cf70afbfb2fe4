"""Tensors of text: arrays of objects, each a Python `str`.

An array holds references, so moving and repeating texts copies none, and a text's hash is computed
once, however often it is looked up. The array's own bytes do not hold the text: hashes and files
use `packed` instead.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import countOf
from typing import Any, Final

import numpy as np

from clew.support.arrays import number_dtype

Array = np.ndarray[Any, Any]

_CHUNK: Final = 4096
_WIDEST_BYTES: Final = 4  # of a character

TEXT: Final = np.dtype(object)
TEXT_NAME: Final = "str"
"""The dtype's name in files and messages."""


PROVIDED: Final[list[Callable[[], Any]]] = []
"""The function that loads native code on texts on first use (`native_texts`), if one is set."""


def provide(code: Callable[[], Any]) -> None:
    """Sets the function that loads native code on texts."""
    PROVIDED[:] = [code]


def is_text(value: object) -> bool:
    """Whether a value is an array of text; other arrays of objects have symbolic sizes."""
    if not isinstance(value, np.ndarray) or value.dtype != TEXT:
        return False
    return not value.size or type(value.item(0)) is str


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns a dtype's name, which `dtype_named` reads."""
    return TEXT_NAME if dtype == TEXT else dtype.name


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype with a name. Raises `TypeError` for an unknown name."""
    return TEXT if name == TEXT_NAME else number_dtype(name)


def holds_text(array: Array) -> bool:
    """Whether an array of objects holds nothing but `str`, each of which has a form in UTF-8: no
    half of a surrogate pair.
    """
    flat = array.reshape(-1)
    if flat.size <= _CHUNK:
        return _are_texts(flat.tolist())
    # Each pass over the objects then finds them in a cache.
    chunks = (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))
    return all(_are_texts(chunk.tolist()) for chunk in chunks)


def _are_texts(items: list[Any]) -> bool:
    return countOf(map(type, items), str) == len(items) and is_unicode(items)


def is_unicode(texts: Sequence[str]) -> bool:
    """Whether all texts have a form in UTF-8."""
    joined = "".join(texts)
    if joined.isascii():
        return True
    try:
        joined.encode("utf-16-le")  # fails for the same texts as UTF-8, and is faster
    except UnicodeEncodeError:
        return False
    return True


def as_text(array: Array) -> Array:
    """Returns an array of text, of bytes (UTF-8), or of objects that are either, as an array of
    `str`; the same array if it is one.

    Raises `TypeError` for an element that is neither, `ValueError` for one that is not Unicode.
    """
    if array.dtype == TEXT and holds_text(array):
        return array
    # NumPy's own arrays of text may hold missing values.
    texts = list(map(_text, array.reshape(-1).astype(TEXT).tolist()))
    "".join(texts).encode()
    return text_array(texts, array.shape)


def _text(item: object) -> str:
    if isinstance(item, bytes):
        return item.decode()
    if not isinstance(item, str):
        raise TypeError(f"{item!r} is not text")
    return str.__str__(item)  # a plain `str` from one of a subclass


def text_array(texts: Sequence[str], shape: Sequence[int]) -> Array:
    """Returns texts as an array of the given shape."""
    array = np.empty(len(texts), TEXT)
    array[:] = texts
    return array if len(shape) == 1 else array.reshape(tuple(shape))


def as_tensor(value: Any) -> Any:
    """Returns a text that NumPy took out of an array as an array without axes, other values as they
    are.
    """
    if type(value) is not str:
        return value
    array = np.empty((), TEXT)
    array[()] = value
    return array


def zeros(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Returns an array of zeros, or of empty texts."""
    return np.full(shape, "", TEXT) if dtype == TEXT else np.zeros(shape, dtype)


def text_bytes(x: Array) -> int:
    """Returns an upper bound of the memory of an array's texts, without their headers."""
    texts = x.reshape(-1).tolist()
    characters = sum(map(len, texts))
    return characters if all(map(str.isascii, texts)) else _WIDEST_BYTES * characters


def content(array: Array) -> bytes:
    """Returns the elements as bytes, equal for equal elements."""
    return (packed(array) if is_text(array) else array).tobytes()


def packed(array: Array) -> Array:
    """Returns the elements as bytes, `u8[n]`, equal for equal texts. `unpacked` reads them."""
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    lengths = struct.pack(f"<{len(texts)}q", *map(len, texts))
    return np.frombuffer(lengths + b"".join(texts), np.uint8)


def unpacked(data: Array, shape: tuple[int, ...]) -> Array:
    """Returns the array that `packed` wrote, read-only. Raises `ValueError` for invalid bytes."""
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
    array = text_array(texts, shape)
    array.flags.writeable = False
    return array
