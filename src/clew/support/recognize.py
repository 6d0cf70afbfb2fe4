"""Shows what a file is from a few bytes at its beginning, and never runs or parses it.

At most 64 KiB are read, the list of entries of a ZIP archive, and the first fields of a protobuf
message. Of a compressed file, at most 64 KiB are unpacked. Only regular files are opened. Formats
that clew reads recognize their own files (`frontends/format.py`); the tables of `kinds.py` name the
others.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from clew.support.archives import Archive
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from clew.support.files import open_plain
from clew.support.kinds import (
    FOLDERS,
    IDENTIFIERS,
    KINDS,
    MEMBERS,
    PREFIXES,
    SUFFIXES,
    WORDS,
    Kind,
)

_HEAD_BYTES: Final = 1 << 16
_UNPACKING_BYTES: Final = 64 << 20
_TAR_BLOCK: Final = 512
_MOST_NAMES: Final = 1000
_MOST_FIELDS: Final = 64
_LARGEST_LIST: Final = Budgets(text_chars=1 << 22, values=10_000)
_TEXT: Final = re.compile(rb"[\t\n\v\f\r\x20-\x7e\x80-\xff]*\Z")
_PICKLED: Final = re.compile(rb"\x80[\x02-\x05]")
_DEFLATED: Final = (b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")
_OLD_TORCH: Final = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class Head:
    """The beginning of a file, or of bytes in memory, and what it shows.

    `place` is the file's name, or the bytes; `read(count, at)` returns some of them. If they are
    not the `whole` file, the rest is unknown.
    """

    def __init__(
        self,
        place: str | bytes,
        size: int,
        read: Callable[[int, int], bytes],
        *,
        whole: bool = True,
    ) -> None:
        self.start: Final = read(min(size, _HEAD_BYTES), 0)
        self._place = place
        self._size = size
        self._read = read
        self._whole = whole

    @cached_property
    def name(self) -> str:
        """The name of the kind by the first bytes; "" if they do not tell."""
        return _of_bytes(self.start)

    @cached_property
    def fields(self) -> tuple[tuple[int, int], ...]:
        """Number and wire type of the first fields of a protobuf message, each once; nothing for
        other bytes.
        """
        if self.name or _TEXT.match(self.start):
            return ()
        try:
            return tuple(dict.fromkeys(_fields(self._read, self._size, self._whole)))
        except ValueError:
            return ()

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The names of a ZIP archive's entries, each after a `/`; nothing for other bytes."""
        if self.name != "zip":
            return ()
        names: tuple[str, ...] = ()
        with (
            suppress(OSError, ValueError, ClewError),
            in_force(_LARGEST_LIST),
            Archive(self._place) as found,
        ):
            names = tuple(f"/{entry}" for entry in found.members)
        return names


@contextmanager
def head_of(path: str | os.PathLike[str]) -> Iterator[Head]:
    """Opens a regular file to look at its beginning. Raises `OSError` or `ValueError`."""
    place = os.fspath(path)
    with open_plain(place) as file:
        number = file.fileno()
        size = os.fstat(number).st_size
        yield Head(place, size, lambda count, at: os.pread(number, count, at))


def head_in_memory(data: bytes, *, whole: bool = True) -> Head:
    """Returns the beginning of bytes that a file might hold."""
    return Head(data, len(data), lambda count, at: data[at : at + count], whole=whole)


def head_inside(head: Head) -> Head | None:
    """Returns the beginning of what a compressed file, or the first file of a tar archive, holds;
    None for other bytes, and for damaged ones.
    """
    found = b""
    with suppress(OSError, ValueError, EOFError, zlib.error, lzma.LZMAError):
        if head.name == "gzip":
            found = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head.start, _HEAD_BYTES)
        elif head.name == "bzip2":
            found = bz2.BZ2Decompressor().decompress(head.start, _HEAD_BYTES)
        elif head.name == "xz":
            unpacks = lzma.LZMADecompressor(memlimit=_UNPACKING_BYTES)
            found = unpacks.decompress(head.start, _HEAD_BYTES)
        elif head.name == "tar":
            found = _first_of_tar(head.start)
    return head_in_memory(found, whole=False) if found else None


def _first_of_tar(start: bytes) -> bytes:
    """Returns the beginning of the first file of an archive; nothing if it is further on."""
    at = 0
    while start[at + 257 : at + 262] == b"ustar":
        size = int(start[at + 124 : at + 135].rstrip(b"\0 ") or b"0", 8)
        if start[at + 156 : at + 157] in (b"0", b"\0"):
            return start[at + _TAR_BLOCK : at + _TAR_BLOCK + size]
        at += _TAR_BLOCK * (1 - -size // _TAR_BLOCK)
    return b""


def kind_of_name(path: str | os.PathLike[str]) -> Kind | None:
    """Returns the kind of a file by its suffix; None if that is not conclusive."""
    name = SUFFIXES.get(Path(path).suffix.lower())
    return KINDS[name] if name else None


def kind_of_head(head: Head) -> Kind | None:
    """Returns what bytes of a kind that clew does not read are; None if they do not tell."""
    name = head.name or _of_message(head)
    if name == "zip":
        name = next((n for words, n in MEMBERS if has_members(head, words)), "zip")
    return KINDS[name] if name else None


def has_members(head: Head, words: Iterable[str]) -> bool:
    """Whether each word occurs in the name of an archive's entry."""
    return all(any(word in entry for entry in head.members) for word in words)


def folder_names(path: str | os.PathLike[str]) -> list[str] | None:
    """Returns the first names in a folder; None for other paths. Raises `OSError`."""
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return None
    with os.scandir(path) as entries:
        return [entry.name for entry in islice(entries, _MOST_NAMES)]


def kind_of_folder(names: Iterable[str]) -> Kind:
    """Returns what a folder with these names is."""
    held = list(names)
    found = (n for end, n in FOLDERS if any(name.endswith(end) for name in held))
    return KINDS[next(found, "folder")]


def _of_bytes(head: bytes) -> str:
    """Returns the name of the kind of a file by its first bytes; "" if they are not conclusive."""
    if not head:
        return "empty"
    for start, name in PREFIXES:
        if head.startswith(start):
            return name
    if head[4:8] in IDENTIFIERS:
        return IDENTIFIERS[head[4:8]]
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return "zip"
    if head[257:262] == b"ustar":
        return "tar"
    if (
        head[8:9] == b"{"
        and int.from_bytes(head[:8], "little") < 1 << 32
        and (head[8:].lstrip(b"{ \n").startswith((b'"', b"}")))
    ):
        return "safetensors"
    if _PICKLED.match(head):
        if b"sklearn" in head:
            return "sklearn"
        return "torch_save" if _OLD_TORCH in head or b"torch" in head else "pickle"
    if head[:2] in _DEFLATED and not _TEXT.match(head):
        return "joblib"
    if head.startswith(b"{L") and b"learner" in head[:64]:
        return "xgboost"
    return _of_text(head)


def _of_text(head: bytes) -> str:
    """Returns the kind of a text; "" for other bytes, and for a text of no known kind."""
    if not _TEXT.match(head):
        return ""
    start = head[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    lower = start.lower()
    for word, name in WORDS:
        if word in (lower if word.startswith((b"<!", b"<h")) else start):
            return name
    return "json" if start[:1] in (b"{", b"[") else ""


# --- messages ---------------------------------------------------------------------------------


def _of_message(head: Head) -> str:
    """Returns the kind of a protobuf message by the numbers of its first fields.

    Source: the .proto files of TensorFlow (GraphDef, SavedModel), Core ML (Model), Caffe
    (NetParameter) and PaddlePaddle (ProgramDesc).
    """
    fields = head.fields
    first = next(iter(fields), None)
    if first == (1, 0):
        if (2, 2) in fields and any(200 <= number <= 3000 for number, _ in fields):
            return "coreml"
        saved = head.start[:2] == b"\x08\x01" and set(fields) == {(1, 0), (2, 2)}
        return "saved_model" if saved else ""
    if first == (1, 2):
        if (100, 2) in fields:
            return "caffe"
        if set(fields) <= {(1, 2), (2, 2), (3, 0), (4, 2)}:
            start = head.start[:12]
            inside = start[_varint(start, 1)[1] :][:1]
            return {b"\x08": "paddle", b"\x0a": "tensorflow_graph"}.get(inside, "")
    return ""


def _fields(read: Callable[[int, int], bytes], size: int, whole: bool) -> Iterator[tuple[int, int]]:
    """Yields the number and wire type of a message's first fields. The last may reach beyond the
    bytes, if they are not the `whole` message. Errors: ValueError.
    """
    at = 0
    for _ in range(_MOST_FIELDS):
        if at >= size:
            return
        head = read(20, at)
        tag, used = _varint(head, 0)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise ValueError("no message")
        if wire == 0:
            _, used = _varint(head, used)
        elif wire == 2:
            length, used = _varint(head, used)
            used += length
        elif wire in (1, 5):
            used += 8 if wire == 1 else 4
        else:
            raise ValueError("no message")
        at += used
        if at > size and whole:
            raise ValueError("no message")
        yield number, wire


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("no message")
