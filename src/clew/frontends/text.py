"""Reader of the text form (`docs/text-format.md`), with clew's operators available."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import clew.ops  # noqa: F401  registers the operators
from clew.frontends.format import Format
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.textfile import load_module
from clew.support.budgets import Budgets, in_force
from clew.support.errors import InputError
from clew.support.recognize import Head


def parse(text: str, constants: Mapping[str, Any] | None = None) -> Module:
    """Returns the module written as text; `constants` holds the arrays of those named `@c0`.

    Errors: P001 to P009 for text that does not parse, with line and column; the operators' own.
    """
    return parse_module(text, constants)


def load(
    path: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the module of a text file, with its constants from the `.npz` file next to it.
    `budgets` limit both files.

    Errors: P001 to P011 (see `parse`, `load_module`); I140 for `inputs`, because the text contains
    its sizes; I330 and I331 for files that exceed a budget.
    """
    if inputs:
        raise InputError(
            "I140",
            "the text form of a module already contains the shapes of its inputs",
            hint="change the shapes in the text",
        )
    with in_force(budgets):
        return load_module(os.fspath(path))


class Text(Format):
    """The text form, with its constants in an `.npz` file beside it."""

    name = "text"
    title = "clew text"
    what = "clew's text form"
    suffix = ".txt"
    uploads = True
    may_seem = ("folder", "json", "python", "mlir")

    def recognizes(self, head: Head) -> bool:
        """Whether it starts with the version of the form."""
        return head.start.startswith(b"clew 1")

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module. Errors: see `load`."""
        return load(source, **options)
