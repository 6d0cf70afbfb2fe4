"""Reads tables of an untrusted FlatBuffer.

Every position is checked before it is read. References only point forward, and no record of the
schema contains itself, so reading ends. Bytes that are read are counted: if tables, strings and
vectors add up to more than twice the buffer's size, some of them overlap and could expand without
bound, so the buffer is refused. Byte vectors do not count, because they are not copied.

Source: the FlatBuffers internals, https://flatbuffers.dev/internals/.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

_FORMATS: Final = {
    "bool": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q",
    "u64": "Q", "f32": "f",
}  # fmt: skip
_SCALARS: Final = {name: struct.Struct("<" + code) for name, code in _FORMATS.items()}
_DTYPES: Final = {
    name: np.dtype("u1" if name == "bool" else "<" + code) for name, code in _FORMATS.items()
}
_LEAST_TABLE: Final = 8  # bytes: where its slots are, and a reference to it
_FIELD: Final = re.compile(r"(\w+)(?:@(\d+))?:([\[<]?)(\w+)[\]>]?(?:=(-?\w+))?")


class Damaged(ValueError):
    """Bytes that do not follow the schema."""


class Inconsistent(ValueError):
    """Parameters that contradict each other, although the bytes follow the schema."""


class TooMany(Exception):
    """More tables than are allowed."""


@dataclass(frozen=True)
class Field:
    """One slot of a record. `form` is "" for a scalar, a string or a record, `[` for a vector and
    `<` for a union.
    """

    name: str
    slot: int
    form: str
    type: str
    default: Any


class Schema:
    """Records and unions by name, in the notation of `schema.py`."""

    def __init__(self, records: Mapping[str, str], unions: Mapping[str, Sequence[str]]) -> None:
        self._records = records
        self.unions: Final = unions
        self._parsed: dict[str, tuple[Field, ...]] = {}

    def fields(self, record: str) -> tuple[Field, ...]:
        """Returns the fields of a record; none if the schema lacks it."""
        if record not in self._parsed:
            self._parsed[record] = tuple(_fields(self._records.get(record, "")))
        return self._parsed[record]


def _fields(text: str) -> list[Field]:
    found: list[Field] = []
    for name, jump, form, kind, default in _FIELD.findall(text):
        slot = int(jump) if jump else found[-1].slot + 1 if found else 0
        plain = int(default or 0) if kind in _FORMATS and not form else None
        found.append(Field(name, slot, form, kind, bool(plain) if kind == "bool" else plain))
    return found


class Buffer:
    """A FlatBuffer of at most `tables` tables. `read` returns its root as a mapping from names to
    values.
    """

    def __init__(self, data: bytes | memoryview, schema: Schema, tables: int = 1 << 32) -> None:
        self.data: Final = memoryview(data)
        self._schema = schema
        self._tables = tables
        self._left = 2 * len(self.data)  # bytes that are left to read

    def read(self, record: str) -> dict[str, Any]:
        """Returns the root. Vectors of scalars are arrays that share the buffer's memory.

        Raises:
            Damaged: if the bytes are not this record.
            TooMany: if it has too many tables.
        """
        return self._table(self._follow(0), record)

    @cached_property
    def _array(self) -> np.ndarray:
        return np.frombuffer(self.data, np.uint8)

    def _scalar(self, kind: str, at: int) -> Any:
        reader = _SCALARS[kind]
        if not 0 <= at <= len(self.data) - reader.size:
            raise Damaged(f"a number at {at} lies outside the file")
        return reader.unpack_from(self.data, at)[0]

    def _follow(self, at: int) -> int:
        """Returns the position that the reference at a position points to."""
        distance: int = self._scalar("u32", at)
        if distance == 0:
            raise Damaged(f"the reference at {at} points to itself")
        return at + distance

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Damaged("its tables lie in each other")

    def _table(self, at: int, record: str) -> dict[str, Any]:
        self._count(_LEAST_TABLE)
        self._tables -= 1
        if self._tables < 0:
            raise TooMany
        slots = at - self._scalar("i32", at)
        size = self._scalar("u16", slots)
        values: dict[str, Any] = {}
        for field in self._schema.fields(record):
            place = slots + 4 + 2 * field.slot
            inside = self._scalar("u16", place) if 4 + 2 * field.slot < size - 1 else 0
            values[field.name] = self._value(field, at + inside, values) if inside else _none(field)
        return values

    def _value(self, field: Field, at: int, before: Mapping[str, Any]) -> Any:
        if field.form == "<":
            return self._union(field, self._follow(at), before[f"{field.name}_type"])
        if field.form == "[":
            return self._vector(field.type, self._follow(at))
        if field.type in _SCALARS:
            return self._scalar(field.type, at)
        if field.type == "str":
            return self._string(self._follow(at))
        return self._table(self._follow(at), field.type)

    def _union(self, field: Field, at: int, kind: int) -> dict[str, Any] | None:
        records = self._schema.unions[field.type]
        if kind == 0:
            return None
        return self._table(at, records[kind] if kind < len(records) else "")

    def _span(self, at: int, width: int) -> tuple[int, int]:
        """Returns the position of a vector's first element, and the number of elements."""
        count = self._scalar("u32", at)
        if at + 4 + count * width > len(self.data):
            raise Damaged(f"the {count} elements at {at} reach beyond the end of the file")
        return at + 4, count

    def _vector(self, kind: str, at: int) -> Any:
        if kind in _DTYPES:
            dtype = _DTYPES[kind]
            begin, count = self._span(at, dtype.itemsize)
            if kind != "u8":
                self._count(count * dtype.itemsize)
            return self._array[begin : begin + count * dtype.itemsize].view(dtype)
        begin, count = self._span(at, 4)
        places = (self._follow(begin + 4 * n) for n in range(count))
        if kind == "str":
            return [self._string(place) for place in places]
        return [self._table(place, kind) for place in places]

    def _string(self, at: int) -> str:
        begin, count = self._span(at, 1)
        self._count(count)
        return bytes(self.data[begin : begin + count]).decode("utf-8", "surrogateescape")


def _none(field: Field) -> Any:
    """Returns the value of an absent field."""
    if field.form == "[":
        return np.empty(0, _DTYPES[field.type]) if field.type in _DTYPES else []
    return "" if field.type == "str" else field.default
