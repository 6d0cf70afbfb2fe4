"""Example calls of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clew.ir.types import Type
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Sample:
    """An example call for tests, docs and fuzzing: input types (or arrays) and attributes.

    `error` is the code that a bad sample raises: when the call is built, or, for I320, when it
    runs.
    """

    args: tuple[Type | np.ndarray[Any, Any], ...]
    attrs: Mapping[str, Any]
    error: str
    low: float
    high: float

    def __init__(
        self, *args: Any, error: str = "", low: float = -2.0, high: float = 2.0, **attrs: Any
    ) -> None:
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "attrs", attrs)
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
