"""What tells the calls of a model apart: the shapes of inputs, and values that decide sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.support.budgets import MAX_DECIDING_ELEMENTS
from clew.support.text_arrays import content

Array: TypeAlias = "np.ndarray[Any, Any]"
SizesKey: TypeAlias = "tuple[tuple[tuple[int, ...] | None, ...], tuple[bytes, ...]]"
"""The shapes of the inputs, and the bytes of inputs whose values decide sizes."""
KEPT_SIZES: Final = 32
"""The least number of sets of sizes for which a model keeps a program."""
_MOST_SIZES, _KEPT_KERNELS = 1024, 8192


def sizes_key(arrays: Sequence[Any], deciding: Sequence[int]) -> SizesKey:
    """Returns the key of a call with these inputs. `deciding` holds positions of inputs."""
    shapes = tuple([getattr(a, "shape", None) for a in arrays])
    return shapes, tuple([_content(arrays[n]) for n in deciding]) if deciding else ()


def decides_now(array: Any) -> bool:
    """Whether the contents of an array that may decide sizes are short enough to do so."""
    return bool(array.size <= MAX_DECIDING_ELEMENTS)


def _content(array: Array) -> bytes:
    if not decides_now(array):
        return b""
    return content(array)


def kept_sizes(kernels: int) -> int:
    """Returns for how many sets of sizes to keep a program of so many kernels: for many, if each
    takes little memory.
    """
    return max(KEPT_SIZES, min(_MOST_SIZES, _KEPT_KERNELS // max(kernels, 1)))
