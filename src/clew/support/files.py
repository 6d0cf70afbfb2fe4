"""Files of which nothing is known but their names."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path, *, links: bool = True) -> BinaryIO:
    """Returns a regular file opened for reading; nothing else is opened, or waited for: a pipe
    would block, a device go on for ever. Without `links` the name itself has to be the file's.

    Errors: OSError, also for what is no regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    file = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return os.fdopen(file, "rb")


def only_ours(folder: Path) -> bool:
    """Whether nobody but this user can put files into a folder (or it does not exist yet)."""
    try:
        status = folder.stat()
    except OSError:
        return True  # whoever makes it owns it
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH
