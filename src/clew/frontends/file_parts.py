"""Parts of model files, read on demand into aligned arrays."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clew.support.arrays import aligned_empty
from clew.support.dataclass import dataclass
from clew.support.errors import ModelError


class ModelFile:
    """An open model file, for as long as parameters may be read from it.

    It stays open, so a new file of the same name does not matter; overwriting the file is detected.
    `token` identifies its content: other content has another file, size or time.
    """

    def __init__(self, file: int, shown: str) -> None:
        self._file = os.dup(file)
        self._shown = shown
        status = os.fstat(self._file)
        self._version = self._stamp()
        # The time of the last change of any kind cannot be set back, unlike that of the last write.
        self.token = f"file {status.st_dev} {status.st_ino} {status.st_ctime_ns} {self._version}"
        weakref.finalize(self, os.close, self._file)

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def read(self, start: int, size_bytes: int) -> NDArray[np.uint8]:
        """Returns a part of the file, aligned for vector loads.

        Errors: M013 if the file has changed since it was opened.
        """
        array = read_part(self._file, start, size_bytes)
        if array is None or self._stamp() != self._version:
            raise has_changed(self._shown)
        return array


def read_part(file: int, start: int, size_bytes: int) -> NDArray[np.uint8] | None:
    """Returns a part of an open file, read-only and aligned; None if the file is too short."""
    array = aligned_empty((size_bytes,), np.uint8)
    view, done = array.data, 0
    while done < size_bytes:
        count = os.preadv(file, [view[done:]], start + done)
        if not count:
            return None
        done += count
    array.flags.writeable = False
    return array


def has_changed(shown: str) -> ModelError:
    """Returns the error for a file that has changed since it was opened."""
    return ModelError(
        "M013",
        f"{shown!r} has changed since it was loaded",
        hint="load it again; write a new model to a new file and rename that",
    )


class Readable(Protocol):
    """A file whose parts are read on demand."""

    @property
    def token(self) -> str:
        """Identifies its content: other content has another token."""
        ...

    def read(self, start: int, size_bytes: int) -> NDArray[np.uint8]:
        """Returns a part. Errors: M013."""
        ...


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a model file, or of a file next to it, read on demand."""

    file: Readable
    start: int
    size_bytes: int

    @property
    def token(self) -> str:
        """Identifies the bytes."""
        return f"{self.file.token} {self.start} {self.size_bytes}"

    def read(self) -> NDArray[np.uint8]:
        """Returns the bytes.

        Errors: M013.
        """
        return self.file.read(self.start, self.size_bytes)
