"""Memory for large results, reused once no array refers to it.

The system zeroes each page of a new mapping, which takes longer than a simple kernel takes to fill
it. Allocators reuse freed blocks only up to a size; larger results would be mapped in every call.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Any, Final

import numpy as np

from clew.runtime.memory import aligned_bytes, mapping_of, release_pages

LARGE_BYTES: Final = 32 << 20
"""The size from which results get memory from here. Source: mallopt(3), the largest
`M_MMAP_THRESHOLD`.
"""
_MOST_IDLE, _MOST_IDLE_BYTES = 64, 512 << 20
# An idle block is lent if it is at most this many times as large as the result.
_MOST_SPARE: Final = 2


class _Lease(weakref.ref["np.ndarray[Any, Any]"]):
    """A reference to the array on lent memory that every view of a result keeps alive."""

    __slots__ = ("memory",)
    memory: np.ndarray[Any, Any]


class LargeResults:
    """Memory for large results: lent to each, and taken back once no array refers to it.

    The number and size of idle blocks are limited, and the system may take their pages when memory
    is short. There is no lock, because Python may release an array, and so call `_take_back`, at
    any point of these methods, and because a process may fork while another thread runs them.
    """

    def __init__(self) -> None:
        self._leases: dict[int, _Lease] = {}
        self._idle: deque[np.ndarray[Any, Any]] = deque()

    @property
    def idle_bytes(self) -> int:
        """The size of all idle blocks."""
        return sum([memory.nbytes for memory in tuple(self._idle)])

    def lend(self, size_bytes: int) -> np.ndarray[Any, Any]:
        """Returns uninitialized memory, u8[size_bytes], that starts at a multiple of 64. Arrays on
        it must be views of the returned array.
        """
        memory = self._found(size_bytes)
        if memory is None:
            memory = aligned_bytes(size_bytes)
        # Views of an array refer to the last array that is not itself a view of an array.
        lent = np.frombuffer(memory.data, np.uint8, size_bytes)
        lease = _Lease(lent, self._take_back)
        lease.memory = memory
        self._leases[id(lease)] = lease
        return lent

    def _found(self, size_bytes: int) -> np.ndarray[Any, Any] | None:
        """Returns the idle block that was used last of those that fit."""
        for _ in range(len(self._idle)):
            try:
                memory = self._idle.pop()
            except IndexError:  # another thread has taken it
                return None
            if size_bytes <= memory.nbytes <= _MOST_SPARE * size_bytes:
                return memory
            self._idle.appendleft(memory)
        return None

    def _take_back(self, lease: _Lease) -> None:
        memory = self._leases.pop(id(lease)).memory
        if memory.nbytes > _MOST_IDLE_BYTES:
            return
        mapping = mapping_of(memory)
        if mapping is not None:
            release_pages(memory, mapping, lazily=True)
        self._idle.append(memory)
        while len(self._idle) > _MOST_IDLE or self.idle_bytes > _MOST_IDLE_BYTES:
            with suppress(IndexError):  # another thread has taken it
                self._idle.popleft()


LARGE_RESULTS: Final = LargeResults()
"""The memory of the results of all programs in this process."""
