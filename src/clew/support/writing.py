"""Writes a file named by the user, atomically.

The bytes go to a new file next to the target, which then replaces the target: a reader sees the old
file or the new one. An existing target that is not a regular file is never replaced: writing to a
pipe would block until somebody reads, and a device would lose the data.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from clew.support.files import check_regular

try:
    import fcntl
except ImportError:  # not on POSIX
    fcntl = None  # type: ignore[assignment]

TEMPORARY_PREFIX: Final = ".clew-"
"""Prefix of the names of files being written."""
_NAME: Final = re.escape(TEMPORARY_PREFIX) + "[0-9a-f]{16}"
_PRIVATE: Final = 0o600
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def replacing(path: str | Path, *, mode: int = 0o666, sync: bool = False) -> Iterator[BinaryIO]:
    """Yields a file to write to; it replaces `path` if the block ends without an error.

    An existing file keeps its permissions; a new one gets those of `mode` that the umask leaves.
    With `sync`, the data reach the disk before the file is replaced.

    Errors: OSError, whose `strerror` says why.
    """
    target, kept = _target(Path(path))
    _clean(target.parent)
    name, file = _new_file(target.parent, mode)
    held = os.dup(file)  # holds the lock until the file has its name
    try:
        with os.fdopen(file, "w+b") as stream:
            if kept is not None:
                os.fchmod(file, kept)
            yield stream
            stream.flush()
            if sync:
                os.fsync(file)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            name.unlink()
        raise
    finally:
        os.close(held)


def _new_file(folder: Path, mode: int) -> tuple[Path, int]:
    """Returns a new file to write to, locked until this process closes it or ends. On a disk
    without locks, nobody removes it.
    """
    while True:
        name = folder / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
        file = os.open(name, _CREATE, mode)
        with contextlib.suppress(OSError):
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:  # otherwise another process removed it before it was locked
            return name, file
        os.close(file)


@lru_cache(maxsize=256)
def _clean(folder: Path) -> None:
    """Removes files that killed processes of this user have left behind: none has them locked. A
    process does it once per folder, which may hold many files.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it may not be listed
        for entry in entries:
            if fcntl is not None and re.fullmatch(_NAME, entry.name):
                _remove_abandoned(Path(entry.path))


def _remove_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        finally:
            os.close(file)


def _target(path: Path) -> tuple[Path, int | None]:
    """Returns the file that a path resolves to, and its permissions if it exists.

    Errors: OSError.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return Path(os.path.realpath(path)), None
    except ValueError:
        raise OSError(errno.EINVAL, "its name contains a NUL") from None
    check_regular(status)
    if not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return Path(os.path.realpath(path)), stat.S_IMODE(status.st_mode)


def write_bytes(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Writes a file, atomically.

    Errors: OSError.
    """
    with replacing(path, mode=mode) as stream:
        stream.write(data)


def write_text(path: str | Path, text: str, *, mode: int = 0o666) -> None:
    """Writes text as UTF-8, atomically.

    Errors: OSError; ValueError for text that UTF-8 cannot encode (lone surrogates).
    """
    write_bytes(path, text.encode(), mode=mode)


def npy_bytes(array: Any) -> bytes:
    """Returns an array as the bytes of a `.npy` file."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(array), allow_pickle=False)
    return stream.getvalue()


def write_array(path: str | Path, array: Any) -> None:
    """Writes an array as a `.npy` file, atomically.

    Errors: OSError.
    """
    with replacing(path) as stream:
        np.save(stream, np.asarray(array))


def write_arrays(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays by name as an `.npz` file, atomically.

    Errors: OSError.
    """
    with replacing(path) as stream:
        np.savez(stream, **arrays)


def create(path: str | Path) -> BinaryIO:
    """Returns a new file, open for writing, that only this user may access.

    Errors: OSError, also if the name exists.
    """
    return os.fdopen(os.open(path, _CREATE, _PRIVATE), "w+b")
