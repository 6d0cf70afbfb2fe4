"""The interfaces of backends for the program builder: each returns the function for a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clew.backends.loop_types import LoopTypes
from clew.codegen.artifact import KernelCode
from clew.ir.expr import Call
from clew.runtime.program import Program, Repeat, Segment, Stretch
from clew.runtime.regions import RegionCall
from clew.runtime.segment_template import SegmentTemplate
from clew.support.dataclass import dataclass


class KernelEngine(Protocol):
    """The CPU. Consecutive kernels run as one segment with one memory plan."""

    @property
    def codes(self) -> Mapping[int, KernelCode]:
        """The compiled kernel of each primitive function, by the function's node id."""
        ...

    def segment(self, template: SegmentTemplate) -> Segment:
        """Returns the segment of a template: ready to run, or for all sizes."""
        ...

    def loop(self, loop: Repeat, types: LoopTypes) -> Repeat:
        """Returns a loop that Python runs, with native steps where they can replace it."""
        ...

    def stretches(self, program: Program) -> Sequence[Stretch]:
        """Returns the parts of a program that may run as one native call each."""
        ...

    def deferred(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        """Returns the function that runs a kernel with data-dependent shapes. Its last arguments
        are the sizes of these names.
        """
        ...


class StepEngine(Protocol):
    """The host, which runs operators one by one on NumPy arrays."""

    def step(self, call: Call, sizes: tuple[str, ...]) -> Callable[..., Any]:
        """Returns the function that runs an operator. Its last arguments are the named sizes."""
        ...

    def size_of(self, axis: int) -> Callable[..., Any]:
        """Returns the function that returns the size of an array's axis."""
        ...


class RegionEngine(Protocol):
    """The user's backends. Each region runs as one step in its backend's memory."""

    def region(self, call: Call) -> RegionCall:
        """Returns the function that runs a region."""
        ...


@dataclass(frozen=True)
class Engines:
    """The backends of one build. A region runs on its backend, a primitive function on the CPU, and
    any other operator on the host.
    """

    kernels: KernelEngine
    steps: StepEngine
    regions: RegionEngine
