"""Locks between processes: for measurements, one at a time on a machine, and for folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
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


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Yields whether no other process is inside for this folder; does not wait.

    A process that ends, however it ends, is no longer inside. On a file system without locks, the
    answer is yes.

    Errors: OSError if the folder cannot be opened.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_alone = True
        with suppress(OSError):
            try:
                if fcntl is not None:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_alone = False
        yield is_alone
    finally:
        os.close(opened)


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
