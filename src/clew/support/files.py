"""Reads files named by the user. All of clew reads them here.

A name may lead anywhere. Only regular files are opened, so clew never waits for a pipe and never
reads a device without end. Their size is checked against the budget before they are read, and a
file that changes meanwhile is rejected. `tools/file_access.py` checks that no other module of clew
opens files.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final, NoReturn, TypeAlias

from clew.support.budgets import current, exceeded
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.scoped import scoped

Stamp: TypeAlias = "tuple[int, ...]"
Identity: TypeAlias = "tuple[int, int, int, int, int]"
CHANGED: Final = "it changed while it was read"
_noted: ContextVar[list[Read] | None] = ContextVar("noted", default=None)
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_STEP: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES: Final = 1 << 16
_KINDS: Final = (
    (stat.S_ISDIR, errno.EISDIR, "it is a directory"),
    (stat.S_ISFIFO, errno.ESPIPE, "it is a pipe"),
    (stat.S_ISSOCK, errno.ENXIO, "it is a socket"),
    (stat.S_ISCHR, errno.ENODEV, "it is a device"),
    (stat.S_ISBLK, errno.ENODEV, "it is a device"),
)


def open_plain(path: str | Path, *, links: bool = True, folder: int | None = None) -> BinaryIO:
    """Returns a regular file opened for reading. Never opens, or waits for, anything else.

    Without `links`, the path itself must not be a link. `folder` is an open folder that a relative
    path starts from.

    Errors: OSError, whose `strerror` gives the reason.
    """
    flags = _READ if links else _READ | os.O_NOFOLLOW

    def checked(name: str, _: int) -> int:
        # Opening some devices has side effects, so check first.
        check_regular(os.stat(name, dir_fd=folder, follow_symlinks=links))
        file = os.open(name, flags, dir_fd=folder)
        try:
            check_regular(os.fstat(file))  # another file may have replaced it
        except BaseException:
            os.close(file)
            raise
        return file

    try:
        # The descriptor has one owner at any time: Ctrl-C cannot have it closed twice.
        file = open(path, "rb", opener=checked)  # noqa: SIM115
    except ValueError:
        raise OSError(errno.EINVAL, "its name contains a NUL") from None
    if folder is None:
        _note(path, (), file.fileno())
    return file


def check_regular(status: os.stat_result) -> None:
    """Checks that a file is regular.

    Errors: OSError.
    """
    if stat.S_ISREG(status.st_mode):
        return
    for is_kind, number, text in _KINDS:
        if is_kind(status.st_mode):
            raise OSError(number, text)
    raise OSError(errno.ELOOP if stat.S_ISLNK(status.st_mode) else errno.EINVAL, "it is a link")


def open_below(folder: Path, parts: Sequence[str]) -> int:
    """Returns a descriptor of a file in a folder, opened step by step without following a link.

    The file may be of any kind: the caller checks its status. Opening a pipe does not block.

    Errors: OSError.
    """
    above = folder_below(folder, parts[:-1])
    try:
        file = os.open(parts[-1], _READ | os.O_NOFOLLOW, dir_fd=above)
    finally:
        os.close(above)
    _note(folder, parts, file)
    return file


def folder_below(folder: Path, parts: Sequence[str]) -> int:
    """Returns a descriptor of a folder in another, opened step by step without following a link.

    Errors: OSError.
    """
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            below = os.open(part, _STEP, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


@dataclass(frozen=True)
class Read:
    """A file that was opened: its path, or a folder and the steps below it, and its identity."""

    path: str
    below: tuple[str, ...]
    identity: Identity


@contextmanager
def noting_reads() -> Iterator[list[Read]]:
    """Yields a list to which the files that this thread opens inside the block are added."""
    noted: list[Read] = []
    with scoped(_noted, noted):
        yield noted


def _note(path: str | Path, below: Sequence[str], file: int) -> None:
    noted = _noted.get()
    if noted is None:
        return
    read = Read(os.path.abspath(path), tuple(below), identity_of(file))
    if read not in noted[-1:]:
        noted.append(read)


def identity_of(file: int) -> Identity:
    """Returns what changes if an open file is written or replaced. The last of it, the time of the
    last change of any kind, cannot be set back.
    """
    found = os.fstat(file)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def stamp_of(file: int) -> Stamp:
    """Returns a stamp that changes if somebody writes to an open file. Replacing the file is
    harmless.
    """
    found = os.fstat(file)
    return (found.st_size, found.st_mtime_ns)


def reason_of(error: BaseException) -> str:
    """Returns why a file cannot be read or written, without numbers and names."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) or type(error).__name__


def read_bytes(path: str | Path, *, links: bool = True) -> bytes:
    """Returns the bytes of a file.

    Errors: OSError if it is not a regular file, cannot be read, or changes meanwhile; I330 if it
    exceeds the budget `file_bytes`.
    """
    with open_plain(path, links=links) as file:
        return read_opened(file, path)


def package_bytes(path: str) -> bytes:
    """Returns the bytes of a file of clew's own, without the checks of files that users name: it
    takes a third of the time.

    Errors: OSError.
    """
    file, pieces = os.open(path, os.O_RDONLY | os.O_CLOEXEC), []
    try:
        while piece := os.read(file, _PIECE_BYTES):
            pieces.append(piece)
    finally:
        os.close(file)
    return b"".join(pieces)


def read_opened(file: BinaryIO, path: str | Path) -> bytes:
    """Returns the bytes of an open file; `path` stands for it in errors.

    Errors: OSError if it changes meanwhile; I330.
    """
    before = stamp_of(file.fileno())
    size_bytes, most = os.fstat(file.fileno()).st_size, current().file_bytes
    if size_bytes > most:
        what = f"bytes of {str(path)!r}"
        raise exceeded(InputError, "I330", what, size_bytes, "file_bytes", most)
    # Read no more than the status claims: some system files have no size and no end.
    data = file.read(size_bytes) if size_bytes else b""
    if len(data) != size_bytes or stamp_of(file.fileno()) != before:
        raise OSError(errno.ESTALE, CHANGED)
    return data


def read_text(path: str | Path) -> str:
    """Returns the text of a file, with line feeds as line ends.

    Errors: ValueError if it is not UTF-8; those of `read_bytes`.
    """
    return text_of(read_bytes(path)).replace("\r\n", "\n").replace("\r", "\n")


def text_of(data: bytes) -> str:
    """Returns bytes as text.

    Errors: ValueError if they are not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise ValueError(f"it is not UTF-8 text: byte {byte:#04x} at {error.start}") from None


def read_json_file(path: str | Path) -> Any:
    """Returns the value in a JSON file.

    Errors: ValueError; those of `read_bytes`.
    """
    return json_of(read_bytes(path))


def json_of(data: bytes, *, finite: bool = False) -> Any:
    """Returns the value of a JSON text; with `finite`, NaN and infinities are errors.

    Errors: ValueError if it is not JSON, or nested too deeply; I330 if it is longer than the budget
    `attribute_bytes`, since its values take many times as much memory.
    """
    most = current().attribute_bytes
    if len(data) > most:
        raise exceeded(
            InputError, "I330", "bytes of a JSON text", len(data), "attribute_bytes", most
        )
    try:
        return json.loads(text_of(data), parse_constant=_not_finite if finite else None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def run_program(path: str | Path) -> dict[str, Any]:
    """Runs a user's Python file and returns the names it defines.

    Errors: those of `read_bytes`, and any exception of the program.
    """
    code = compile(read_bytes(path), str(path), "exec", dont_inherit=True)
    module = ModuleType("<run_path>")
    module.__file__ = str(path)
    with _known(module):
        exec(code, module.__dict__)
        return dict(module.__dict__)


@contextmanager
def _known(module: ModuleType) -> Iterator[None]:
    """Registers a module as imported inside the block: class decorators look it up there."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
