"""Functions that a module calls although they are defined in higher modules.

Some methods of a compiled model are implemented by packages that import compiled models.
`clew.rooms`, which is above all of them, registers these functions; no lower module imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Loader: TypeAlias = Callable[[], Callable[..., Any]]
"""Imports the module of a function and returns the function."""

_LOADERS: Final[dict[str, Loader]] = {}


def give(loaders: Mapping[str, Loader]) -> None:
    """Registers functions, by name, for lower modules."""
    _LOADERS.update(loaders)


def room(name: str) -> Callable[..., Any]:
    """Returns a function of a higher module; the module is imported on first use."""
    return _LOADERS[name]()
