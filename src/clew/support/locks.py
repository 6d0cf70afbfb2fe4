"""Locks that are free in a forked child."""

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
    """A lock for `with`. A child forked while another thread holds the lock gets a new one, since
    that thread does not exist in the child to release it. The guarded data must be consistent at
    any time.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._held: threading.Lock | None = None
        _locks.add(self)

    def __enter__(self) -> None:
        lock = self._free
        lock.acquire()
        self._held = lock

    def take(self) -> bool:
        """Takes the lock if it is free, and returns whether it was; `release` frees it."""
        lock = self._free
        if not lock.acquire(blocking=False):
            return False
        self._held = lock
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Frees the lock, which this thread holds."""
        # Release the acquired lock: the forking thread may still hold the parent's.
        assert self._held is not None
        self._held.release()

    def renew(self) -> None:
        """Replaces the lock with a free one, in a child."""
        self._free = threading.Lock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Decorator for a function without arguments: caches its one result. Threads that make the
    first call at the same time all get the same result; `functools.cache` may give each a different
    one and keep only one of them.
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
