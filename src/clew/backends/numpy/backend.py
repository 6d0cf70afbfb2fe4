"""NumPy as a backend: it takes every operator and runs its reference. It is the last resort,
and the reference for other backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.backends.backend import Backend, CompiledRegion
from clew.backends.records import function_of_record, function_record
from clew.ir.expr import Call, Function
from clew.ir.interpret import interpreted
from clew.machine.target import Target
from clew.version import package_version

Array: TypeAlias = "np.ndarray[Any, Any]"


class Interpreted:
    """A region that runs its operators' references on NumPy arrays."""

    def __init__(self, region: Function) -> None:
        self.region = region
        self._run = interpreted(region)

    def __call__(self, *arrays: Array) -> Sequence[Array] | Array:
        found: Sequence[Array] | Array = self._run(arrays, {})
        return found


class NumPy(Backend):
    """Runs the references of operators on NumPy arrays, in the host's memory."""

    name = "numpy"
    watch = "never"  # settings of NumPy belong to the caller's thread
    key = f"{package_version()} numpy {np.__version__}"

    def takes(self, call: Call) -> bool:
        return True

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        return Interpreted(region)

    def to_record(self, region: CompiledRegion) -> bytes | None:
        assert isinstance(region, Interpreted)
        return function_record(region.region)

    def of_record(self, record: bytes) -> CompiledRegion:
        return Interpreted(function_of_record(record))
