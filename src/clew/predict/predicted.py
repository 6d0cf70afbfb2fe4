"""Predicted times of a program's kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.support.shown import Brief

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class Predicted(Brief):
    """Nanoseconds of each kernel and of the whole call, with intervals."""

    kernels_ns: Array
    low_ns: Array
    high_ns: Array
    looked_up: Array
    overhead_ns: float
    total_ns: float
    total_low_ns: float
    total_high_ns: float
