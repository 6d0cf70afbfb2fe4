"""Tables of figures about a machine: dataclasses of positive numbers, each with its unit, its
meaning and whether `clew machine` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Final

from clew.support.dataclass import dataclass
from clew.support.errors import InputError

LEAST: Final = 1e-9
MOST: Final = 1e12
"""Figures in files are in this range, so that sums and quotients of them are finite."""


@dataclass(frozen=True)
class Figure:
    """One figure of a table: its meaning, and whether `clew machine` measures it."""

    name: str
    default: float
    unit: str
    meaning: str
    probed: bool


def figure(default: float, unit: str, meaning: str, *, probed: bool = False) -> Any:
    """Returns a field of a table."""
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "probed": probed})


def figures_of(table: type[Any]) -> tuple[Figure, ...]:
    """Returns all figures of a table, in order."""
    return tuple(Figure(f.name, getattr(table, f.name), **f.metadata) for f in fields(table))


def record_of(table: Any) -> dict[str, float]:
    """Returns the figures of a table by name, for JSON."""
    return {f.name: getattr(table, f.name) for f in fields(table)}


def figures_in(record: Mapping[str, Any], table: type[Any], what: str) -> dict[str, float]:
    """Returns the figures that a record has of a table, which holds one `what` per figure.

    Errors: I290 for an unknown figure, or one that is not a number in the range of figures.
    """
    known = {each.name for each in figures_of(table)}
    for name, value in record.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name not in known or not number or not LEAST <= value <= MOST:  # also for NaN
            raise InputError(
                "I290",
                f"{name} = {value!r} is not a {what} of a machine",
                hint="figures are positive numbers; clew machine lists them",
            )
    return {name: float(value) for name, value in record.items()}
