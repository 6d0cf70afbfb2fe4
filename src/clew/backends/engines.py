"""What a program's builder asks of the backends: who runs a node, and with what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from clew.codegen.artifact import KernelCode
from clew.ir.expr import Call
from clew.runtime.plan import SegmentPlan
from clew.runtime.program import Runnable
from clew.runtime.regions import RegionCall


class KernelEngine(Protocol):
    """The CPU. Consecutive kernels run as one segment, over memory planned as a whole."""

    @property
    def codes(self) -> Mapping[int, KernelCode]:
        """The compiled kernel of each primitive function, by the function's node id."""
        ...

    def segment(self, plan: SegmentPlan) -> Runnable:
        """Returns a plan made ready to run."""
        ...

    def deferred(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        """Returns what runs a kernel whose shapes only the run tells; its last arguments are the
        sizes of these names.
        """
        ...


class StepEngine(Protocol):
    """The host: operators that run one by one on arrays."""

    def step(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        """Returns what runs an operator; its last arguments are the sizes of these names."""
        ...

    def size_of(self, axis: int) -> Callable[..., Any]:
        """Returns what gives the size of an array's axis."""
        ...


class RegionEngine(Protocol):
    """The backends that a user gave: each region runs by itself, in its backend's memory."""

    def region(self, call: Call) -> RegionCall:
        """Returns what runs a region."""
        ...


@dataclass(frozen=True)
class Engines:
    """The backends of one build. Nodes go to the first that has them: a region to its backend, a
    compiled function or one of unknown shapes to the CPU, any other operator to the host.
    """

    kernels: KernelEngine
    steps: StepEngine
    regions: RegionEngine
