"""Functions that a module calls and that stand above it.

A compiled model has methods whose work is done by packages that stand on compiled models.
`clew.rooms`, which stands above all of them, gives these functions; nothing below imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Loader: TypeAlias = Callable[[], Callable[..., Any]]
"""Imports the module of a function and returns the function."""

_LOADERS: Final[dict[str, Loader]] = {}


def give(loaders: Mapping[str, Loader]) -> None:
    """Makes functions known to the modules below, by their names there."""
    _LOADERS.update(loaders)


def room(name: str) -> Callable[..., Any]:
    """Returns a function that stands above, whose module is loaded when it is first asked for."""
    return _LOADERS[name]()
