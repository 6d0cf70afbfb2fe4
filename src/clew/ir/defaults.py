"""Inputs with a default value, which is a constant of the module until a caller replaces it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Defaults:
    """The names of the inputs that a module holds as constants, and a function that imports the
    model again with some of them as inputs, as a `Module` or `DeferredModule`.
    """

    names: tuple[str, ...]
    with_inputs: Callable[[Collection[str]], Any]
