"""The data of a part that files contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clew.ir.module import Module
from clew.tap.capture import AS_IMPORTED

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class StoredPart:
    """The data of a part: see `Part`."""

    name: str
    kind: str
    module: Module
    layers: tuple[str, ...]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    options: Mapping[str, Any] = field(default_factory=lambda: dict(AS_IMPORTED))
    notes: tuple[str, ...] = ()
