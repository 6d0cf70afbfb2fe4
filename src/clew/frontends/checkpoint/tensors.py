"""Tensors of safetensors files by name, read on demand.

A file has the length of a JSON header in eight bytes, the header, and the bytes of the tensors. If
a model is stored in several files, an index gives the file of each tensor.

Source: safetensors, format description.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from clew.frontends.checkpoint.files import INDEX, WEIGHTS
from clew.frontends.file_parts import FilePart, ModelFile
from clew.frontends.limits import checked_size
from clew.frontends.names import display
from clew.ir.expr import Constant, Expr
from clew.ir.types import TensorType, bits, to_numpy
from clew.support.budgets import current, exceeded
from clew.support.dataclass import dataclass
from clew.support.errors import ModelError
from clew.support.files import json_of, read_json_file, reason_of
from clew.support.links import Place, current_links, repository_of

_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_DTYPES: Final = {
    "F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "f8e4m3fn",
    "F8_E5M2": "f8e5m2", "I64": "i64", "I32": "i32", "I16": "i16", "I8": "i8",
    "U64": "u64", "U32": "u32", "U16": "u16", "U8": "u8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    type: TensorType
    part: FilePart

    def constants(self, name: str) -> tuple[Constant, ...]:
        """Returns the tensor as a parameter that is read on first use."""
        return (Constant.lazy(self.type, self._read, name=name, token=self.part.token),)

    def joined(self, parts: Sequence[Expr]) -> Expr:
        """Returns the parameter, or its rows."""
        return parts[0]

    def _read(self) -> NDArray[Any]:
        return self.part.read().view(to_numpy(self.type.dtype)).reshape(self.type.concrete)


class Tensors(Mapping[str, Stored]):
    """The tensors of a model in a folder.

    Errors: M070 if a file cannot be read or is damaged; M006, M030 for tensors over the budgets.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors: dict[str, Stored] = {}
        for name in self._files():
            with _Place(folder, name) as file:
                for tensor, stored in _tensors_of(file, name):
                    if tensor in self._tensors:
                        raise _damaged(name, f"{display(tensor)!r} is in another file, too")
                    self._tensors[tensor] = stored

    def _files(self) -> list[str]:
        if not os.path.lexists(self._folder / INDEX):
            return [WEIGHTS]
        try:
            places = read_json_file(self._folder / INDEX)["weight_map"].values()
            files = sorted(set(places))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(INDEX, reason_of(error)) from None
        for name in files:
            if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
                raise _damaged(
                    INDEX, f"{display(str(name))!r} is not the name of a file next to it"
                )
        return files

    def __getitem__(self, name: str) -> Stored:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _Place:
    """A context manager that opens a file of the folder. `current_links` says how links are
    followed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        place = Place(folder.absolute(), (name,))
        if current_links() == "snapshot":
            place = repository_of(folder.absolute() / name).place((name,))
        self._place = place

    def __enter__(self) -> int:
        try:
            self._file = self._place.opened()
        except OSError as error:
            raise _damaged(
                self._name,
                reason_of(error),
                'links to the files of a model hub are followed with links="snapshot" (--links)',
            ) from None
        return self._file

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _tensors_of(file: int, name: str) -> Iterator[tuple[str, Stored]]:
    """Yields the tensors of an open file, after checking that they lie inside it."""
    size_bytes = os.fstat(file).st_size
    length = int.from_bytes(os.pread(file, _LENGTH_BYTES, 0), "little")
    first = _LENGTH_BYTES + length
    if first > size_bytes or not length:
        raise _damaged(name, f"its table has {length} bytes, the file {size_bytes}")
    if length > (most := current().attribute_bytes):
        what = f"bytes of the table of {display(name)!r}"
        raise exceeded(ModelError, "M030", what, length, "attribute_bytes", most)
    try:
        table = json_of(os.pread(file, length, _LENGTH_BYTES))
    except ValueError as error:
        raise _damaged(name, reason_of(error)) from None
    if not isinstance(table, dict):
        raise _damaged(name, "its table is not an object")
    opened, end = ModelFile(file, name), size_bytes - first
    for tensor, entry in table.items():
        if tensor != _METADATA:
            type_, begin, size = _entry(name, tensor, entry, end)
            yield tensor, Stored(type_, FilePart(opened, first + begin, size))


def _entry(name: str, tensor: str, entry: Any, end: int) -> tuple[TensorType, int, int]:
    """Returns a tensor's type, the position of its first byte, and the number of bytes."""
    shown = display(tensor)
    try:
        dtype, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sizes = tuple(shape)
    except (TypeError, KeyError, ValueError):
        raise _damaged(name, f"the entry of {shown!r} is incomplete") from None
    if not all(type(n) is int and n >= 0 for n in (*sizes, begin, stop)):
        raise _damaged(name, f"{shown!r} has the shape {shape!r:.80} at {begin!r:.20}")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _damaged(name, f"{shown!r} has the type {display(str(dtype))!r}")
    found = TensorType(sizes, _DTYPES[dtype])
    count = checked_size(sizes, found.dtype, current(), f"tensor {shown!r}")
    if stop - begin != count * bits(found.dtype) // 8 or stop > end:
        raise _damaged(name, f"{shown!r}, {found}, lies at bytes {begin} to {stop} of {end}")
    return found, begin, stop - begin


def _damaged(name: str, why: str, hint: str = "") -> ModelError:
    return ModelError(
        "M070",
        f"{display(name)!r} of the model's folder cannot be read: {why}",
        hint=hint or "the file is truncated or damaged: download it again",
    )
