"""Functions that a module calls although they are defined in higher modules.

Some methods of a compiled model are implemented by packages that import compiled models.
`clew.rooms`, which is above all of them, registers these functions; no lower module imports them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from clew.support.locks import Lock

Loader: TypeAlias = Callable[[], Callable[..., Any]]
"""Imports the module of a function and returns the function."""

LOADING: Final = Lock()
"""Held while modules are imported on first use. Of two threads, one of which imports a package and
the other a module of it, each may hold the lock that the other waits for: Python then raises an
error.

A fork waits for it: the child could not import what another thread was importing.
"""
os.register_at_fork(
    before=LOADING.__enter__, after_in_parent=LOADING.release, after_in_child=LOADING.release
)

_LOADERS: Final[dict[str, Loader]] = {}


def give(loaders: Mapping[str, Loader]) -> None:
    """Registers functions, by name, for lower modules."""
    _LOADERS.update(loaders)


def room(name: str) -> Callable[..., Any]:
    """Returns a function of a higher module; the module is imported on first use."""
    with LOADING:
        return _LOADERS[name]()
