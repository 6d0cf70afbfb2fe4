"""Parameters of actions, which come from a page and are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.support.errors import InputError


def number(
    params: Mapping[str, Any], name: str, default: float, least: float, most: float
) -> float:
    """Returns a number within bounds.

    Errors: I235 for anything else.
    """
    value = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(
            "I235",
            f"{name} is {str(value)[:40]!r}",
            hint=f"give a number from {least:g} to {most:g}",
        )
    return float(value)


def texts(params: Mapping[str, Any], name: str, most: int, longest: int) -> list[str]:
    """Returns a list of at most `most` texts, each of at most `longest` characters.

    Errors: I235 for anything else.
    """
    value = params.get(name)
    listed = value if isinstance(value, list | tuple) else (None,)
    if len(listed) > most or not all(isinstance(v, str) and len(v) <= longest for v in listed):
        raise InputError(
            "I235",
            f"{name} is not a list of texts, or is too long",
            hint=f"give at most {most} texts of at most {longest} characters",
        )
    return list(listed)


def whole(params: Mapping[str, Any], name: str) -> int:
    """Returns a whole number from 0.

    Errors: I235 for anything else.
    """
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError("I235", f"{name} is {str(value)[:40]!r}", hint="give a whole number")
    return value
