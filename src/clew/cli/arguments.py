"""Command-line arguments: inputs from files or random, shapes by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from clew.runtime.drawing import settled
from clew.support.archives import read_array as stored_array
from clew.support.arrays import native
from clew.support.errors import InputError, hint_on
from clew.support.files import reason_of
from clew.support.size_ranges import read_size_text

Array = np.ndarray[Any, Any]


def named(values: Sequence[str], option: str) -> dict[str, str]:
    """Returns `name=value` pairs as a dict; anything else is a usage error (exit code 2)."""
    pairs: dict[str, str] = {}
    for value in values:
        name, _, text = value.rpartition("=")
        if not name or not text:
            raise typer.BadParameter(f"{value!r} is not name=value", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        pairs[name] = text
    return pairs


def shapes(values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Returns `name=1,3,224,224` pairs as shapes by name; anything else is a usage error."""
    found: dict[str, tuple[int, ...]] = {}
    for name, text in named(values, "--shape").items():
        parts = [p.strip() for p in text.split(",")]
        if not all(p.isdecimal() for p in parts):
            raise typer.BadParameter(f"{text!r} is not a shape", param_hint="--shape")
        found[name] = tuple(int(p) for p in parts)
    return found


def sizes(values: Sequence[str]) -> dict[str, str]:
    """Returns `name=1:512` pairs as texts by name; anything else is a usage error."""
    found = named(values, "--sizes")
    for name, text in found.items():
        try:
            read_size_text(name, text)
        except InputError as error:
            forms = hint_on(error.hint, "cli")
            raise typer.BadParameter(f"{error.message}; {forms}", param_hint="--sizes") from None
    return found


def read_array(name: str, file: Path) -> Array:
    """Returns the array of a `.npy` file, in the machine's byte order.

    Errors: I060 for a file that cannot be read or holds no array of numbers or text; I331 for an
    array larger than the budget.
    """
    try:
        return native(stored_array(file))
    except (OSError, ValueError) as error:
        raise InputError(
            "I060",
            f"input {name!r}: {str(file)!r} cannot be read: {reason_of(error)}",
            hint="numpy.save writes an array to a .npy file, and each has its own --input",
        ) from None


def need_sizes(model: Any) -> None:
    """Refuses a model whose inputs have named sizes.

    Errors: I061.
    """
    for wanted in model.inputs:
        settled(wanted, {})
