"""What a name may lead to that is no regular file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


MAKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory": (lambda path: path.mkdir(), "it is a directory"),
    "pipe": (os.mkfifo, "it is a pipe"),
    "socket": (_socket, "it is a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "terminal": (lambda path: path.symlink_to("/dev/tty"), "it is a device"),
    "circle": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
}
"""How each is made, and what is said of it when it is read."""
