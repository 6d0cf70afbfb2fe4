"""A module in files: its text form, and the constants that it names in an `.npz` beside it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from clew.ir.module import Module
from clew.ir.parser import Lookup, parse_module
from clew.ir.printer import printed
from clew.ir.types import DTYPES, from_numpy, to_numpy
from clew.support.errors import TextError


def save_module(module: Module, path: str | Path) -> None:
    """Writes the text to `path`, and the constants it names to the same name with `.npz`."""
    path = Path(path)
    form = printed(module)
    path.write_text(form.text, encoding="utf-8", newline="\n")
    arrays = {f"{name}.{from_numpy(a.dtype)}": _raw(a) for name, a in form.constants.items()}
    np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]


def load_module(path: str | Path, *, operators: Lookup | None = None) -> Module:
    """Returns the module that `save_module` wrote.

    Errors: P011 when a file is missing or damaged, and those of `parse_module`.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
            constants = dict(_named(key, stored[key]) for key in stored.files)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise TextError(
            "P011",
            f"cannot read the module {path}: {error}",
            hint=f"it takes two files, {path.name} and {path.with_suffix('.npz').name}",
        ) from error
    return parse_module(text, constants, operators=operators)


def _raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the elements as numbers that numpy's own files can hold."""
    if array.dtype.isbuiltin == 1:
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _named(key: str, array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]]:
    name, _, dtype = key.rpartition(".")
    if dtype not in DTYPES:
        raise ValueError(f"an array of dtype {dtype!r}")
    return name, array.view(to_numpy(dtype))
