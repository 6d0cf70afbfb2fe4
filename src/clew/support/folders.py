"""Folders that only this user may change: clew executes files read from them.

A user who may write to a folder, or to one above it, may put files there. So each component of the
path is checked: it must belong to this user or to root, and be writable by others only if they
cannot replace files of other users (a sticky folder, such as `/tmp`). The checks use owner and
mode, and so apply to root as well.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

from clew.support.files import open_plain

PRIVATE: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def why_not_ours(folder: Path) -> str:
    """Returns why others may replace a folder, or why it does not belong to this user; "" if
    neither is so. `is_ours` checks who may write to the folder itself, which need not exist yet.
    """
    try:
        for place, status, is_end in _steps(folder):
            if status.st_uid != os.geteuid() and (is_end or status.st_uid != 0):
                return f"{place} belongs to somebody else"
            if not is_end and stat.S_ISDIR(status.st_mode) and _others_write(status):
                return f"others may write to {place}"
    except (OSError, ValueError) as error:
        return f"{folder} cannot be examined: {getattr(error, 'strerror', None) or error}"
    return ""


def is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this userand is writable by nobody else."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _others_write(status: os.stat_result) -> bool:
    """Whether others may replace files of other users in a folder."""
    if not status.st_mode & _OTHERS_WRITE or status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & stat.S_IWOTH) or not _is_private_group(status.st_gid)


def _is_private_group(gid: int) -> bool:
    """Whether a group has only this user as its member: some systems create one per user (umask
    002).
    """
    try:
        own, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    if own.pw_gid != gid or own.pw_name != group.gr_name or set(group.gr_mem) - {own.pw_name}:
        return False
    return all(user.pw_uid == own.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yields each existing folder and link on the path to a place, including the place, and whether
    it is the place.
    """
    pending = list(reversed(path.absolute().parts[1:]))
    here, links = Path("/"), 0
    yield here, os.lstat(here), not pending
    while pending:
        part = pending.pop()
        if part == "..":
            here = here.parent
            continue
        found = here / part
        try:
            status = os.lstat(found)
        except FileNotFoundError:
            return
        is_link = stat.S_ISLNK(status.st_mode)
        yield found, status, not pending and not is_link
        if not is_link:
            here = found
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = Path(os.readlink(found))
        here = Path("/") if target.is_absolute() else here
        pending += reversed([p for p in target.parts if p != "/"])


def make_private(folder: Path) -> None:
    """Creates a folder, and missing folders above it, accessible only to this user.

    Errors: OSError.
    """
    missing = [folder]
    while not os.path.exists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        try:
            os.mkdir(place, PRIVATE)
        except FileExistsError:
            if not os.path.isdir(place):
                raise


def open_folder(path: Path) -> int:
    """Returns a descriptor of a folder that belongs to this user. A link to a folder is an error.

    Errors: OSError.
    """
    folder = os.open(path, _FOLDER)
    if is_ours(os.fstat(folder)):
        return folder
    os.close(folder)
    raise OSError(errno.EPERM, f"{path} belongs to somebody else, or others may write to it")


def open_ours(name: str, folder: int) -> BinaryIO:
    """Returns a file in an open folder. It must be a regular file that belongs to this user and
    that nobody else may write to.

    Errors: OSError.
    """
    file = open_plain(name, links=False, folder=folder)
    if is_ours(os.fstat(file.fileno())):
        return file
    file.close()
    raise OSError(errno.EPERM, "it belongs to somebody else, or others may write to it")


def create_in(folder: int, name: str) -> BinaryIO:
    """Returns a new file in an open folder, open for writing, that only this user may access.

    Errors: OSError, also if the name exists.
    """
    return os.fdopen(os.open(name, _CREATE, _PRIVATE_FILE, dir_fd=folder), "wb")


def temporary_folder(prefix: str, inside: Path | None = None) -> Path:
    """Returns a new folder, by default among temporary files, that only this user may access.

    Errors: OSError.
    """
    return Path(_tempfile().mkdtemp(prefix=prefix, dir=inside))


def temporary_place() -> Path:
    """Returns the folder for temporary files."""
    return Path(_tempfile().gettempdir())


def temporaries_in(folder: str) -> None:
    """Makes this process create its temporary files in a folder from now on."""
    _tempfile().tempdir = folder


def scratch_file() -> IO[bytes]:
    """Returns a file without a name, which disappears when it is closed.

    Errors: OSError.
    """
    return cast("IO[bytes]", _tempfile().TemporaryFile())


def _tempfile() -> Any:
    import tempfile  # noqa: PLC0415 - it loads many modules, which few need

    return tempfile
