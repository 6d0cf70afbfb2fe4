"""A model at some sizes, ready to be timed and watched kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from clew.runtime.program import Instruction, Program, RunSegment
from clew.runtime.segment import NativeSegment
from clew.support.dataclass import dataclass

Array: TypeAlias = "np.ndarray[Any, Any]"
K = TypeVar("K")


@dataclass(frozen=True)
class KernelTime(Generic[K]):
    """Measured time of one kernel in a run: median nanoseconds, and its share of the total."""

    kernel: K
    median_ns: float
    share: float


@dataclass(frozen=True)
class Ready(Generic[K]):
    """The program of a model at some sizes. `uses` holds the segment and step of each kernel."""

    program: Program
    segments: Sequence[NativeSegment]
    uses: Sequence[tuple[K, int, int]]


def segment_inputs(
    program: Program, segments: Sequence[NativeSegment], arrays: Sequence[Any]
) -> dict[int, list[Array]]:
    """Returns the inputs of each native segment in a run of the program (its last call in the
    run).
    """
    seen: dict[int, list[Array]] = {}
    numbers = {id(s): n for n, s in enumerate(segments)}

    def note(
        instruction: Instruction, inputs: Sequence[Any], run: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        if isinstance(instruction, RunSegment):
            seen[numbers[id(instruction.segment)]] = list(inputs)
        return run()

    program.observed(arrays, note)
    return seen
