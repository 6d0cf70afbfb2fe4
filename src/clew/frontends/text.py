"""Reader of the text form (`docs/text-format.md`), with clew's operators at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import clew.ops  # noqa: F401  registers the operators
from clew.ir.module import Module
from clew.ir.parser import parse_module


def parse(text: str, constants: Mapping[str, Any] | None = None) -> Module:
    """Returns the module that a text writes; `constants` holds the arrays of those it names `@c0`.

    Errors: P001 to P009 for what does not parse, with line and column; the operators' own.
    """
    return parse_module(text, constants)
