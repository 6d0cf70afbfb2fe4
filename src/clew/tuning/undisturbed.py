"""Times programs while nothing else uses the core.

Other programs share a machine, and often the core itself (its other hardware thread), for some tens
of milliseconds at a time: equal code then takes up to one and a half times as long. A program runs
in pieces that are shorter than most undisturbed periods. Each begins in such a period, if one comes
soon; a sentinel tells whether it also ended in it, and the operating system whether the thread was
interrupted meanwhile.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clew.build.result import Build
from clew.machine.probes.sentinel import Sentinel
from clew.runtime.program import Instruction, RunSegment

Array = np.ndarray[Any, Any]

_PIECE_NS: Final = 1.5e6
_MOST_WAIT_S: Final = 0.2
# Waits in vain, one after another, before all times count for a while.
_PATIENCE: Final = 15
_DISTURBED_S: Final = 10.0


class Quiet:
    """Tells which times were taken on an undisturbed core. Where the core is always disturbed,
    waiting is in vain: all times count then, and it looks again after a while.
    """

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._in_vain = 0
        self._trusts_all_until = 0.0
        self._interruptions = _interruptions()

    @property
    def _trusts_all(self) -> bool:
        return time.perf_counter() < self._trusts_all_until

    def begin(self) -> bool:
        """Waits for an undisturbed moment, but not for long; returns whether it came."""
        if self._trusts_all:
            return True
        found = self._sentinel.wait(_MOST_WAIT_S)
        self._interruptions = _interruptions()
        if found:
            self._in_vain = 0
            return True
        self._in_vain += 1
        if self._in_vain >= _PATIENCE:
            self._in_vain = 0
            self._trusts_all_until = time.perf_counter() + _DISTURBED_S
        return False

    def is_so(self) -> bool:
        """Whether the core is undisturbed now, and the thread was not interrupted since the last
        look.
        """
        if self._trusts_all:
            return True
        before, self._interruptions = self._interruptions, _interruptions()
        return before == self._interruptions and self._sentinel.undisturbed()


def _interruptions() -> int:
    """Returns how often the calling thread has lost its core to another."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


_shared: list[Quiet] = []


def quiet() -> Quiet:
    """Returns what watches the core of this process, made on first use; takes a second then."""
    if not _shared:
        _shared.append(Quiet(Sentinel()))
    return _shared[0]


class Pieces:
    """Runs of a build in pieces, with the times of its kernels."""

    def __init__(self, build: Build, watcher: Quiet) -> None:
        self.build = build
        self._watcher = watcher
        self._numbers = {id(segment): n for n, segment in enumerate(build.segments)}
        self._steps = [len(segment.plan.steps) for segment in build.segments]
        self._ends: list[list[int]] = [[] for _ in build.segments]

    def divide(self, times: Array) -> None:
        """Chooses the pieces, by f64[uses]: about what each kernel takes."""
        of_step = [np.zeros(count) for count in self._steps]
        for use, ns in zip(self.build.uses, times, strict=True):
            of_step[use.segment][use.step] = ns
        self._ends = [_ends(steps) for steps in of_step]

    def run(self, arrays: Sequence[Any]) -> tuple[Array, Array]:
        """Runs the program once. Returns f64[uses], the nanoseconds of each kernel use (NaN if it
        did not run), and bool[uses]: whether the core was undisturbed around its piece.
        """
        times = [np.full(count, np.nan) for count in self._steps]
        undisturbed = [np.ones(count, bool) for count in self._steps]

        def note(what: Instruction, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
            if not isinstance(what, RunSegment):
                return run()
            number = self._numbers[id(what.segment)]
            segment, ends = self.build.segments[number], self._ends[number]
            began: list[bool] = []
            ended: list[bool] = []

            def between(more: bool) -> None:
                now = self._watcher.is_so()
                ended.append(now)
                if more:
                    began.append(now or self._watcher.begin())

            results, taken = segment.in_pieces(inputs, ends, between)
            times[number] = np.nansum([times[number], taken], axis=0)
            borders = [0, *ends, len(taken)] if len(began) > 1 else [0, len(taken)]
            for place, (begin, end) in enumerate(pairwise(borders)):
                undisturbed[number][begin:end] &= began[place] and ended[place + 1]
            return results

        self.build.program.observed(arrays, note)
        uses = self.build.uses
        return (
            np.array([times[use.segment][use.step] for use in uses], float),
            np.array([undisturbed[use.segment][use.step] for use in uses], bool),
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
