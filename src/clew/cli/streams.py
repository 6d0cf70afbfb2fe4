"""The standard streams of a command: full disks, closed pipes, and encodings of few characters."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, Final

from clew.support.errors import InputError
from clew.support.system import nowhere

_PIPE: Final = (errno.EPIPE, errno.ESHUTDOWN)


class _Data(io.TextIOWrapper):
    """Standard output: a command whose data cannot be written fails."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _unwritten(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _unwritten(error) from None


class _Notes(io.TextIOWrapper):
    """Standard error: notes that cannot be written are dropped."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _forget(2)


def _unwritten(error: OSError) -> Exception:
    """Returns the error for data that could not be written. A reader that has seen enough closes
    the pipe: the command ends silently.
    """
    _forget(1)
    if error.errno in _PIPE:
        return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    return InputError("I066", f"the output cannot be written: {error.strerror}")


def _forget(number: int) -> None:
    """Discards a stream's buffer: the interpreter would write it at exit."""
    opened = nowhere(write=True)
    os.dup2(opened, number)
    os.close(opened)


def open_streams() -> None:
    """Prepares the standard streams. Characters that an encoding lacks are escaped. Closed streams
    are opened, so that no file gets their numbers: reading finds nothing, data cannot be written.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            nowhere(write=number == 2)
    sys.stdout = _stream(sys.stdout, 1, _Data)
    sys.stderr = _stream(sys.stderr, 2, _Notes)


def _stream(found: Any, number: int, kind: type[io.TextIOWrapper]) -> Any:
    if found is None:
        raw = io.FileIO(number, "w", closefd=False)
        return kind(io.BufferedWriter(raw), "utf-8", "backslashreplace")
    if type(found) is not io.TextIOWrapper:  # a program that calls the command has replaced it
        return found
    encoding, at_once = found.encoding, found.line_buffering
    return kind(found.detach(), encoding, "backslashreplace", line_buffering=at_once)
