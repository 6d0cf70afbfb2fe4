"""Independent parts of a computation on several threads: NumPy and native code release the GIL
while they go over large arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """As many threads as `count` for the work of one quantization. They end with this object."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "clew-quantize") if count > 1 else None

    def map(self, work: Callable[[int], T], sizes: Sequence[int]) -> list[T]:
        """Returns the result of `work` for the number of each part, in order. Parts of the largest
        of `sizes` begin first, so that no thread ends long after the others.

        Errors: that of the first part that failed, after all parts have ended.
        """
        if self._pool is None or len(sizes) < 2:
            return [work(n) for n in range(len(sizes))]
        order = sorted(range(len(sizes)), key=lambda n: -sizes[n])
        found = {n: self._pool.submit(work, n) for n in order}
        for future in found.values():
            future.exception()  # waits
        return [found[n].result() for n in range(len(sizes))]
