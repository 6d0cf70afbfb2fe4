"""The weights of a library."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

from clew.runtime.memory import round_up
from clew.support.arrays import ALIGNMENT_BYTES

MARK_BYTES: Final = 64
"""The size of the marker by which the exporter finds the weights in an object."""


class Weights:
    """The constants of a library's runs, one behind the other, each at a multiple of
    `alignment_bytes`. Runs share those of equal bytes.
    """

    def __init__(self, prefix: str, alignment_bytes: int = ALIGNMENT_BYTES) -> None:
        self.mark = hashlib.sha512(f"{prefix} weights of clew".encode()).digest()
        self.size_bytes = 0
        self._alignment_bytes = alignment_bytes
        self._arrays: dict[int, np.ndarray[Any, Any]] = {}
        self._known: dict[int, int] = {}
        self._equal: dict[bytes, int] = {}

    def add(self, array: np.ndarray[Any, Any]) -> int:
        """Returns the offset of an array."""
        found = self._known.get(id(array))
        if found is None:
            digest = hashlib.blake2b(_bytes(array), digest_size=32).digest()
            found = self._known[id(array)] = self._equal.setdefault(digest, self.size_bytes)
        if found == self.size_bytes:
            self._arrays[found] = array
            self.size_bytes += self.size_at(found)
        return found

    def size_at(self, offset: int) -> int:
        """Returns the bytes that the array at an offset takes."""
        least = 0 if offset else MARK_BYTES
        return max(least, round_up(self._arrays[offset].nbytes, self._alignment_bytes))

    def contents(self) -> bytes:
        """Returns the bytes."""
        made = bytearray(self.size_bytes)
        for at, array in self._arrays.items():
            made[at : at + array.nbytes] = _bytes(array)
        return bytes(made)

    def written_to(self, data: bytes) -> bytes:
        """Returns an object with the weights written over their marker."""
        if not self._arrays:
            return data
        assert data.count(self.mark) == 1, "the marker occurs once, where the weights begin"
        start = data.index(self.mark)
        return data[:start] + self.contents() + data[start + self.size_bytes :]


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
