"""Inputs with a default value, which is a constant of the module until a caller replaces it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module


@dataclass(frozen=True)
class Defaults:
    """The names of the inputs that a module holds as constants, and a function that imports the
    model again with some of them as inputs.
    """

    names: tuple[str, ...]
    with_inputs: Callable[[Collection[str]], Module | DeferredModule]
