"""Fewer garbage collections during work that creates many objects.

CPython collects all objects of a program whenever their number has grown by a quarter. While a
large model is compiled, these collections take a third of the time and free little.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from clew.support.locks import Lock

# As in `gc.set_threshold`: the number of new objects that starts a collection of them, and the
# numbers of collections of one generation that start one of the next.
_RARE: Final = (50_000, 20, 1000)
_NONE: Final = (0, 0, 0)
# New objects that may stay young after imports: a collection of them takes less than a millisecond.
_FEW: Final = 5_000

_lock: Final = Lock()
# The thresholds of all contexts in force, the latest last, and those of the process outside.
_inside: Final[dict[object, tuple[int, int, int]]] = {}
_own = gc.get_threshold()


@contextmanager
def rare_collections(thresholds: tuple[int, int, int] = _RARE) -> Iterator[None]:
    """Makes collections rare in the whole process while the context is in force. Contexts may be
    nested, and several threads may enter them.
    """
    global _own
    here = object()
    try:
        with _lock:
            if not _inside and gc.get_threshold() not in (_RARE, _NONE):
                _own = gc.get_threshold()
            _inside[here] = thresholds
            gc.set_threshold(*thresholds)
        yield
    finally:
        _inside.pop(here, None)  # first: Ctrl-C cannot prevent it
        with _lock:
            if gc.get_threshold() in (_RARE, _NONE):  # otherwise the user has set others
                gc.set_threshold(*[_own, *_inside.copy().values()][-1])


def no_collections() -> AbstractContextManager[None]:
    """Returns a context without collections, for work that creates no reference cycles. Collections
    would count objects that live until its end as long-lived.
    """
    return rare_collections(_NONE)


@contextmanager
def no_collections_of_imports() -> Iterator[None]:
    """As `no_collections`, for imports, whose objects live until the process ends. At the end, new
    objects are old.
    """
    with no_collections():
        yield
        _make_old()


@contextmanager
def old_at_the_end() -> Iterator[None]:
    """As `rare_collections`, for work that leaves many objects and few reference cycles. At the
    end, new objects are old: a collection of all would take a tenth of the time of the work.
    """
    with rare_collections():
        yield
        _make_old()


def _make_old() -> None:
    """Moves new objects to the oldest generation without a collection. Otherwise, the next
    allocation would start a collection that visits all of them.
    """
    # `unfreeze` would also unfreeze objects that the user has frozen.
    if gc.get_count()[0] > _FEW and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
