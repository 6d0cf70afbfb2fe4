"""The shapes that a file states for inputs with free sizes, which random inputs have by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clew.ir.module import Module
from clew.ir.types import TensorType

USUAL: Final = "usual_shapes"
"""The attribute of a main function that holds them, by input."""


def usual_shapes_of(module: Module) -> Mapping[str, tuple[int, ...]]:
    """Returns the usual shapes of inputs. A text form may hold others, which are left out."""
    types = {p.name: p.type for p in module.main.params}
    ranks = {n: t.rank for n, t in types.items() if isinstance(t, TensorType)}
    found: dict[str, tuple[int, ...]] = {}
    for entry in module.main.attrs.get(USUAL, ()):
        match entry:
            case (str(name), tuple(shape)) if len(shape) == ranks.get(name) and all(
                isinstance(size, int) and size > 0 for size in shape
            ):
                found[name] = shape
    return found
