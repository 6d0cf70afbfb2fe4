"""Tensor data outside the model file: only regular files inside the model's folder, read when they
are needed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.onnx.names import display
from clew.frontends.onnx.slim import FilePart, has_changed, read_part
from clew.support.errors import ModelError

_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class ExternalData:
    """The external files of one model. None stays open: there may be thousands."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: dict[str, ExternalFile] = {}

    def part(self, tensor: str, entries: dict[str, str], expected: int) -> FilePart:
        """Returns where a tensor's `expected` bytes are.

        Errors: M005 for a place outside the folder, what is no plain file, or a range beyond it.
        """
        location = entries.get("location", "")
        if location not in self._files:
            self._files[location] = self._open(tensor, location)
        file = self._files[location]
        offset = _count(tensor, entries, "offset", 0)
        length = _count(tensor, entries, "length", expected)
        if offset + length > file.size_bytes:
            raise _refused(
                tensor,
                f"bytes {offset} to {offset + length} of {display(location)!r}, "
                f"which has {file.size_bytes}",
                "the file is cut short, or belongs to another model",
            )
        if length != expected:
            raise ModelError(
                "M006",
                f"tensor {display(tensor)!r} has {length} bytes of external data, "
                f"its type needs {expected}",
                hint="export the model again",
            )
        return FilePart(file, offset, length)

    def _open(self, tensor: str, location: str) -> ExternalFile:
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
            status = os.fstat(file)
        finally:
            os.close(file)
        _check_plain(status, tensor, location)
        return ExternalFile(self._folder, parts, display(location), status)


class ExternalFile:
    """A file beside a model. It is opened for each read, and has to be the one it was.

    Reading, unlike a mapping, ends in an error where the file has been cut short meanwhile.
    """

    def __init__(
        self, folder: Path, parts: tuple[str, ...], shown: str, status: os.stat_result
    ) -> None:
        self._folder = folder.absolute()
        self._parts = parts
        self._shown = shown
        self._version = _version(status)
        self.size_bytes = status.st_size

    @property
    def token(self) -> str:
        """Names the content; the time of the last change of any kind can't be put back."""
        return f"file {self._version}"

    def read(self, start: int, size_bytes: int) -> NDArray[np.uint8]:
        """Returns a part of the file.

        Errors: M013 when the file has changed since the model was loaded.
        """
        try:
            file = _descend(self._folder, self._parts)
        except OSError:
            raise has_changed(self._shown) from None
        try:
            same = _version(os.fstat(file)) == self._version
            array = read_part(file, start, size_bytes) if same else None
            if array is None or _version(os.fstat(file)) != self._version:
                raise has_changed(self._shown)
            return array
        finally:
            os.close(file)


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Returns what tells a file, and each of its contents, from others."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, status.st_nlink, *times)


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


def _check_plain(status: os.stat_result, tensor: str, location: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(tensor, f"{display(location)!r}, which is not a regular file")
    if status.st_nlink != 1:
        raise _refused(
            tensor,
            f"{display(location)!r}, a file that has other names (hard links) too",
            "it may be a file from elsewhere: copy it instead of linking it",
        )


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
