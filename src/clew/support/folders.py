"""Folders that nobody but this user may change: what is read from them is run.

Who may write to a folder, or to one above it, may put files there. So each step of the way counts:
it belongs to this user or to root, and others may write to it only where they cannot exchange what
is somebody else's (a sticky folder, such as `/tmp`). Decisions are made by owner and mode, which
bind root as well.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Final

from clew.support.files import open_plain

PRIVATE: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def why_not_ours(folder: Path) -> str:
    """Returns why others may exchange a folder, or why it is none of this user's; "" where neither
    is so. Who may write to the folder itself is for `is_ours` to say; it need not exist yet.
    """
    try:
        for place, status, is_end in _steps(folder):
            if status.st_uid != os.geteuid() and (is_end or status.st_uid != 0):
                return f"{place} belongs to somebody else"
            if not is_end and stat.S_ISDIR(status.st_mode) and _others_write(status):
                return f"others may write to {place}"
    except (OSError, ValueError) as error:
        return f"{folder} cannot be looked at: {getattr(error, 'strerror', None) or error}"
    return ""


def is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user, and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _others_write(status: os.stat_result) -> bool:
    """Whether others may exchange what a folder holds that is not theirs."""
    if not status.st_mode & _OTHERS_WRITE or status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & stat.S_IWOTH) or not _is_private_group(status.st_gid)


def _is_private_group(gid: int) -> bool:
    """Whether a group has this user alone, as systems give one to each (umask 002)."""
    try:
        own, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    if own.pw_gid != gid or own.pw_name != group.gr_name or set(group.gr_mem) - {own.pw_name}:
        return False
    return all(user.pw_uid == own.pw_uid for user in pwd.getpwall() if user.pw_gid == gid)


def _steps(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yields each folder and link on the way to a place, the place too, as far as they exist, and
    whether it is the place.
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
    """Makes a folder, and those above it that are missing, for this user alone.

    Errors: OSError.
    """
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        try:
            os.mkdir(place, PRIVATE)
        except FileExistsError:
            if not place.is_dir():
                raise


def open_folder(path: Path) -> int:
    """Returns a descriptor of a folder that is this user's; a link to one is none.

    Errors: OSError.
    """
    folder = os.open(path, _FOLDER)
    if is_ours(os.fstat(folder)):
        return folder
    os.close(folder)
    raise OSError(errno.EPERM, f"{path} belongs to somebody else, or others may write to it")


def open_ours(name: str, folder: int) -> BinaryIO:
    """Returns a file in an open folder, which has to be a regular file of this user's that nobody
    else may write to.

    Errors: OSError.
    """
    file = open_plain(name, links=False, folder=folder)
    if is_ours(os.fstat(file.fileno())):
        return file
    file.close()
    raise OSError(errno.EPERM, "it belongs to somebody else, or others may write to it")


def create_in(folder: int, name: str) -> BinaryIO:
    """Returns a new file in an open folder to write to, for this user alone.

    Errors: OSError, also where the name is taken.
    """
    return os.fdopen(os.open(name, _CREATE, _PRIVATE_FILE, dir_fd=folder), "wb")


def temporary_folder(prefix: str, inside: Path | None = None) -> Path:
    """Returns a new folder for this user alone, among temporary files unless told otherwise.

    Errors: OSError.
    """
    return Path(tempfile.mkdtemp(prefix=prefix, dir=inside))


def temporary_place() -> Path:
    """Returns where temporary files are made."""
    return Path(tempfile.gettempdir())


def temporaries_in(folder: str) -> None:
    """Has this process make its temporary files in a folder from now on."""
    tempfile.tempdir = folder


def scratch_file() -> IO[bytes]:
    """Returns a file without a name, which is gone when it is closed.

    Errors: OSError.
    """
    return tempfile.TemporaryFile()
