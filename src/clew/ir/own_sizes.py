"""The ranges of free dimensions that a module itself has, whatever it is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from clew.ir.module import Module

OWN_SIZES: Final = "sizes"
"""The attribute of a main function that holds ranges: names with their bounds, both included."""
Range: TypeAlias = "tuple[int, int | None]"


def own_sizes_attribute(ranges: Mapping[str, Range]) -> tuple[Any, ...]:
    """Returns the attribute for ranges by name; it has a text form."""
    return tuple(
        (name, low) if high is None else (name, low, high) for name, (low, high) in ranges.items()
    )


def own_sizes_of(module: Module) -> Mapping[str, Range]:
    """Returns the ranges of a module by name. Entries of other forms, which text IR may hold, are
    left out.
    """
    found: dict[str, Range] = {}
    entries = module.main.attrs.get(OWN_SIZES, ())
    for entry in entries if isinstance(entries, tuple) else ():
        match entry:
            case (str(name), int(low)) if low >= 0:
                found[name] = low, None
            case (str(name), int(low), int(high)) if 0 <= low <= high:
                found[name] = low, high
    return found
