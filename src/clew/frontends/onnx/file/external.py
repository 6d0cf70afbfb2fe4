"""Tensor data outside the model file: only regular files inside the model's folder, read on demand.
Links are rejected, except those of a model hub's snapshot if requested.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.file_parts import FilePart, has_changed, read_part
from clew.frontends.names import display
from clew.support.errors import ModelError
from clew.support.links import Place, Repository, current_links, repository_of

_PATH_MAX: Final = 4096


class ExternalData:
    """The external files of a model read from a path, None for one that was not. No file is kept
    open, because there may be thousands.

    Errors: M045 if `links="snapshot"` is given and the model is not in a snapshot.
    """

    def __init__(self, model: Path | None) -> None:
        self._folder = None if model is None else model.parent
        self._repository: Repository | None = None
        if model is not None and current_links() == "snapshot":
            self._repository = repository_of(model)
        self._files: dict[str, ExternalFile] = {}

    def part(self, tensor: str, entries: dict[str, str], expected: int) -> FilePart:
        """Returns the location of a tensor's `expected` bytes.

        Errors: M005 for a place outside the folder, a file that is not regular, or a range beyond
        its end.
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
                "the file is truncated, or belongs to another model",
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
            place = Place(self._folder.absolute(), parts)
            if self._repository is not None:
                place = self._repository.place(parts)
            file = place.opened()
        except OSError as error:
            raise self._not_opened(tensor, location, error) from None
        try:
            status = os.fstat(file)
        finally:
            os.close(file)
        _check_plain(status, tensor, location)
        return ExternalFile(place, display(location), status)

    def _not_opened(self, tensor: str, location: str, error: OSError) -> ModelError:
        shown = display(location)
        assert self._folder is not None
        if error.errno == errno.ENOENT and not os.path.lexists(self._folder / location):
            return _refused(
                tensor,
                f"{shown!r}, which does not exist",
                "the files of external data belong in the folder of the model",
            )
        if self._repository is not None:
            return _refused(
                tensor,
                f"{shown!r}, which cannot be opened ({os.strerror(error.errno or 0)})",
                "of a snapshot's links those are followed that lead straight to a file in the "
                "blobs folder of its own repository",
            )
        if _is_link(self._folder, Path(location)):
            return _refused(
                tensor,
                f"{shown!r}, which is a link, or lies in a folder that is one",
                "links are not followed: copy the file into the model's folder; those of a model "
                'hub\'s snapshot are with clew.load(..., links="snapshot"), or --links snapshot',
            )
        reason = os.strerror(error.errno or 0)
        return _refused(tensor, f"{shown!r}, which cannot be opened ({reason})")


class ExternalFile:
    """A file next to a model. It is opened for each read, and must be unchanged.

    If the file has been truncated, reading raises an error; accessing a mapping would crash.
    """

    def __init__(self, place: Place, shown: str, status: os.stat_result) -> None:
        self._place = place
        self._shown = shown
        self._version = _version(status)
        self.size_bytes = status.st_size

    @property
    def token(self) -> str:
        """Identifies the content; the time of the last change of any kind cannot be set back."""
        return f"file {self._version}"

    def read(self, start: int, size_bytes: int) -> NDArray[np.uint8]:
        """Returns a part of the file.

        Errors: M013 if the file has changed since the model was loaded.
        """
        try:
            file = self._place.opened()
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
    """Returns a value that identifies a file and its content."""
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, status.st_nlink, *times)


def _is_link(folder: Path, location: Path) -> bool:
    """Whether a file, or a folder on the way to it, is a link; used only for messages."""
    return len(str(location)) < _PATH_MAX and any(
        os.path.islink(folder / part) for part in (location, *location.parents)
    )


def _check_plain(status: os.stat_result, tensor: str, location: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(tensor, f"{display(location)!r}, which is not a regular file")
    if status.st_nlink != 1:
        raise _refused(
            tensor,
            f"{display(location)!r}, a file with other names (hard links)",
            "the file may belong to another folder: copy it instead of linking it",
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
