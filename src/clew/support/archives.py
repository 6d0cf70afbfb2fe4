"""Arrays in files: NumPy's `.npy`, and `.npz`, which is a ZIP of these.

A few bytes of either may claim any shape, and a ZIP may expand to a thousand times its size. So
headers are parsed with a grammar, not evaluated; their claims are checked against the bytes present
and against the budgets before memory is allocated; and only requested arrays are decompressed.
Source: numpy.lib.format (NPY 1.0 to 3.0); APPNOTE.TXT 6.3.10 of PKWARE (ZIP, ZIP64); RFC 1951.
"""

from __future__ import annotations

import errno
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

import numpy as np

from clew.support.budgets import current, exceeded
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.files import CHANGED, open_plain, stamp_of

Array: TypeAlias = "np.ndarray[Any, Any]"
_CHUNK_BYTES: Final = 1 << 20

# --- where bytes come from ------------------------------------------------------------------------


class _Bytes(Protocol):
    """A known number of bytes, in a file or in memory."""

    size_bytes: int

    def part(self, start: int, size_bytes: int) -> bytes:
        """Returns a part. Errors: OSError if it is no longer there."""
        ...

    def check(self) -> None:
        """Checks that the file has not changed since it was opened. Errors: OSError."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


class _InFile:
    """The bytes of an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stamp = stamp_of(file.fileno())
        self.size_bytes = os.fstat(file.fileno()).st_size

    def part(self, start: int, size_bytes: int) -> bytes:
        data = os.pread(self._file.fileno(), size_bytes, start)
        if len(data) != size_bytes:
            raise OSError(errno.ESTALE, CHANGED)
        return data

    def check(self) -> None:
        if stamp_of(self._file.fileno()) != self._stamp:
            raise OSError(errno.ESTALE, CHANGED)

    def close(self) -> None:
        self._file.close()


class _InMemory:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def part(self, start: int, size_bytes: int) -> bytes:
        return self._data[start : start + size_bytes]

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Stream:
    """Chunks of bytes, read in any lengths."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def take(self, count: int) -> bytes:
        """Returns the next bytes. Errors: ValueError if there are fewer."""
        taken = bytearray(count)
        self.fill(memoryview(taken))
        return bytes(taken)

    def fill(self, room: memoryview) -> None:
        """Fills a buffer with the next bytes. Errors: ValueError if there are fewer."""
        done = 0
        while done < len(room):
            if not self._rest:
                self._rest = memoryview(next(self._pieces, b""))
                if not self._rest:
                    raise ValueError("it ends too early")
            count = min(len(room) - done, len(self._rest))
            room[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count

    def end(self) -> None:
        """Reads the rest, which must be empty. Errors: ValueError."""
        if self._rest or any(self._pieces):
            raise ValueError("it has more bytes than its arrays")


def _plain_pieces(source: _Bytes, start: int, size_bytes: int) -> Iterator[bytes]:
    while size_bytes:
        count = min(size_bytes, _CHUNK_BYTES)
        yield source.part(start, count)
        start, size_bytes = start + count, size_bytes - count


# --- .npy -----------------------------------------------------------------------------------------

_MAGIC: Final = b"\x93NUMPY"
_LONGEST_HEADER: Final = 1 << 16
_ITEM: Final = re.compile(
    r"""\s*(['"])(?P<key>descr|fortran_order|shape)\1\s*:\s*
    (?:(['"])(?P<text>[^'"\\]{1,40})\3|(?P<flag>True|False)|\((?P<shape>[\dL,\s]*)\))\s*
    (?P<next>,|(?=\}))""",
    re.VERBOSE,
)
_DESCR: Final = re.compile(r"[<>|=]?(?:[?]|[biufcSUVmM]\d{1,9})(?:\[[\w/]{1,20}\])?")
_SHAPE: Final = re.compile(r"\s*(?:\d{1,19}L?\s*,\s*)*(?:\d{1,19}L?)?\s*")


@dataclass(frozen=True)
class Head:
    """The header of a `.npy`: its claims about the array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    header_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def _read_head(stream: _Stream) -> Head:
    """Returns the header at the beginning of a `.npy`.

    Errors: ValueError if it is not a `.npy`, or of an unsupported kind.
    """
    start = stream.take(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is not a .npy file")
    version = start[len(_MAGIC)]
    if version not in (1, 2, 3):
        raise ValueError(f"it is a .npy of version {version}; clew reads versions 1 to 3")
    field = struct.Struct("<H" if version == 1 else "<I")
    (length,) = field.unpack(stream.take(field.size))
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes")
    text = stream.take(length).decode("utf-8" if version == 3 else "latin-1", "replace")
    dtype, shape, fortran = _parsed(text)
    return Head(dtype, shape, fortran, len(start) + field.size + length)


def _parsed(header: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Returns the dtype, shape and order given by a header. Errors: ValueError."""
    text = header.strip()
    found: dict[str, str] = {}
    at = 1 if text.startswith("{") else len(text)
    while (item := _ITEM.match(text, at)) is not None:
        value = item["text"] or item["flag"] or item["shape"]
        if item["key"] in found:
            raise ValueError(f"its header has two of {item['key']}")
        found[item["key"]] = value or ""
        at = item.end()
    if text[at:].strip() != "}" or len(found) != 3:
        raise ValueError("its header is not that of an array of numbers or text")
    if not _DESCR.fullmatch(found["descr"]):
        raise ValueError(f"its elements ({found['descr']!r}) are not supported")
    if found["fortran_order"] not in ("True", "False") or not _SHAPE.fullmatch(found["shape"]):
        raise ValueError("its header is damaged")
    try:
        dtype = np.dtype(found["descr"])
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"its elements ({found['descr']!r}) are not supported") from None
    sizes = [part.strip().rstrip("L") for part in found["shape"].split(",")]
    shape = tuple(int(size) for size in sizes if size)
    return dtype, shape, found["fortran_order"] == "True"


def _elements(stream: _Stream, head: Head, what: str) -> Array:
    """Returns the array that follows in a stream, of a checked shape."""
    try:
        flat = np.empty(math.prod(head.shape), head.dtype)
    except MemoryError:
        raise _no_room(what, head.size_bytes) from None
    if flat.nbytes:
        stream.fill(flat.view(np.uint8).data)
    if head.dtype.kind == "b" and (flat.view(np.uint8) > 1).any():
        raise ValueError("a Boolean is neither 0 nor 1")
    return flat.reshape(head.shape[::-1]).T if head.fortran else flat.reshape(head.shape)


def _check_head(head: Head, what: str) -> None:
    """Checks a header's claims against the budgets.

    Errors: ValueError for too many axes; I331 if it exceeds the budget `tensor_bytes`.
    """
    budgets = current()
    if len(head.shape) > min(budgets.rank, 64):
        raise ValueError(f"it has {len(head.shape)} axes")
    # A size of 0 must not hide the other sizes; elements of no bytes take time, too.
    claimed = math.prod(max(size, 1) for size in head.shape) * max(head.dtype.itemsize, 1)
    if claimed > budgets.tensor_bytes:
        asked = f"bytes of {what}"
        raise exceeded(InputError, "I331", asked, claimed, "tensor_bytes", budgets.tensor_bytes)
    if claimed > budgets.memory_bytes:
        raise _no_room(what, claimed)


def _no_room(what: str, size_bytes: int) -> InputError:
    return InputError("I331", f"{what} has {size_bytes} bytes, more than this machine can hold")


def read_array(path: str | Path) -> Array:
    """Returns the array of a `.npy` file.

    Errors: OSError (see `open_plain`); ValueError if it is not such a file; I331 for an array
    larger than the budget `tensor_bytes`.
    """
    with open_plain(path) as file:
        source = _InFile(file)
        if source.part(0, min(4, source.size_bytes)) == _LOCAL_SIGN:
            raise ValueError("it is an archive of several arrays")
        stream = _Stream(_plain_pieces(source, 0, source.size_bytes))
        head = _read_head(stream)
        what = repr(str(path))
        _check_head(head, what)
        there = source.size_bytes - head.header_bytes
        if head.size_bytes > there:
            raise ValueError(f"its array needs {head.size_bytes} bytes, but it has {there}")
        array = _elements(stream, head, what)
        source.check()
        return array


# --- .npz -----------------------------------------------------------------------------------------

_LOCAL_SIGN: Final = b"PK\3\4"
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_END: Final = struct.Struct("<4s4H2LH")
_LOCATOR: Final = struct.Struct("<4sLQL")
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_LONGEST_REMARK: Final = 0xFFFF
_IN_64: Final = 0xFFFFFFFF
_EXTRA_64: Final = 1
_ENCRYPTED, _UTF_8 = 1, 1 << 11
_STORED, _DEFLATED = 0, 8
_BROKEN: Final = "it is not a ZIP archive, or it is damaged"
_SUFFIX: Final = ".npy"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file in an archive."""

    name: str
    method: int
    checksum: int
    packed_bytes: int
    size_bytes: int
    start: int


class Archive(Mapping[str, Array]):
    """The arrays of an `.npz` by name, each read on access; a context manager.

    Errors of an access: KeyError for a missing name, else those of opening the archive.
    """

    def __init__(self, place: str | Path | bytes, name: str = "") -> None:
        """Opens a file, or bytes; `name` stands for the bytes in errors.

        Errors: OSError (see `open_plain`); ValueError if it is not an archive, or is damaged; I331
        if entries or bytes exceed the budgets.
        """
        if isinstance(place, bytes):
            self._source: _Bytes = _InMemory(place)
        else:
            self._source = _InFile(open_plain(place))
            name = str(place)
        self._shown = repr(name)
        self._read_bytes = 0
        try:
            self._entries = {e.name: e for e in _entries(self._source, self._shown)}
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    def __len__(self) -> int:
        return sum(name.endswith(_SUFFIX) for name in self._entries)

    def __iter__(self) -> Iterator[str]:
        return (n.removesuffix(_SUFFIX) for n in self._entries if n.endswith(_SUFFIX))

    def __contains__(self, name: object) -> bool:
        return f"{name}{_SUFFIX}" in self._entries

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[f"{name}{_SUFFIX}"]
        what = f"{name!r} in {self._shown}"
        stream = _Stream(_unpacked(self._source, entry))
        head = _read_head(stream)
        _check_head(head, what)
        if head.header_bytes + head.size_bytes != entry.size_bytes:
            raise ValueError(f"{name!r} needs {head.size_bytes} bytes, but its entry differs")
        self._count(head.size_bytes)
        array = _elements(stream, head, what)
        stream.end()
        self._source.check()
        return array

    @property
    def members(self) -> list[str]:
        """The names of all entries, in order."""
        return list(self._entries)

    def check(self) -> None:
        """Checks that the file has not changed since it was opened. Errors: OSError."""
        self._source.check()

    def record(self, name: str) -> Array:
        """Returns the bytes of an entry as an array, whatever they mean.

        Errors: KeyError; ValueError; I331 if it exceeds the budgets of arrays.
        """
        entry = self._entries[name]
        head = Head(np.dtype(np.uint8), (entry.size_bytes,), False, 0)
        what = f"{name!r} in {self._shown}"
        _check_head(head, what)
        self._count(head.size_bytes)
        stream = _Stream(_unpacked(self._source, entry))
        array = _elements(stream, head, what)
        stream.end()
        return array

    def member(self, name: str) -> bytes:
        """Returns the bytes of an entry that is not an array.

        Errors: KeyError; I331 if it exceeds the budget `attribute_bytes`; those of arrays.
        """
        entry = self._entries[name]
        most = current().attribute_bytes
        if entry.size_bytes > most:
            what = f"bytes of {name!r} in {self._shown}"
            raise exceeded(InputError, "I331", what, entry.size_bytes, "attribute_bytes", most)
        data = b"".join(_unpacked(self._source, entry))
        self._source.check()
        return data

    def _count(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes
        most = current().total_bytes
        if self._read_bytes > most:
            what = f"bytes of all arrays in {self._shown}"
            raise exceeded(InputError, "I331", what, self._read_bytes, "total_bytes", most)


def _entries(source: _Bytes, shown: str) -> list[_Entry]:
    """Returns an archive's entries. Errors: ValueError; I331."""
    start, size_bytes = _directory(source)
    budgets = current()
    if size_bytes > budgets.text_chars:
        what = f"bytes of the list of entries of {shown}"
        raise exceeded(InputError, "I331", what, size_bytes, "text_chars", budgets.text_chars)
    data = source.part(start, size_bytes)
    found: list[_Entry] = []
    names: set[str] = set()
    at = 0
    while at < size_bytes:
        entry, at = _entry(data, at)
        if entry.name in names:
            raise ValueError(f"it has two entries named {entry.name!r}")
        if entry.start + _LOCAL.size + entry.packed_bytes > start:
            raise ValueError(_BROKEN)
        names.add(entry.name)
        found.append(entry)
        if len(found) > budgets.values:
            more = f"more than {budgets.values}"
            raise exceeded(
                InputError, "I331", f"entries of {shown}", more, "values", budgets.values
            )
    return found


def _directory(source: _Bytes) -> tuple[int, int]:
    """Returns the position and size of the directory. Errors: ValueError."""
    tail_bytes = min(source.size_bytes, _END.size + _LONGEST_REMARK)
    tail = source.part(source.size_bytes - tail_bytes, tail_bytes)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise ValueError(_BROKEN)
    end = source.size_bytes - tail_bytes + at
    *_, size_bytes, start, _ = _END.unpack_from(tail, at)
    locator = end - _LOCATOR.size
    if locator >= 0 and source.part(locator, 4) == b"PK\6\7":
        _, _, place, _ = _LOCATOR.unpack(source.part(locator, _LOCATOR.size))
        if place + _END_64.size > locator:
            raise ValueError(_BROKEN)
        sign, *_, size_bytes, start = _END_64.unpack(source.part(place, _END_64.size))
        if sign != b"PK\6\6":
            raise ValueError(_BROKEN)
        end = place
    if start + size_bytes > end:
        raise ValueError(_BROKEN)
    return start, size_bytes


def _entry(data: bytes, at: int) -> tuple[_Entry, int]:
    """Returns a directory entry and the position of the next one. Errors: ValueError."""
    if len(data) - at < _ENTRY.size:
        raise ValueError(_BROKEN)
    (sign, _, _, flags, method, _, _, checksum, packed, size, name_bytes, extra_bytes,
     remark_bytes, _, _, _, start) = _ENTRY.unpack_from(data, at)  # fmt: skip
    name_at = at + _ENTRY.size
    extra_at = name_at + name_bytes
    following = extra_at + extra_bytes + remark_bytes
    if sign != b"PK\1\2" or following > len(data):
        raise ValueError(_BROKEN)
    if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
        raise ValueError("it is encrypted, or its compression method is not supported")
    name = data[name_at:extra_at].decode("utf-8" if flags & _UTF_8 else "cp437", "replace")
    wide = _wide(data[extra_at : extra_at + extra_bytes])
    size, packed, start = (next(wide) if v == _IN_64 else v for v in (size, packed, start))
    return _Entry(name, method, checksum, packed, size, start), following


def _wide(extra: bytes) -> Iterator[int]:
    """Yields the numbers too large for the entry itself (ZIP64). Errors: ValueError."""
    at = 0
    while at + 4 <= len(extra):
        kind, count = struct.unpack_from("<HH", extra, at)
        if kind == _EXTRA_64:
            body = extra[at + 4 : at + 4 + count]
            for place in range(0, len(body) - 7, 8):
                yield struct.unpack_from("<Q", body, place)[0]
            break
        at += 4 + count
    raise ValueError(_BROKEN)


def _unpacked(source: _Bytes, entry: _Entry) -> Iterator[bytes]:
    """Yields an entry's bytes, as many as its entry claims. Errors: ValueError, OSError."""
    head = source.part(entry.start, _LOCAL.size)
    sign, *_, name_bytes, extra_bytes = _LOCAL.unpack(head)
    start = entry.start + _LOCAL.size + name_bytes + extra_bytes
    if sign != _LOCAL_SIGN or start + entry.packed_bytes > source.size_bytes:
        raise ValueError(_BROKEN)
    packed = _plain_pieces(source, start, entry.packed_bytes)
    pieces = packed if entry.method == _STORED else _inflated(packed)
    size_bytes = checksum = 0
    for piece in pieces:
        size_bytes += len(piece)
        if size_bytes > entry.size_bytes:
            break
        checksum = zlib.crc32(piece, checksum)
        yield piece
    if size_bytes != entry.size_bytes or checksum != entry.checksum:
        raise ValueError(f"{entry.name!r} is damaged")


def _inflated(packed: Iterator[bytes]) -> Iterator[bytes]:
    """Yields inflated bytes, one chunk at a time. Errors: ValueError."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in packed:
            rest = piece
            while rest and not inflate.eof:
                made = inflate.decompress(rest, _CHUNK_BYTES)
                rest = inflate.unconsumed_tail
                if made:
                    yield made
        while made := inflate.decompress(b"", _CHUNK_BYTES):
            yield made
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from None
