"""A lock for measurements: one at a time on a machine, of all processes of a user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from clew.support.folders import is_ours, temporary_place

try:
    import fcntl
except ImportError:  # not on POSIX
    fcntl = None  # type: ignore[assignment]

_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@contextmanager
def alone() -> Iterator[None]:
    """Waits until no other process of this user is inside; the block then runs alone.

    A process that ends, however it ends, is no longer inside. Where the lock's file cannot be
    opened, nothing is waited for.
    """
    lock = _opened()
    try:
        if lock is not None and fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _opened() -> int | None:
    name = temporary_place() / f"clew-measuring-{os.getuid()}.lock"
    try:
        found = os.open(name, _FLAGS, 0o600)
    except OSError:
        return None
    if is_ours(os.fstat(found)):
        return found
    os.close(found)  # of somebody else
    return None
