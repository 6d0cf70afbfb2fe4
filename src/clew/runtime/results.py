"""Memory for the results of calls.

A result owns its memory: nothing else that is in use shares it. Small results of a call lie in one
`Room`, which a later call uses again if nobody holds any of them, or a view of one, by then. This
takes a fraction of the time of an allocation, and the addresses stay the same.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Final, TypeAlias

import numpy as np

from clew.runtime.memory import address_of
from clew.support.arrays import ALIGNMENT_BYTES

Spec: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]]"
_ARRAY: Final = np.ndarray
_BYTES: Final = np.dtype(np.uint8)
# The most bytes of the results of a call in one room: as many as an idle context keeps, and a
# result that is kept.
_ROOM_BYTES: Final = 4096


def room_for(size_bytes: int) -> tuple[np.ndarray, int, int]:
    """Returns new memory: an array that owns it, the position of `size_bytes` there whose address
    is a multiple of 64, and this address.
    """
    memory = np.empty(size_bytes + ALIGNMENT_BYTES, _BYTES)
    address = address_of(memory)
    begin = -address % ALIGNMENT_BYTES
    return memory, begin, address + begin


class Results:
    """The arrays that a call returns: their shapes and dtypes, and where they are in a room, each
    at a multiple of 64 bytes.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.specs = tuple(specs)
        self.offsets: list[int] = []
        self.total_bytes = 0
        for shape, dtype in specs:
            self.offsets.append(self.total_bytes)
            size = math.prod(shape) * dtype.itemsize
            self.total_bytes += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.are_small = self.total_bytes <= _ROOM_BYTES

    def apart(self) -> tuple[list[np.ndarray], list[int]]:
        """Returns new arrays, each in memory of its own, and their addresses."""
        arrays, addresses = [], []
        for shape, dtype in self.specs:
            memory, begin, address = room_for(math.prod(shape) * dtype.itemsize)
            arrays.append(_ARRAY(shape, dtype, memory, begin))
            addresses.append(address)
        return arrays, addresses


class Room:
    """Memory for the results of one call at a time. `views` are the shapes, the dtypes, and the
    positions of the results in `memory`, and `addresses` their addresses.
    """

    __slots__ = ("addresses", "memory", "views")

    def __init__(self, results: Results) -> None:
        self.memory, begin, address = room_for(results.total_bytes)
        self.views = [
            (*spec, begin + offset)
            for spec, offset in zip(results.specs, results.offsets, strict=True)
        ]
        self.addresses = [address + offset for offset in results.offsets]


def _unheld() -> int:
    """Returns `getrefcount(room.memory)` of a room that no array uses; -1 if this interpreter's
    numbers do not show whether there is one.
    """
    room = Room(Results([((2, 2), np.dtype(np.float32))]))
    shape, dtype, begin = room.views[0]
    counts = [getrefcount(room.memory)]
    result = _ARRAY(shape, dtype, room.memory, begin)
    counts.append(getrefcount(room.memory))
    part = result[1:].reshape(-1)
    del result
    counts.append(getrefcount(room.memory))
    view = memoryview(part)
    del part
    counts.append(getrefcount(room.memory))
    del view
    unheld, *held = counts
    is_exact = getrefcount(room.memory) == unheld < min(held)
    counts_all = getattr(sys, "_is_gil_enabled", lambda: True)()
    return unheld if is_exact and counts_all and sys.implementation.name == "cpython" else -1


UNHELD: Final = _unheld()
"""What `getrefcount(room.memory)` is if no array uses the room; other expressions may hold
references of their own.
"""
