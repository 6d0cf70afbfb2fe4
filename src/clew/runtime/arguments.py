"""Errors of arrays that do not fit a segment."""

from __future__ import annotations

import numpy as np

from clew.runtime.plan import BufferSpec
from clew.support.errors import InputError


def wrong_number(what: str, expected: int, given: int) -> InputError:
    """Returns I030: a call passes another number of inputs or outputs."""
    return InputError(
        "I030",
        f"the call passes {given} {what}, but the model has {expected}",
        hint=f"pass one array for each of the model's {what}, in their order",
    )


def mismatch(what: str, spec: BufferSpec, array: np.ndarray) -> InputError:
    """Returns I031 or I032: an array has another shape or dtype than its buffer."""
    if array.shape != spec.shape:
        return InputError(
            "I031",
            f"{what} {spec.name!r} has shape {list(array.shape)}, expected {list(spec.shape)}",
            hint="reshape the array, or compile the model for this shape",
        )
    return InputError(
        "I032",
        f"{what} {spec.name!r} has dtype {array.dtype}, expected {spec.dtype}",
        hint=f"convert the array with .astype({spec.dtype!r})",
    )
