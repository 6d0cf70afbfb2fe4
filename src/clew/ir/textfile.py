"""A module in files: its text form, and the constants that it names in an `.npz` beside it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.module import Module
from clew.ir.parser import Lookup, parse_module
from clew.ir.printer import printed
from clew.ir.types import DTYPES, from_numpy, to_numpy
from clew.support.errors import TextError
from clew.support.text_arrays import is_text

# How a constant begins whose elements lie beside the text.
_NAMED_ARRAY: Final = "const @"

Arrays: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"


def save_module(module: Module, path: str | Path, arrays: Arrays | None = None) -> None:
    """Writes the text to `path`, and the constants it names to the same name with `.npz`, with
    further `arrays` beside them.
    """
    path = Path(path)
    form = printed(module)
    path.write_text(form.text, encoding="utf-8", newline="\n")
    save_arrays(path.with_suffix(".npz"), {**form.constants, **(arrays or {})})


def load_module(path: str | Path, *, operators: Lookup | None = None) -> Module:
    """Returns the module that `save_module` wrote; a text that names no arrays needs none.

    Errors: P011 when a file is missing or damaged, and those of `parse_module`.
    """
    path = Path(path)
    beside = path.with_suffix(".npz")
    hint = f"it takes two files, {path.name} and {beside.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, hint) from error
    alone = _NAMED_ARRAY not in text and not beside.exists()
    arrays = {} if alone else load_arrays(beside, hint=hint)
    return parse_module(text, arrays, operators=operators)


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Writes arrays by name to an `.npz`, of any dtype that tensors have."""
    raw = {f"{name}.{from_numpy(a.dtype)}": _raw(a) for name, a in arrays.items()}
    np.savez(path, **raw)  # type: ignore[arg-type]


def load_arrays(path: Path, *, hint: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays that `save_arrays` wrote.

    Errors: P011 when the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(_named(key, stored[key]) for key in stored.files)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error, hint) from error


def _unreadable(path: Path, error: Exception, hint: str) -> TextError:
    return TextError("P011", f"cannot read the module {path}: {error}", hint=hint)


def _raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the elements as numbers that numpy's own files can hold."""
    if is_text(array):  # a mark at the end keeps zeros there, which numpy drops
        return np.array([f"{text}." for text in array.reshape(-1).tolist()], np.str_).reshape(
            array.shape
        )
    if array.dtype.isbuiltin == 1:
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _named(key: str, array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]]:
    name, _, dtype = key.rpartition(".")
    if dtype not in DTYPES:
        raise ValueError(f"an array of dtype {dtype!r}")
    if dtype == "str":
        texts = [text[:-1] for text in array.reshape(-1).tolist()]
        return name, np.array(texts, to_numpy(dtype)).reshape(array.shape)
    return name, array.view(to_numpy(dtype))
