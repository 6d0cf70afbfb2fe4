"""A module in files: its text form, and an `.npz` file with the constants it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from clew.ir.module import Module
from clew.ir.parser import Lookup, parse_module
from clew.ir.printer import printed
from clew.ir.types import DTYPES, from_numpy, to_numpy
from clew.support.archives import Archive
from clew.support.errors import InputError, TextError
from clew.support.files import read_text, reason_of
from clew.support.text_arrays import is_text
from clew.support.writing import write_arrays, write_text

Arrays: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"


def save_module(module: Module, path: str | Path, arrays: Arrays | None = None) -> None:
    """Writes the text to `path`, and the constants it names, with further `arrays`, to a file of
    the same name with the suffix `.npz`. Each file is written atomically.

    Errors: I333 if a file cannot be written.
    """
    path = Path(path)
    form = printed(module)
    try:
        save_arrays(path.with_suffix(".npz"), {**form.constants, **(arrays or {})})
        write_text(path, form.text)
    except OSError as error:
        raise InputError(
            "I333",
            f"cannot write the module to {str(path)!r}: {reason_of(error)}",
            hint="name a file in a folder that exists and that you may write to",
        ) from None


def packed_module(module: Module) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """Returns a module as its text and the constants that the text names, for another process."""
    form = printed(module)
    return form.text, dict(form.constants)


def unpacked_module(text: str, constants: Arrays) -> Module:
    """Returns the module from `packed_module`.

    Errors: those of `parse_module`.
    """
    return parse_module(text, constants)


def load_module(path: str | Path, *, operators: Lookup | None = None) -> Module:
    """Returns the module written by `save_module`. Only arrays named in the text are read; a text
    that names none needs no `.npz` file.

    Errors: P011 if a file is missing, damaged or not a regular file, I330 and I331 if it exceeds a
    budget, and those of `parse_module`.
    """
    path = Path(path)
    beside = path.with_suffix(".npz")
    hint = f"a module consists of two files, {path.name} and {beside.name}"
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, "") from error
    with StoredArrays(beside, hint) as arrays:
        return parse_module(text, arrays, operators=operators)


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays of any tensor dtype by name to an `.npz`, atomically.

    Errors: OSError.
    """
    write_arrays(path, {f"{name}.{from_numpy(a.dtype)}": _raw(a) for name, a in arrays.items()})


def load_arrays(path: Path, *, hint: str = "") -> StoredArrays:
    """Returns the arrays written by `save_arrays`.

    Errors: P011 if the file is missing, damaged or not a regular file; I331 if it has more entries
    than the budgets allow.
    """
    found = StoredArrays(path, hint)
    found.opened()
    return found


class StoredArrays(Mapping[str, np.ndarray[Any, Any]]):
    """The arrays in an `.npz` by name, each read on access; the file is opened on the first access.
    A context manager.

    Errors of an access: P011 if the array or the file is missing or damaged, I331 if it exceeds a
    budget.
    """

    def __init__(self, path: Path, hint: str) -> None:
        self._path = path
        self._hint = hint
        self._open: tuple[Archive, dict[str, str]] | None = None

    def __enter__(self) -> StoredArrays:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open is not None:
            self._open[0].close()

    def __len__(self) -> int:
        return len(self.opened()[1])

    def __iter__(self) -> Iterator[str]:
        return iter(self.opened()[1])

    def __contains__(self, name: object) -> bool:
        return name in self.opened()[1]

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        archive, keys = self.opened()
        key = keys[name]
        try:
            return _typed(archive[key], key.rpartition(".")[2])
        except (OSError, ValueError) as error:
            raise _unreadable(self._path, error, self._hint) from error

    def opened(self) -> tuple[Archive, dict[str, str]]:
        """Returns the archive, and its keys by array name.

        Errors: P011; I331.
        """
        if self._open is None:
            try:
                archive = Archive(self._path)
                self._open = archive, dict(_name_and_key(key) for key in archive)
            except (OSError, ValueError) as error:
                raise _unreadable(self._path, error, self._hint) from error
        return self._open


def _unreadable(path: Path, error: Exception, hint: str) -> TextError:
    return TextError("P011", f"cannot read the module {path}: {reason_of(error)}", hint=hint)


def _raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the elements in a dtype that NumPy's files support."""
    if is_text(array):  # a mark at the end keeps trailing zeros, which NumPy drops
        return np.array([f"{text}." for text in array.reshape(-1).tolist()], np.str_).reshape(
            array.shape
        )
    if array.dtype.isbuiltin == 1:
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _name_and_key(key: str) -> tuple[str, str]:
    name, _, dtype = key.rpartition(".")
    if dtype not in DTYPES:
        raise ValueError(f"an array of dtype {dtype!r}")
    return name, key


def _typed(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Returns an array in its tensor's dtype. Errors: ValueError if the dtypes do not match."""
    if dtype == "str":
        if array.dtype.kind != "U":
            raise ValueError(f"text stored as {array.dtype}")
        texts = [text[:-1] for text in array.reshape(-1).tolist()]
        return np.array(texts, to_numpy(dtype)).reshape(array.shape)
    wanted = np.dtype(to_numpy(dtype))
    if array.dtype.itemsize != wanted.itemsize or array.dtype.kind not in "biufc":
        raise ValueError(f"{dtype} stored as {array.dtype}")
    return array.view(wanted)
