"""The part of a model that fails alone, the result of a bisection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.bisection.checks import Check
from clew.frontends.format import LoneLayer
from clew.ir.module import Module
from clew.support.shown import Brief


@dataclass(frozen=True, repr=False)
class Reduced(Brief):
    """The part of the model that fails alone.

    `module` takes `inputs` and should give `expected`; `operators` counts its operator calls (for
    an import: the layers of `file`, the part of the model's own file). `error` is the current
    error. For a part of a loop, `iterations` are the iterations of the loops, from 0 and outer
    loops first, at which its inputs are those of the model.
    """

    module: Module
    inputs: dict[str, Any]
    expected: dict[str, Any]
    operators: int
    error: float
    check: Check
    file: LoneLayer | None = None
    iterations: tuple[int, ...] = ()

    def fails(self) -> bool:
        """Whether it still fails, on this machine and with this version."""
        return self.check.error(self.module, self.inputs, self.expected) > self.check.tolerance


def plain(value: Any) -> Any:
    """Returns a value for JSON: infinities and NaN become text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
