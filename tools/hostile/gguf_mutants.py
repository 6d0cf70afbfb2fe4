"""New GGUF files out of good ones: by the numbers of their tables, and by whole entries.

A mutant follows from its bytes and the random state alone.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from hostile.mutants import FLOATS, INTS, blind

_BLIND: Final = 0.2
_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT: Final = 8
_ARRAY: Final = 9
_FLOATS: Final = (6, 12)


def mutant(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Returns a file's bytes changed; `others` are files to take parts from."""
    if draw.random() < _BLIND:
        return blind(data, draw.choice(others), draw)
    made, table = bytearray(data), Table(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        numbers = table.floats if table.floats and draw.random() < 0.1 else table.numbers
        at, width = draw.choice(numbers)
        if numbers is table.floats:
            form, value = ("<f", draw.choice(FLOATS)) if width == 4 else ("<d", draw.choice(FLOATS))
            made[at : at + width] = _packed(form, value)
            continue
        old = int.from_bytes(made[at : at + width], "little")
        near = (old - 1, old + 1, old * 2, old // 2, old + 32, old ^ 1 << draw.randrange(8 * width))
        value = draw.choice((*near, draw.choice(INTS), draw.choice(INTS)))
        made[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    if draw.random() < 0.15:
        begin, end = draw.choice(table.entries)
        other = draw.choice(others)
        first, last = draw.choice(Table(other).entries)
        made[begin:end] = draw.choice((b"", data[begin:end] * 2, other[first:last]))
    if draw.random() < 0.05:
        del made[draw.randrange(len(made)) :]
    return bytes(made)


def _packed(form: str, value: float) -> bytes:
    try:
        return struct.pack(form, value)
    except OverflowError:
        return struct.pack(form, float("inf"))


@lru_cache(maxsize=64)
class Table:
    """Where the parts of a good file lie: places and widths of all integers, and of floats of its
    metadata; begins and ends of entries and of the descriptions of tensors.
    """

    def __init__(self, data: bytes) -> None:
        self.numbers: list[tuple[int, int]] = []
        self.floats: list[tuple[int, int]] = []
        self.entries: list[tuple[int, int]] = []
        self._data, self._at = data, 4
        self._number(4)
        tensors, entries = self._number(8), self._number(8)
        for _ in range(entries):
            begin = self._at
            self._text()
            self._value(self._number(4))
            self.entries.append((begin, self._at))
        for _ in range(tensors):
            begin = self._at
            self._text()
            for _ in range(self._number(4)):
                self._number(8)
            self._number(4)
            self._number(8)
            self.entries.append((begin, self._at))

    def _number(self, width: int) -> int:
        self.numbers.append((self._at, width))
        self._at += width
        return int.from_bytes(self._data[self._at - width : self._at], "little")

    def _text(self) -> None:
        size = self._number(8)
        self._at += size

    def _value(self, kind: int) -> None:
        if kind == _TEXT:
            self._text()
        elif kind == _ARRAY:
            inner, count = self._number(4), self._number(8)
            for _ in range(count):
                self._value(inner)
        elif kind in _FLOATS:
            self.floats.append((self._at, _WIDTHS[kind]))
            self._at += _WIDTHS[kind]
        else:
            self._number(_WIDTHS[kind])
