"""FlexBuffers, which hold options of custom operators; each value carries its type.

A value is a number of 1, 2, 4 or 8 bytes, or the distance back to the value that it refers to.
Positions are checked before they are read. Distances lead back only, so no value contains itself.

Source: the FlexBuffers internals, https://flatbuffers.dev/flexbuffers/.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from clew.frontends.tflite.file.flatbuffer import Damaged

_WIDTHS: Final = (1, 2, 4, 8)
_MOST: Final = 1 << 16  # values of one buffer
_DEPTH: Final = 16
_SIGNED: Final = dict(zip(_WIDTHS, "bhiq", strict=True))
_UNSIGNED: Final = dict(zip(_WIDTHS, "BHIQ", strict=True))
_REAL: Final = {2: "e", 4: "f", 8: "d"}
_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING = range(6)
_INDIRECT: Final = {6: _INT, 7: _UINT, 8: _FLOAT}
_MAP, _VECTOR = 9, 10
_TYPED: Final = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 15: _STRING, 36: 26}
_FIXED: Final = {16 + n: ((_INT, _UINT, _FLOAT)[n % 3], 2 + n // 3) for n in range(9)}
_BLOB, _BOOL = 25, 26


def flexible(data: bytes) -> Any:
    """Returns the value of a buffer: numbers, strings, tuples and dictionaries.

    Raises:
        Damaged: if the bytes are no such buffer.
    """
    if len(data) < 3 or data[-1] not in _WIDTHS:
        raise Damaged("options of a custom operator are no FlexBuffer")
    return _Reader(data).value(len(data) - 2 - data[-1], data[-1], data[-2], 0)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST

    def value(self, at: int, width: int, packed: int, depth: int) -> Any:
        """Returns the value at a position; `packed` is its type, and the width of what it points
        to.
        """
        self._left -= 1
        if self._left < 0 or depth > _DEPTH:
            raise Damaged("options of a custom operator have too many values")
        kind, inner = packed >> 2, _WIDTHS[packed & 3]
        if kind in (_NULL, _INT, _UINT, _FLOAT, _BOOL):
            return self._scalar(kind, at, width)
        to = self._behind(at, width)
        if kind in _INDIRECT:
            return self._scalar(_INDIRECT[kind], to, inner)
        if kind == _KEY:
            return self._key(to)
        if kind in (_STRING, _BLOB):
            return self._bytes(to, self._size(to, inner)).decode("utf-8", "replace")
        if kind == _MAP:
            names = self._behind(to - 3 * inner, inner)
            step = self._number(_UNSIGNED, to - 2 * inner, inner)
            if step not in _WIDTHS:
                raise Damaged("options of a custom operator have keys of no width")
            keys = self._elements(names, step, _KEY, self._size(names, step), depth)
            return dict(zip(keys, self._vector(to, inner, depth), strict=False))
        if kind == _VECTOR:
            return tuple(self._vector(to, inner, depth))
        if kind in _TYPED:
            size = self._size(to, inner)
            return tuple(self._elements(to, inner, _TYPED[kind], size, depth))
        if kind in _FIXED:
            element, count = _FIXED[kind]
            return tuple(self._elements(to, inner, element, count, depth))
        raise Damaged(f"options of a custom operator have the type {kind}")

    def _elements(self, at: int, width: int, kind: int, count: int, depth: int) -> list[Any]:
        packed = kind << 2
        return [self.value(at + n * width, width, packed, depth + 1) for n in range(count)]

    def _vector(self, at: int, width: int, depth: int) -> list[Any]:
        count = self._size(at, width)
        types = self._bytes(at + count * width, count)
        return [
            self.value(at + n * width, width, packed, depth + 1) for n, packed in enumerate(types)
        ]

    def _size(self, at: int, width: int) -> int:
        count = self._number(_UNSIGNED, at - width, width)
        if count > len(self._data):
            raise Damaged("options of a custom operator reach beyond their end")
        return int(count)

    def _scalar(self, kind: int, at: int, width: int) -> Any:
        if kind == _NULL:
            return 0
        forms = {_INT: _SIGNED, _UINT: _UNSIGNED, _BOOL: _UNSIGNED, _FLOAT: _REAL}[kind]
        found = self._number(forms, at, width)
        return bool(found) if kind == _BOOL else found

    def _number(self, forms: dict[int, str], at: int, width: int) -> Any:
        if width not in forms:
            raise Damaged(f"options of a custom operator have a number of {width} bytes")
        return struct.unpack("<" + forms[width], self._bytes(at, width))[0]

    def _behind(self, at: int, width: int) -> int:
        distance = int(self._number(_UNSIGNED, at, width))
        if not 0 < distance <= at:
            raise Damaged("options of a custom operator point outside of them")
        return at - distance

    def _key(self, at: int) -> str:
        end = self._data.find(b"\0", at)
        if end < 0:
            raise Damaged("a name of a custom operator's option has no end")
        return self._data[at:end].decode("utf-8", "replace")

    def _bytes(self, at: int, count: int) -> bytes:
        if at < 0 or at + count > len(self._data):
            raise Damaged("options of a custom operator reach beyond their end")
        return self._data[at : at + count]
