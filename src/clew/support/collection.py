"""Garbage collection around work that makes many objects.

Python collects all of a program's objects whenever their number has grown by a quarter. While a
large model is compiled, this takes a third of the time and frees little; the last of these
collections, of a second, would otherwise happen in one of the model's first calls.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from clew.support.locks import Lock

# Counts of new objects, of those that outlived a collection, and of all, as in `gc.set_threshold`.
_RARE: Final = (50_000, 20, 1000)
_NONE: Final = (0, 0, 0)
# Python's own rule for a collection of all objects.
_GROWN: Final = 0.25

_lock: Final = Lock()
# The thresholds of those inside, and the process's own.
_inside: Final[list[tuple[int, int, int]]] = []
_own = gc.get_threshold()


@contextmanager
def rare_collections(thresholds: tuple[int, int, int] = _RARE) -> Iterator[None]:
    """Makes collections rare until the end, for the whole process. May be nested, and entered by
    several threads.
    """
    global _own
    with _lock:
        if not _inside:
            _own = gc.get_threshold()
        _inside.append(thresholds)
        gc.set_threshold(*thresholds)
    try:
        yield
    finally:
        with _lock:
            is_ours = gc.get_threshold() in (_RARE, _NONE)  # else the user has set others
            _inside.remove(thresholds)
            if is_ours:
                gc.set_threshold(*(_inside[-1] if _inside else _own))


def no_collections() -> AbstractContextManager[None]:
    """Returns a context without collections, for work that makes no cycles. The many objects that
    live until its end would otherwise count as long-lived.
    """
    return rare_collections(_NONE)


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """`rare_collections`, with one of all objects at the end if it is due by then."""
    blocks = sys.getallocatedblocks()
    with rare_collections():
        yield
    if gc.isenabled() and sys.getallocatedblocks() - blocks > _GROWN * blocks:
        gc.collect()
