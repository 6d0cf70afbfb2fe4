"""Memory for the results of calls.

A result owns its memory: nothing else in use shares it. There are three kinds of memory:

- Small results of a call share one `Room`. A later call reuses it once nothing refers to them or
  to views of them, which costs less than an allocation and keeps the addresses.
- Results of `LARGE_BYTES` and more borrow memory from `large_results`, and so do those of
  `_PART_BYTES` and more in calls whose results have `LARGE_BYTES` in total: the C library returns
  that much to the system when all of them are freed.
- Each other result has an allocation, since the C library reuses freed blocks of these sizes.

Rooms are tested for use by their reference counts, because a weak reference would cost more than
an allocation. Large results have weak references, because their memory must be released as soon as
nothing refers to it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from sys import getrefcount
from typing import Any, Final, TypeAlias

import numpy as np

from clew.runtime.large_results import LARGE_BYTES, LARGE_RESULTS
from clew.runtime.native_call import Block, Result
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES

Spec: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]]"
View: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any], int]"
_ARRAY: Final = np.ndarray
_BYTES: Final = np.dtype(np.uint8)
_NOTHING: Final = np.empty(0, _BYTES)
# Up to this size, the results of a call share a room. An idle context keeps this much memory, and
# so does any result that the caller keeps.
_ROOM_BYTES: Final = 4096
# Smaller parts of many results are allocated: together they are few bytes.
_PART_BYTES: Final = 1 << 20


def room_for(size_bytes: int, lent_from: int = LARGE_BYTES) -> tuple[np.ndarray, int, int]:
    """Returns new memory: an array that owns it, the position of `size_bytes` there whose address
    is a multiple of 64, and this address. It is lent from a size of `lent_from`.
    """
    if size_bytes >= lent_from:
        memory = LARGE_RESULTS.lend(size_bytes)
        return memory, 0, address_of(memory)
    memory = np.empty(size_bytes + ALIGNMENT_BYTES, _BYTES)
    address = address_of(memory)
    begin = -address % ALIGNMENT_BYTES
    return memory, begin, address + begin


def blocks_of(results: Sequence[Result]) -> list[Block]:
    """Returns the memory of the results of a call: one block if they are small together, otherwise
    one for each.
    """
    sizes = [-(-each.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for each in results]
    if sum(sizes) > _ROOM_BYTES:
        return [Block(size, [(number, 0)]) for number, size in enumerate(sizes)]
    offsets = [sum(sizes[:number]) for number in range(len(sizes))]
    return [Block(sum(sizes), list(enumerate(offsets)))]


class Results:
    """The arrays that a call returns: their shapes and dtypes, and where they are in a room, each
    at a multiple of 64 bytes. The numbers in `later` are those of arrays that exist only after the
    run.
    """

    def __init__(self, specs: Sequence[Spec], later: Collection[int] = ()) -> None:
        self.specs = tuple(specs)
        self.later = frozenset(later)
        self.offsets: list[int] = []
        self.total_bytes = 0
        self._sizes_bytes = [math.prod(shape) * dtype.itemsize for shape, dtype in specs]
        for size in self._sizes_bytes:
            self.offsets.append(self.total_bytes)
            self.total_bytes += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.are_small = self.total_bytes <= _ROOM_BYTES
        self._lent_from = _PART_BYTES if self.total_bytes >= LARGE_BYTES else LARGE_BYTES
        self._views: dict[int, list[View]] = {}

    def apart(self) -> tuple[list[np.ndarray], list[int]]:
        """Returns new arrays, each in memory of its own, and their addresses. Those in `later` are
        empty, and their address is 0.
        """
        arrays, addresses = [], []
        for number, (shape, dtype) in enumerate(self.specs):
            if number in self.later:
                arrays.append(_NOTHING)
                addresses.append(0)
                continue
            memory, begin, address = room_for(self._sizes_bytes[number], self._lent_from)
            arrays.append(_ARRAY(shape, dtype, memory, begin))
            addresses.append(address)
        return arrays, addresses

    def views(self, begin: int) -> list[View]:
        """Returns the arrays in a room that begins at a position in its memory."""
        found = self._views.get(begin)  # allocations have few alignments
        if found is None:
            both = zip(self.specs, self.offsets, strict=True)
            found = self._views[begin] = [(*spec, begin + offset) for spec, offset in both]
        return found


class Room:
    """Memory for the results of one call at a time, the first of which is at `address`. `views` are
    the shapes, the dtypes, and the positions of the results in `memory`.
    """

    __slots__ = ("address", "memory", "views")

    def __init__(self, results: Results) -> None:
        self.memory, begin, self.address = room_for(results.total_bytes)
        self.views = results.views(begin)


def _unheld() -> int:
    """Returns `getrefcount(room.memory)` of a room that no array uses; -1 if this interpreter's
    numbers do not show whether there is one.
    """
    room = Room(Results([((2, 2), np.dtype(np.float32))]))
    shape, dtype, begin = room.views[0]
    counts = [getrefcount(room.memory)]
    result = _ARRAY(shape, dtype, room.memory, begin)
    counts.append(getrefcount(room.memory))
    part: Any = result[1:].reshape(-1)
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
