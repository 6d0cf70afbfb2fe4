"""A file of one JSON text and many blobs, sealed with a checksum: the outer format of a saved
model.

Little endian. A header, the text, then the blobs, each at a multiple of 64 bytes from the start of
the file, so that they are aligned in a mapping of the file. All gaps are zeros.

| offset | bytes | field |
|---|---|---|
| 0 | 8 | magic, `89 43 4c 45 57 0d 0a 1a` |
| 8 | 4 | version of the format |
| 12 | 4 | bytes of the header, this table |
| 16 | 8 | bytes of the file |
| 24 | 8 | bytes of the text, which follows the header |
| 32 | 4 | CRC-32 of bytes 0 to 31 and of everything from byte 36 on |
| 36 | 28 | zeros |
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from clew.runtime.memory import round_up
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.dataclass import dataclass
from clew.support.errors import CompileError
from clew.support.files import open_plain, reason_of
from clew.support.writing import replacing

MAGIC: Final = b"\x89CLEW\r\n\x1a"
FORMAT_VERSION: Final = 6
HEADER_BYTES: Final = 64
# The text's field with the offset and size in bytes of each blob.
BLOBS: Final = "blobs"

_FIELDS: Final = struct.Struct("<8sIIQQ")
_CHECKSUM: Final = struct.Struct("<I")
_REST: Final = bytes(HEADER_BYTES - _FIELDS.size - _CHECKSUM.size)
_RETRY: Final = "save the model again, or copy the file again"


@dataclass(frozen=True)
class Container:
    """An opened file: its parsed text, and its blobs as views of read-only shared pages."""

    text: dict[str, Any]
    blobs: Sequence[np.ndarray]


def write_container(
    path: Path,
    text: dict[str, Any],
    blobs: Sequence[np.ndarray],
    version: int = FORMAT_VERSION,
    *,
    mode: int = 0o666,
) -> None:
    """Writes the file atomically: readers of `path` see the old file or the new one.

    `blobs` are u8 arrays. Equal arguments give equal bytes. `mode` holds the permissions of a new
    file.

    Errors: C050 if the file cannot be written.
    """
    pieces = packed(text, blobs, version)
    try:
        with replacing(path, mode=mode, sync=True) as stream:
            for piece in pieces:
                stream.write(piece)
    except OSError as error:
        raise CompileError(
            "C050",
            f"{path} cannot be written: {reason_of(error)}",
            hint="name a file in a folder that exists and that you may write to",
        ) from error


def packed(
    text: dict[str, Any], blobs: Sequence[np.ndarray], version: int = FORMAT_VERSION
) -> list[bytes | memoryview]:
    """Returns the bytes of a file in pieces."""
    encoded, offsets = _with_offsets(text, blobs)
    end = offsets[-1] + blobs[-1].nbytes if blobs else HEADER_BYTES + len(encoded)
    fields = _FIELDS.pack(MAGIC, version, HEADER_BYTES, end, len(encoded))
    pieces, checksum = list(_pieces(encoded, offsets, blobs)), zlib.crc32(fields)
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return [fields + _CHECKSUM.pack(checksum), *pieces]


def _with_offsets(text: dict[str, Any], blobs: Sequence[np.ndarray]) -> tuple[bytes, list[int]]:
    """Returns the text with the positions of the blobs, and their offsets in the file."""
    relative, position = [], 0
    for blob in blobs:
        relative.append(position)
        position = round_up(position + blob.nbytes, ALIGNMENT_BYTES)
    places = [[start, blob.nbytes] for start, blob in zip(relative, blobs, strict=True)]
    whole = {**text, BLOBS: places}
    encoded = json.dumps(whole, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
    base = _blob_base(len(encoded))
    return encoded, [base + start for start in relative]


def _blob_base(text_bytes: int) -> int:
    """Returns the position of the first blob, from which offsets in the text count."""
    return round_up(HEADER_BYTES + text_bytes, ALIGNMENT_BYTES)


def _pieces(
    encoded: bytes, offsets: Sequence[int], blobs: Sequence[np.ndarray]
) -> Iterator[bytes | memoryview]:
    """Yields everything after the checksum, in order."""
    yield _REST
    yield encoded
    position = HEADER_BYTES + len(encoded)
    for offset, blob in zip(offsets, blobs, strict=True):
        yield bytes(offset - position)
        yield blob.data
        position = offset + blob.nbytes


def read_container(path: Path) -> Container:
    """Returns a file's content, mapped without a copy, after checking all of it.

    Errors: C050 (cannot be read), and the errors of `read_opened`.
    """
    try:
        stream = open_plain(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    with stream:
        return read_opened(stream, path)


def read_opened(stream: BinaryIO, path: str | Path, *, checked: bool = False) -> Container:
    """Returns an open file's content, mapped without a copy, after checking all of it. With
    `checked`, the caller has verified the checksum. Errors name the file `path`.

    Errors: C050 (cannot be read), C051 (another kind of file), C052 (another version of the
    format), C053 (truncated or with trailing data), C054 (damaged).
    """
    try:
        head = stream.read(HEADER_BYTES)
        _check_magic(path, head)
        pages = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    _, version, header_bytes, file_bytes, text_bytes = _FIELDS.unpack_from(pages)
    if version != FORMAT_VERSION or header_bytes != HEADER_BYTES:
        raise CompileError(
            "C052",
            f"{path} has version {version} of the format, this clew reads {FORMAT_VERSION}",
            hint="compile the model with this version of clew and save it again",
        )
    if file_bytes != len(pages) or HEADER_BYTES + text_bytes > len(pages):
        raise CompileError(
            "C053", f"{path} has {len(pages)} bytes, it was written with {file_bytes}", hint=_RETRY
        )
    content = np.frombuffer(pages, np.uint8)
    if not checked and _checksum(content) != _CHECKSUM.unpack_from(pages, _FIELDS.size)[0]:
        raise CompileError("C054", f"{path} is damaged: its checksum does not fit", hint=_RETRY)
    try:
        text = json.loads(content[HEADER_BYTES : HEADER_BYTES + text_bytes].tobytes())
        blobs = _views(content[_blob_base(text_bytes) :], text[BLOBS])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CompileError("C054", f"{path} is damaged: {error!r}", hint=_RETRY) from error
    return Container(text, blobs)


def _unreadable(path: str | Path, error: Exception) -> CompileError:
    return CompileError(
        "C050",
        f"{path} cannot be read: {reason_of(error)}",
        hint="name a file written by `save`",
    )


def _checksum(content: np.ndarray) -> int:
    """Returns the checksum of all bytes except its own."""
    checksum = zlib.crc32(content[: _FIELDS.size].data)
    return zlib.crc32(content[_FIELDS.size + _CHECKSUM.size :].data, checksum)


def _check_magic(path: str | Path, head: bytes) -> None:
    """Checks that a file begins with the magic number."""
    if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
        raise CompileError(
            "C051",
            f"{path} is not a saved model of clew",
            hint="`save` of a compiled model writes one; an ONNX file goes to clew.load",
        )
    if len(head) < HEADER_BYTES:
        raise CompileError("C053", f"{path} ends after {len(head)} bytes", hint=_RETRY)


def _views(content: np.ndarray, places: Sequence[Sequence[int]]) -> list[np.ndarray]:
    views = []
    for start, size in places:
        if not 0 <= start <= start + size <= len(content):
            raise ValueError(f"a blob from {start} to {start + size} of {len(content)} bytes")
        views.append(content[start : start + size])
    return views
