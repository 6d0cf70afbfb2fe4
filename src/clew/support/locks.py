"""Locks that a forked child finds free."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Lock:
    """A lock for `with`. A child that is forked while another thread holds it gets one of its own:
    that thread is not there to release it. What it guards has to be whole at any time.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._held: threading.Lock | None = None
        _locks.add(self)

    def __enter__(self) -> None:
        lock = self._free
        lock.acquire()
        self._held = lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The one that was taken: the thread that forked may hold the parent's still.
        assert self._held is not None
        self._held.release()

    def renew(self) -> None:
        """Makes it free, in a child."""
        self._free = threading.Lock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Decorator: the one result of a function without arguments. Threads that call it for the first
    time at once get the same, where `functools.cache` may give each its own and keep but one.
    """
    lock, made = Lock(), list[T]()

    @functools.wraps(make)
    def get() -> T:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return get


def _renew() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew)
