"""What operators make of constants, once: tables of keys, for example."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
T = TypeVar("T")

_made: dict[tuple[Any, ...], tuple[list[weakref.ref[Array]], Any]] = {}


def made_once(make: Callable[..., T], *arrays: Array) -> T:
    """Returns `make(*arrays)`. It is kept as long as all of the arrays if nobody can write to them;
    `make` must return the same for the same arrays.
    """
    key = (make, *map(id, arrays))
    found = _made.get(key)
    if found is not None:
        made: T = found[1]
        return made
    made = make(*arrays)
    if not any(a.flags.writeable for a in arrays):
        # The first of the arrays to go takes the entry along, before another gets its id.
        _made[key] = [weakref.ref(a, lambda _: _made.pop(key, None)) for a in arrays], made
    return made
