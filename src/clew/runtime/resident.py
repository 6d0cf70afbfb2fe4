"""Copies of weights in huge pages of this process, from which kernels read them fastest.

A model starts with its weights in a file that all processes share, which takes no time. Reading
hundreds of megabytes through pages of 4 KiB costs about a tenth of a run, so a process that keeps
running a model makes a copy. A thread makes it from the third call on, while calls go on.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np

from clew.runtime.memory import (
    HUGE_PAGE_BYTES,
    aligned_bytes,
    mapping_of,
    release_pages,
    round_up,
)
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.background import start_thread
from clew.support.settings import settings
from clew.support.system import system_text

_AFTER_CALLS = 3
# Copies are worth their memory from this size on, and only while memory is plentiful.
_LEAST_BYTES = HUGE_PAGE_BYTES
_SHARE_OF_FREE = 0.25


class Resident:
    """Copies file-backed arrays once they have been used a few times."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays: Sequence[np.ndarray] = arrays
        self._calls = 0
        # Whether calls have to be counted, because arrays may move. Whoever takes the moved arrays
        # clears it once all later calls read them.
        self.is_pending = True
        self._thread: threading.Thread | None = None
        self._moved: list[list[np.ndarray]] = []  # until a call takes it

    def count_call(self) -> list[np.ndarray] | None:
        """Counts a call; returns the arrays at their new locations if they have moved since the
        last one. Calls are never kept waiting.

        Each array releases its file's pages as it is copied, so only one at a time is in memory
        twice.
        """
        self._calls += 1
        if self._calls == _AFTER_CALLS:
            self._start()
        return self._taken() if self._moved else None

    def settle(self) -> list[np.ndarray] | None:
        """Moves the arrays now, as after more calls; returns what `count_call` does."""
        if self._calls < _AFTER_CALLS:
            self._calls = _AFTER_CALLS
            self._start()
        if self._thread is not None:
            self._thread.join()
        return self._taken()

    def _taken(self) -> list[np.ndarray] | None:
        try:
            return self._moved.pop()
        except IndexError:  # another thread took it
            return None

    def _start(self) -> None:
        """Starts the copy, if it is worthwhile."""
        arrays, self._arrays = self._arrays, ()
        total = _room([a for a in arrays if _file_of(a) is not None])
        worthwhile = _LEAST_BYTES <= total <= _free_bytes() * _SHARE_OF_FREE
        if worthwhile and settings().huge_pages:
            # A daemon: the end of the program does not wait for a copy that nobody will read.
            self._thread = start_thread(partial(self._work, arrays, total), "clew-resident")
        else:
            self.is_pending = False

    def _work(self, arrays: Sequence[np.ndarray], total_bytes: int) -> None:
        self._moved.append(_moved(arrays, total_bytes))


def _moved(arrays: Sequence[np.ndarray], total_bytes: int) -> list[np.ndarray]:
    room = aligned_bytes(total_bytes)
    moved: list[np.ndarray] = []
    at = 0
    for array in arrays:
        file = _file_of(array)
        if file is None:
            moved.append(array)
            continue
        copy = room[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        moved.append(copy)
        at += round_up(array.nbytes, ALIGNMENT_BYTES)
        release_pages(array, file)  # a run that has already begun reads them again
    return moved


def _file_of(array: np.ndarray) -> mmap.mmap | None:
    """Returns the file mapping that contains an array, if there is one."""
    mapping = mapping_of(array)
    # Read-only memory belongs to a file.
    return mapping if mapping is not None and memoryview(mapping).readonly else None


def _room(arrays: Sequence[np.ndarray]) -> int:
    return sum(round_up(a.nbytes, ALIGNMENT_BYTES) for a in arrays)


def _free_bytes() -> int:
    """Returns the memory available without swapping; 0 if the system does not report it."""
    try:
        lines = system_text("/proc/meminfo").splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) << 10 for words in found), 0)
