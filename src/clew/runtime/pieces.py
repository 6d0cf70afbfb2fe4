"""Runs programs in pieces, and reports which pieces had the core for themselves.

A piece is shorter than most undisturbed periods. Each begins in such a period, if one comes soon;
its times count if it also ended in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np

from clew.runtime.program import Instruction, Program, RunSegment
from clew.runtime.segment import NativeSegment

Array = np.ndarray[Any, Any]

_PIECE_NS: Final = 1.5e6


class Watcher(Protocol):
    """Tells whether something else uses the core (`machine/probes/quiet.py`)."""

    def begin(self) -> bool:
        """Waits for an undisturbed moment, but not for long; returns whether it came."""

    def is_so(self) -> bool:
        """Whether the core was undisturbed since the last look."""


class Pieces:
    """Runs of a program in pieces, with the times of its kernels: the steps of its segments that
    `places` names, each by the numbers of segment and step.
    """

    def __init__(
        self,
        program: Program,
        segments: Sequence[NativeSegment],
        places: Sequence[tuple[int, int]],
        watcher: Watcher,
    ) -> None:
        self._program = program
        self._segments = segments
        self.places = places
        self._watcher = watcher
        self._numbers = {id(segment): n for n, segment in enumerate(segments)}
        self._steps = [len(segment.plan.steps) for segment in segments]
        self._ends: list[list[int]] = [[] for _ in segments]

    def divide(self, times: Array) -> None:
        """Chooses the pieces, by f64[kernels]: the approximate time of each kernel; 0 or NaN for
        one that does not run.
        """
        of_step = [np.zeros(count) for count in self._steps]
        for (segment, step), ns in zip(self.places, np.nan_to_num(times), strict=True):
            of_step[segment][step] = ns
        self._ends = [_ends(steps) for steps in of_step]

    def run(self, arrays: Sequence[Any], *, waits: bool = True) -> tuple[Array, Array]:
        """Runs the program once. Returns f64[kernels], the nanoseconds of each kernel (NaN if it
        did not run), and bool[kernels]: whether the core was undisturbed around its piece. Pieces
        begin at once if it does not wait for an undisturbed moment.
        """
        times = [np.full(count, np.nan) for count in self._steps]
        undisturbed = [np.ones(count, bool) for count in self._steps]

        def note(what: Instruction, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
            if not isinstance(what, RunSegment):
                return run()
            number = self._numbers[id(what.segment)]
            segment, ends = self._segments[number], self._ends[number]
            began: list[bool] = []
            ended: list[bool] = []

            def between(more: bool) -> None:
                now = self._watcher.is_so()
                ended.append(now)
                if more:
                    began.append(now or (waits and self._watcher.begin()))

            results, taken = segment.in_pieces(inputs, ends, between)
            times[number] = np.nansum([times[number], taken], axis=0)
            borders = [0, *ends, len(taken)] if len(began) > 1 else [0, len(taken)]
            for place, (begin, end) in enumerate(pairwise(borders)):
                undisturbed[number][begin:end] &= began[place] and ended[place + 1]
            return results

        self._program.observed(arrays, note)
        return (
            np.array([times[segment][step] for segment, step in self.places], float),
            np.array([undisturbed[segment][step] for segment, step in self.places], bool),
        )


def _ends(steps: Array) -> list[int]:
    """Returns the steps at which pieces end, by the nanoseconds of each."""
    ends: list[int] = []
    within = 0.0
    for step, ns in enumerate(steps):
        if within and within + ns > _PIECE_NS:
            ends.append(step)
            within = 0.0
        within += float(ns)
    return ends
