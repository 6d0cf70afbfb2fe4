"""Tensor data outside the model file: only regular files inside the model's folder, mapped
read-only.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.onnx.names import display
from clew.support.errors import ModelError

_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class ExternalData:
    """The external files of one model. Each is mapped once; the arrays keep the mapping alive."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._mapped: dict[str, NDArray[np.uint8]] = {}

    def bytes(self, tensor: str, entries: dict[str, str], expected: int) -> NDArray[np.uint8]:
        """Returns a tensor's `expected` bytes, a read-only view of the file.

        Errors: M005 for a place outside the folder, what is no plain file, or a range beyond it.
        """
        location = entries.get("location", "")
        if location not in self._mapped:
            self._mapped[location] = self._open(tensor, location)
        data = self._mapped[location]
        offset = _count(tensor, entries, "offset", 0)
        length = _count(tensor, entries, "length", expected)
        if offset + length > data.size:
            raise _refused(
                tensor,
                f"bytes {offset} to {offset + length} of {display(location)!r}, "
                f"which has {data.size}",
                "the file is cut short, or belongs to another model",
            )
        if length != expected:
            raise ModelError(
                "M006",
                f"tensor {display(tensor)!r} has {length} bytes of external data, "
                f"its type needs {expected}",
                hint="export the model again",
            )
        return data[offset : offset + length]

    def _open(self, tensor: str, location: str) -> NDArray[np.uint8]:
        parts = Path(location).parts
        if self._folder is None:
            raise _refused(
                tensor, "a file, but the model was not read from a folder", "pass a path"
            )
        if not parts or "\0" in location:
            raise _refused(tensor, "a file without a usable name")
        if os.path.isabs(location) or ".." in parts or Path(location).drive:
            raise _refused(tensor, f"{display(location)!r}, which is outside the model's folder")
        try:
            file = _descend(self._folder, parts)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise _refused(
                tensor,
                f"{display(location)!r}, which cannot be opened ({reason})",
                "links are not followed: copy the file into the model's folder",
            ) from None
        try:
            return _map(file, tensor, location)
        finally:
            os.close(file)


def _descend(folder: Path, parts: tuple[str, ...]) -> int:
    """Opens a file step by step from the folder, following no link on the way."""
    here = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    for n, part in enumerate(parts):
        try:
            below = os.open(part, _FILE if n == len(parts) - 1 else _DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def _map(file: int, tensor: str, location: str) -> NDArray[np.uint8]:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise _refused(tensor, f"{display(location)!r}, which is not a regular file")
    if status.st_nlink != 1:
        raise _refused(
            tensor,
            f"{display(location)!r}, a file that has other names (hard links) too",
            "it may be a file from elsewhere: copy it instead of linking it",
        )
    if status.st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(mmap.mmap(file, 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _count(tensor: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise _refused(tensor, f"a file, with {key} {display(text)!r}")
    return int(text)


def _refused(tensor: str, what: str, hint: str = "") -> ModelError:
    return ModelError(
        "M005",
        f"external data of tensor {display(tensor)!r} refers to {what}",
        hint=hint or "external data must be plain files inside the model's folder",
    )


def entries_of(tensor: Any) -> dict[str, str]:
    """Returns a tensor's external data as keys and values."""
    return {entry.key: entry.value for entry in tensor.external_data}
