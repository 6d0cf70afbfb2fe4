"""Buffers next to inaccessible pages, so that an out-of-bounds access kills the process."""

from __future__ import annotations

import ctypes
import enum
import mmap
import os

import numpy as np

from clew.runtime.memory import private_pages, round_up
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES

PAGE_BYTES = mmap.PAGESIZE
POISON = 0xFF  # NaN in every float dtype, -1 in every signed integer dtype
_PROT_NONE = 0


class GuardSide(enum.Enum):
    """The end of a buffer that adjoins the forbidden page."""

    END = "end"
    START = "start"


class GuardedBuffer:
    """`count` slices of `size_bytes`, each between two forbidden pages, filled with poison.

    Each slice starts at a multiple of `align_bytes`. With `GuardSide.END`, it ends as close to the
    forbidden page as that allows (adjacent if the size is a multiple); `check` tests the poison
    left and right of it. Slices are `stride_bytes` apart.
    """

    def __init__(
        self,
        size_bytes: int,
        *,
        align_bytes: int = ALIGNMENT_BYTES,
        side: GuardSide = GuardSide.END,
        count: int = 1,
    ):
        assert align_bytes >= 1
        assert PAGE_BYTES % align_bytes == 0
        self.size_bytes = size_bytes
        body = max(PAGE_BYTES, round_up(size_bytes, PAGE_BYTES))
        self.stride_bytes = body + PAGE_BYTES
        self._pages = private_pages(count * self.stride_bytes + PAGE_BYTES)
        whole = np.frombuffer(self._pages, np.uint8)
        whole[:] = POISON
        base = address_of(whole)
        shift = body - round_up(size_bytes, align_bytes) if side is GuardSide.END else 0
        self.address = base + PAGE_BYTES + shift
        self._slices = []
        self._paddings = []
        for number in range(count):
            first = number * self.stride_bytes + PAGE_BYTES
            _forbid(base + first - PAGE_BYTES)
            start, stop = first + shift, first + shift + size_bytes
            self._slices.append(whole[start:stop])
            self._paddings += [whole[first:start], whole[stop : first + body]]
        _forbid(base + count * self.stride_bytes)

    @property
    def data(self) -> np.ndarray:
        """The first slice: u8[size_bytes]."""
        return self._slices[0]

    def poison(self) -> None:
        """Fills the slices with poison again."""
        for part in self._slices:
            part[:] = POISON

    def check(self, what: str) -> None:
        """Asserts that nothing was written around the slices."""
        for padding in self._paddings:
            if not (padding == POISON).all():
                raise AssertionError(f"{what}: written outside the buffer")


def _forbid(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), _PROT_NONE)
    if code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
