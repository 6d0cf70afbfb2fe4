"""PyTorch as a backend: regions run operator by operator in eager mode, in the host's memory.

It takes the operators that torch computes with the result of the reference.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import torch

import clew.backends.torch.rules  # noqa: F401  registers rules
from clew.backends.backend import Backend, CompiledRegion
from clew.backends.calls import kind_of
from clew.backends.records import function_of_record, function_record
from clew.backends.torch.region import TorchRegion
from clew.backends.torch.registry import step_of
from clew.ir.expr import Call, Function
from clew.machine.target import Target
from clew.ops.rules import Refused
from clew.version import package_version

_PROBED: Final = 4096  # calls whose answer is kept


class Torch(Backend):
    """Runs regions in eager PyTorch, with the program's number of threads (`TorchRegion`)."""

    name = "torch"
    _memo: ClassVar[dict[Any, str]] = {}

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.key = f"{package_version()} torch {torch.__version__}"

    def at_threads(self, threads: int) -> Backend:
        return Torch(threads)

    def takes(self, call: Call) -> bool:
        return not self.why_not(call)

    def why_not(self, call: Call) -> str:
        key = kind_of(call)
        if key not in self._memo:
            if len(self._memo) >= _PROBED:
                self._memo.clear()
            self._memo[key] = _refusal(call)
        return self._memo[key]

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        return TorchRegion(region, self.threads)

    def to_record(self, region: CompiledRegion) -> bytes | None:
        assert isinstance(region, TorchRegion)
        return function_record(region.function)

    def of_record(self, record: bytes) -> CompiledRegion:
        return TorchRegion(function_of_record(record), self.threads)


def _refusal(call: Call) -> str:
    """Returns why torch does not run a call; empty if it does."""
    try:
        step_of(call, probing=True)
    except Refused as found:
        return found.reason
    return ""
