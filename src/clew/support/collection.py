"""Garbage collection around work that makes many objects.

Python collects all of a program's objects whenever their number has grown by a quarter. While a
large model is compiled, this takes a third of the time and frees little; the last of these
collections, of a second, would otherwise happen in one of the model's first calls.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from clew.support.locks import Lock

# Of new objects, of those that outlived a collection, and of all: counts as in `gc.set_threshold`.
_RARE: Final = (50_000, 20, 1000)
# Python's own rule for a collection of all objects.
_GROWN: Final = 0.25

_lock: Final = Lock()
_inside = 0
_before = gc.get_threshold()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Makes collections rare until the end, for the whole process. May be nested, and entered by
    several threads.
    """
    global _inside, _before
    with _lock:
        if not _inside:
            _before = gc.get_threshold()
            gc.set_threshold(*_RARE)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and gc.get_threshold() == _RARE:  # else the user has set others
                gc.set_threshold(*_before)


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """`rare_collections`, with one of all objects at the end if it is due by then."""
    blocks = sys.getallocatedblocks()
    with rare_collections():
        yield
    if gc.isenabled() and sys.getallocatedblocks() - blocks > _GROWN * blocks:
        gc.collect()
