"""Identifies a file by a few bytes at its beginning, and never runs, unpacks or parses it.

At most 64 KiB are read, the list of entries of a ZIP archive, and the first fields of a protobuf
message. Only regular files are opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
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
_MOST_NAMES: Final = 1000
_MOST_FIELDS: Final = 64
_LARGEST_LIST: Final = Budgets(text_chars=1 << 22, values=10_000)
_TEXT: Final = re.compile(rb"[\t\n\v\f\r\x20-\x7e\x80-\xff]*\Z")
_PICKLED: Final = re.compile(rb"\x80[\x02-\x05]")
_DEFLATED: Final = (b"x\x01", b"x\x5e", b"x\x9c", b"x\xda")
_OLD_TORCH: Final = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """Returns the kind of a file by its bytes, or else by its name; None if neither identifies it,
    or if it does not exist or cannot be read.
    """
    return kind_by_bytes(path) or (kind_of_name(path) if os.path.exists(path) else None)


def kind_of_name(path: str | os.PathLike[str]) -> Kind | None:
    """Returns the kind of a file by its suffix; None if that is not conclusive."""
    name = SUFFIXES.get(Path(path).suffix.lower())
    return KINDS[name] if name else None


def kind_by_bytes(path: str | os.PathLike[str]) -> Kind | None:
    """Returns the kind of a file by its bytes alone."""
    place = os.fspath(path)
    try:
        if stat.S_ISDIR(os.stat(place).st_mode):
            return KINDS[_folder(place)]
        with open_plain(place) as file:
            size = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), min(size, _HEAD_BYTES), 0)
            name = _of_bytes(head)
            if not name and not _TEXT.match(head):
                name = _of_message(file.fileno(), size)
    except (OSError, ValueError):
        return None
    if name == "zip":
        name = _archive(place)
    return KINDS[name] if name else None


def kind_in_memory(data: bytes) -> Kind | None:
    """Returns the kind of bytes that a file might hold; None if they are not conclusive."""
    name = _of_bytes(data[:_HEAD_BYTES])
    return KINDS[_archive(data) if name == "zip" else name] if name else None


def form_of(path: str | os.PathLike[str]) -> str:
    """Returns the suffix of the reader for a file: by its bytes, or else its own, in lower case."""
    kind = kind_by_bytes(path)
    return (kind.suffix if kind else "") or Path(path).suffix.lower()


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


def _of_message(file: int, size: int) -> str:
    """Returns the kind of a protobuf message by the numbers of its first fields.

    Source: the .proto files of ONNX (ModelProto), TensorFlow (GraphDef, SavedModel), Core ML
    (Model), Caffe (NetParameter) and PaddlePaddle (ProgramDesc).
    """
    fields = dict.fromkeys(_fields(file, size))
    first = next(iter(fields), None)
    if fields.keys() <= _OF_ONNX and (7, 2) in fields and ((1, 0) in fields or (8, 2) in fields):
        return "onnx"
    if first == (1, 0):
        if (2, 2) in fields and any(200 <= number <= 3000 for number, _ in fields):
            return "coreml"
        saved = os.pread(file, 2, 0) == b"\x08\x01" and fields.keys() == {(1, 0), (2, 2)}
        return "saved_model" if saved else ""
    if first == (1, 2):
        if (100, 2) in fields:
            return "caffe"
        if fields.keys() <= {(1, 2), (2, 2), (3, 0), (4, 2)}:
            head = os.pread(file, 12, 0)
            inside = head[_varint(head, 1)[1] :][:1]
            return {b"\x08": "paddle", b"\x0a": "tensorflow_graph"}.get(inside, "")
    return ""


_OF_ONNX: Final = frozenset(
    ((1, 0), (2, 2), (3, 2), (4, 2), (5, 0), (6, 2), (7, 2), (8, 2), (14, 2), (20, 2), (25, 2),
     (26, 2))
)  # fmt: skip


def _fields(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the number and wire type of a message's first fields. Errors: ValueError."""
    at = 0
    for _ in range(_MOST_FIELDS):
        if at >= size:
            return
        head = os.pread(file, 20, at)
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
        if at > size:
            raise ValueError("no message")
        yield number, wire


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("no message")


# --- archives and folders -----------------------------------------------------------------------


def _archive(place: str | bytes) -> str:
    with suppress(OSError, ValueError, ClewError), in_force(_LARGEST_LIST), Archive(place) as found:
        names = found.members
        for words, name in MEMBERS:
            if all(any(word in f"/{entry}" for entry in names) for word in words):
                return name
    return "zip"


def _folder(path: str) -> str:
    with os.scandir(path) as entries:
        names = [entry.name for entry in islice(entries, _MOST_NAMES)]
    for end, name in FOLDERS:
        if any(each.endswith(end) for each in names):
            return name
    return "folder"
