"""Locks that Ctrl-C cannot leave locked, and that are free in a forked child.

CPython handles signals between instructions: at the start of a Python function, after a call and at
a jump backwards. A `with` statement over a context manager written in C has none of these between
acquiring and the protected block, nor between the block and releasing. A `__enter__` or `__exit__`
written in Python, or `acquire()` before `try`, has. So every lock of clew is a `Lock`, and is only
used in a `with` statement; `tests/support/test_locks.py` checks both.
"""

from __future__ import annotations

import _thread
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class _Renewed(Protocol):
    def renew(self) -> None: ...


class Lock(_thread.RLock):  # type: ignore[misc]  # typeshed: final, unlike the type itself
    """A lock for `with`, which its thread may enter again. Its `__enter__` and `__exit__` are those
    of the C type, so that Ctrl-C never leaves it locked.

    A child that was forked while another thread held the lock finds it free, since that thread does
    not exist in the child to release it. The guarded data must be consistent at any time.
    """

    def __init__(self) -> None:
        _renewed.add(self)

    def renew(self) -> None:
        """Frees the lock in a child, unless the thread that forked holds it."""
        lock: Any = self
        if not lock._is_owned():
            lock._at_fork_reinit()


class Once(Generic[T]):
    """A value that is made when it is first read, once."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: list[T] = []

    @classmethod
    def of(cls, value: T) -> Once[T]:
        """Returns a value that exists."""
        made = cls(lambda: value)
        made._made.append(value)
        return made

    def get(self) -> T:
        """Returns the value. Errors: those of making it, which the next reader tries again."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    @property
    def known(self) -> T | None:
        """The value, if it was made."""
        return self._made[0] if self._made else None


class Turn:
    """A resource for one holder at a time, without waiting.

    Ctrl-C cannot lose the end of a turn, if it ends by these statements, which call nothing:

    ```python
    holder = object()
    try:
        if not turn.begin(holder):
            raise ...
        ...
    finally:
        if 0 in turn.held and turn.held[0] is holder:
            del turn.held[0]
    ```

    Native calls take turns by the same steps (`codegen.driver.call`).
    """

    def __init__(self) -> None:
        self.held: dict[int, object] = {}
        """The holder, as the item 0."""
        _renewed.add(self)

    @property
    def holder(self) -> object | None:
        """The holder, if there is one."""
        return self.held.get(0)

    def begin(self, holder: object) -> bool:
        """Gives `holder` the turn if nobody has it, and returns whether it does."""
        return self.held.setdefault(0, holder) is holder  # one step for all threads

    def renew(self) -> None:
        """Ends the turn in a child, which does not have its holder."""
        self.held.clear()


_renewed: weakref.WeakSet[_Renewed] = weakref.WeakSet()


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
    for one in list(_renewed):
        one.renew()


os.register_at_fork(after_in_child=_renew)
