"""Reads the table of a GGUF file: its metadata, and where its tensors lie.

    magic, version: u32, tensors: u64, entries of metadata: u64
    entries: key, type: u32, value                  a text has its length in bytes first (u64);
    tensors: name, axes: u32, sizes: u64[axes],     an array has a type (u32) and a count (u64)
             type: u32, first byte: u64             the sizes begin with the innermost
    bytes of tensors, each aligned

Arrays of the metadata, such as the tokens of a vocabulary, are decoded on demand. All numbers are
checked against the size of the file before anything of their size is read.

Source: ggml, `docs/gguf.md`, versions 2 and 3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.frontends.file_parts import FilePart, ModelFile
from clew.frontends.gguf.blocks import KINDS, OTHERS, TensorKind
from clew.frontends.limits import checked_size, over
from clew.frontends.names import display
from clew.support.budgets import current
from clew.support.dataclass import dataclass
from clew.support.errors import ModelError, UnsupportedError
from clew.support.files import open_plain, reason_of

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_WINDOW_BYTES: Final = 1 << 20
_LEAST_ENTRY_BYTES: Final = 13  # an empty key, a type, one byte
_LEAST_TENSOR_BYTES: Final = 24
_MOST_AXES: Final = 4
_MOST_ALIGNMENT: Final = 1 << 20
_DEEPEST: Final = 4  # arrays in arrays
_TEXT: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

Value: TypeAlias = "int | float | bool | str | Items"


@dataclass(frozen=True)
class Items:
    """An array of the metadata: its type, its length, and its bytes in the file."""

    kind: int
    count: int
    part: FilePart

    def __repr__(self) -> str:
        kind = "texts" if self.are_texts else "numbers" if self.are_numbers else "values"
        return f"<{self.count} {kind}>"

    @property
    def are_texts(self) -> bool:
        """Whether its items are texts."""
        return self.kind == _TEXT

    @property
    def are_numbers(self) -> bool:
        """Whether its items are numbers."""
        return self.kind in _NUMBERS

    def numbers(self) -> NDArray[Any]:
        """Returns its numbers. Errors: M013."""
        return self.part.read().view(_NUMBERS[self.kind])

    def texts(self) -> list[str]:
        """Returns its texts. Errors: M013."""
        data, found, at = self.part.read().tobytes(), [], 0
        for _ in range(self.count):
            (size,) = _U64.unpack_from(data, at)
            at += _U64.size + size
            found.append(data[at - size : at].decode("utf-8", "replace"))
        return found


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file. `shape` begins with the outermost axis."""

    shape: tuple[int, ...]
    kind: TensorKind
    part: FilePart


@dataclass(frozen=True)
class Container:
    """The table of a file. `shown` is the file's name in messages."""

    shown: str
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]


def read_container(path: str | os.PathLike[str]) -> Container:
    """Returns the table of a file.

    Errors: M070 if it is damaged, U009 for versions and types of tensors that clew does not read,
    M006, M009, M030 for tables and tensors over the budgets.
    """
    shown = display(Path(path).name)
    try:
        with open_plain(Path(path)) as file:
            return _Reader(file.fileno(), shown).container()
    except OSError as error:
        raise damaged(shown, reason_of(error)) from None


def damaged(shown: str, why: str) -> ModelError:
    """Returns the error of a file that cannot be read."""
    return ModelError(
        "M070",
        f"{shown!r} cannot be read: {why}",
        hint="the file is truncated or damaged: download it again",
    )


class _Reader:
    """Reads the table of an open file from its beginning."""

    def __init__(self, file: int, shown: str) -> None:
        self._file = file
        self._shown = shown
        self._opened = ModelFile(file, shown)
        self._size_bytes = os.fstat(file).st_size
        self._at = 0
        self._window, self._begin = b"", 0

    def container(self) -> Container:
        """Returns the table."""
        if self._take(len(MAGIC)) != MAGIC:
            raise self._damaged("it does not begin with GGUF")
        version = self._u32()
        if version not in _VERSIONS:
            raise UnsupportedError(
                "U009",
                f"clew builds no graph of GGUF files of version {version}",
                hint="convert the model again; versions 2 and 3, with the low byte first, are read",
            )
        tensors, entries = self._u64(), self._u64()
        self._bounded("entries of the metadata", entries, _LEAST_ENTRY_BYTES, "values")
        self._bounded("tensors", tensors, _LEAST_TENSOR_BYTES, "values")
        metadata: dict[str, Value] = {}
        for _ in range(entries):
            key = self._name()
            if key in metadata:
                raise self._damaged(f"the key {display(key)!r} occurs twice")
            metadata[key] = self._value(self._u32())
        found = [self._tensor() for _ in range(tensors)]
        return Container(self._shown, metadata, self._placed(found, self._alignment(metadata)))

    # --- bytes ---

    def _damaged(self, why: str) -> ModelError:
        return damaged(self._shown, why)

    def _need(self, count: int) -> None:
        """Checks that so many bytes follow."""
        end, most = self._at + count, current().attribute_bytes
        if end > self._size_bytes:
            raise self._damaged(f"its table needs {end} bytes, the file has {self._size_bytes}")
        if end > most:
            raise over(
                "M030", f"bytes of the table of {self._shown!r}", end, "attribute_bytes", most
            )

    def _take(self, count: int) -> bytes:
        self._need(count)
        start = self._at - self._begin
        if start + count > len(self._window):
            self._window = os.pread(self._file, max(count, _WINDOW_BYTES), self._at)
            self._begin, start = self._at, 0
            if len(self._window) < count:
                raise self._damaged("it was truncated while it was read")
        self._at += count
        return self._window[start : start + count]

    def _skip(self, count: int) -> None:
        self._need(count)
        self._at += count

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(_U32.size))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(_U64.size))[0])

    def _bounded(self, what: str, count: int, least_bytes: int, budget: str = "") -> None:
        """Checks a count of things that take at least so many bytes each."""
        if count * least_bytes > self._size_bytes - self._at:
            raise self._damaged(f"it has {count} {what} in {self._size_bytes} bytes")
        if budget and count > (most := getattr(current(), budget)):
            raise over("M009", f"{what} of {self._shown!r}", count, budget, most)

    def _name(self) -> str:
        size, most = self._u64(), current().name_chars
        self._need(size)
        if size > most:
            raise over("M030", f"characters of a name in {self._shown!r}", size, "name_chars", most)
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise self._damaged(f"the name before byte {self._at} is not UTF-8") from None

    # --- metadata ---

    def _value(self, kind: int) -> Value:
        if kind == _TEXT:
            return self._take(self._u64()).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._items()
        if kind not in _NUMBERS:
            raise self._damaged(f"a value before byte {self._at} has the type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        number: int | float | bool = np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()
        return number

    def _items(self) -> Items:
        kind, count = self._u32(), self._u64()
        start = self._at
        self._pass(kind, count, 0)
        return Items(kind, count, FilePart(self._opened, start, self._at - start))

    def _pass(self, kind: int, count: int, depth: int) -> None:
        """Moves behind the items of an array."""
        if kind in _NUMBERS:
            self._skip(count * np.dtype(_NUMBERS[kind]).itemsize)
        elif kind == _TEXT:
            self._bounded("texts", count, _U64.size)
            for _ in range(count):
                self._skip(self._u64())
        elif kind == _ARRAY and depth < _DEEPEST:
            self._bounded("arrays", count, _U32.size + _U64.size)
            for _ in range(count):
                self._pass(self._u32(), self._u64(), depth + 1)
        else:
            raise self._damaged(f"an array before byte {self._at} has items of the type {kind}")

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        found = metadata.get("general.alignment", 32)
        valid = type(found) is int and 0 < found <= _MOST_ALIGNMENT and not found & (found - 1)
        if not isinstance(found, int) or not valid:
            raise self._damaged(f"general.alignment is {found!r:.40}")
        return found

    # --- tensors ---

    def _tensor(self) -> tuple[str, tuple[int, ...], TensorKind, int]:
        """Returns the name of a tensor, its shape, its type, and its first byte among those of all
        tensors.
        """
        name = self._name()
        shown, axes = display(name), self._u32()
        if axes > _MOST_AXES:
            raise self._damaged(f"{shown!r} has {axes} axes")
        shape = tuple(self._u64() for _ in range(axes))[::-1]
        number, start = self._u32(), self._u64()
        kind = KINDS.get(number)
        if kind is None:
            if number not in OTHERS:
                raise self._damaged(f"{shown!r} has the type {number}")
            raise UnsupportedError(
                "U009",
                f"clew builds no graph of weights of the type {OTHERS[number]}, as {shown!r}",
                hint="quantize the model to another type, such as Q4_K_M or Q8_0",
            )
        dtype = kind.dtype if kind.elements == 1 else "u8"
        if not checked_size(shape, dtype, current(), f"tensor {shown!r}"):
            raise self._damaged(f"{shown!r} has no elements: {list(shape)}")
        if (shape[-1] if shape else 1) % kind.elements:
            raise self._damaged(
                f"{shown!r} has {list(shape)} elements of {kind.name}, in blocks of {kind.elements}"
            )
        return name, shape, kind, start

    def _placed(
        self, found: list[tuple[str, tuple[int, ...], TensorKind, int]], alignment: int
    ) -> dict[str, Tensor]:
        """Returns the tensors, after checking that they lie in the file and apart."""
        first = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        free = 0
        for name, shape, kind, start in sorted(found, key=lambda entry: entry[3]):
            shown = display(name)
            if name in tensors:
                raise self._damaged(f"{shown!r} occurs twice")
            size = kind.size_bytes
            for extent in shape:
                size *= extent
            size //= kind.elements
            end = start + size
            if start % alignment or start < free or first + end > self._size_bytes:
                raise self._damaged(
                    f"{shown!r} lies at bytes {start} to {end} of "
                    f"{max(self._size_bytes - first, 0)}, of which the first {free} are taken"
                )
            free = end
            tensors[name] = Tensor(shape, kind, FilePart(self._opened, first + start, size))
        return tensors
