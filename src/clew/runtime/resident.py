"""Weights where kernels read them quickest: in huge pages of this process's own.

A model starts with its weights as they lie in a file that all processes share, which takes no time.
Reading hundreds of megabytes through pages of 4 KiB costs about a tenth of a run, so a process
that goes on running a model gets a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from clew.runtime.memory import HUGE_PAGE_BYTES, aligned_bytes, round_up
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.settings import settings

_AFTER_CALLS = 3
# Copies are worth their memory from here on, and only while there is plenty.
_LEAST_BYTES = HUGE_PAGE_BYTES
_SHARE_OF_FREE = 0.25


class Resident:
    """Copies arrays once they have been used a few times, on a thread of its own.

    `settle(copies)` is called on that thread when they are ready.
    """

    def __init__(
        self, arrays: Sequence[np.ndarray], settle: Callable[[list[np.ndarray]], None]
    ) -> None:
        self._arrays: Sequence[np.ndarray] = arrays
        self._settle = settle
        self._calls = 0
        self.thread: threading.Thread | None = None

    def count_call(self) -> None:
        """Notes a call; the one that is enough starts the copying."""
        self._calls += 1
        if self._calls == _AFTER_CALLS and settings().huge_pages:
            total = _room(self._arrays)
            if _LEAST_BYTES <= total <= _free_bytes() * _SHARE_OF_FREE:
                self.thread = threading.Thread(target=self._copy, args=(total,), daemon=True)
                self.thread.start()

    def _copy(self, total_bytes: int) -> None:
        room = aligned_bytes(total_bytes)
        copies: list[np.ndarray] = []
        at = 0
        for array in self._arrays:
            copy = room[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            copy[...] = array
            copies.append(copy)
            at += round_up(array.nbytes, ALIGNMENT_BYTES)
        self._arrays = ()
        self._settle(copies)


def _room(arrays: Sequence[np.ndarray]) -> int:
    return sum(round_up(a.nbytes, ALIGNMENT_BYTES) for a in arrays)


def _free_bytes() -> int:
    """Returns the memory that can be had without swapping; 0 where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) << 10 for words in found), 0)
