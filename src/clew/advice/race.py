"""Measures two builds against each other, call by call in turns.

A sequential test decides first, in as few turns as the answer takes (`tuning/sequential.py`). Its
turns overstate the gain of a winner, since the test ends when the winner looks best. So the gain of
a winner, and its interval, come from further rounds (`tuning/whole.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from clew.advice.candidate import Array
from clew.build.result import Build
from clew.machine.probes.quiet import quiet
from clew.runtime.program import RunSegment
from clew.tuning.sequential import Comparison, Demand, Verdict
from clew.tuning.whole import Turn, Whole, compared
from clew.tuning.workbench import Timed, whole_turn

_ROUNDS: Final = 24
_SCREENED: Final = 0.5  # of the time
_DEMAND: Final = Demand(margin=0.005)
_MOST_CALLS: Final = 8
_TURN_NS: Final = 12e6


@dataclass(frozen=True)
class Outcome:
    """The result of a race: the verdict, the median time of the old program, the ratio of the new
    one's time to it, and the ends of its interval (tuning/whole.py). The ends are None unless the
    new program has won the sequential test.
    """

    verdict: Verdict
    old_ns: float
    ratio: float
    low: float | None = None
    high: float | None = None
    rounds: int = 0

    @property
    def new_ns(self) -> float:
        """The nanoseconds of the new program."""
        return self.ratio * self.old_ns

    @property
    def gain(self) -> float:
        """The share of the old time that the new program saves."""
        return 1.0 - self.ratio


class Runner(Protocol):
    """Races builds. Tests and other clocks have their own."""

    def race(
        self,
        old: tuple[Build, Sequence[Sequence[Array]]],
        new: tuple[Build, Sequence[Sequence[Array]]],
        calls: int,
        seconds: float,
    ) -> Outcome:
        """Returns how a build compares with an old one, each with the inputs of some calls. One
        call of the new one does the work of `calls` calls. Takes about some seconds.
        """
        ...


class Race:
    """Races builds on this machine."""

    def __init__(self, seed: int = 0) -> None:
        self._order = np.random.default_rng(seed)
        self._old: tuple[Build, Turn] | None = None

    def race(
        self,
        old: tuple[Build, Sequence[Sequence[Array]]],
        new: tuple[Build, Sequence[Sequence[Array]]],
        calls: int,
        seconds: float,
    ) -> Outcome:
        """Returns how a build compares with an old one."""
        if self._old is None or self._old[0] is not old[0]:
            self._old = (old[0], turn_of(*old))
        turns = self._old[1], per_call(turn_of(*new), calls)
        comparison = self._screened(turns, seconds * _SCREENED)
        verdict = comparison.verdict or "undecided"
        median = float(np.median(comparison.old_ns))
        if verdict != "won":
            return Outcome(verdict, median, comparison.ratio, rounds=comparison.turns)
        return confirmed(compared(*turns, _ROUNDS, seconds * (1 - _SCREENED)), comparison)

    def _screened(self, turns: tuple[Turn, Turn], seconds: float) -> Comparison:
        """Returns the turns of a sequential test."""
        found = Comparison(_DEMAND)
        began = time.perf_counter()
        while found.verdict is None:
            if found.turns and time.perf_counter() - began > seconds:
                break
            times = [0.0, 0.0]
            for side in self._order.permutation(2):
                taken, clean = turns[side](True)
                times[side] = float(np.nansum(np.where(np.isnan(clean), taken, clean)))
            found.add(times[1], times[0])
        return found


def confirmed(whole: Whole, comparison: Comparison) -> Outcome:
    """Returns the outcome of a winner of the sequential test that has run further rounds."""
    if whole.old_ns is None or whole.ratio is None:
        median = float(np.median(comparison.old_ns))
        return Outcome("undecided", median, comparison.ratio, rounds=comparison.turns)
    return Outcome(whole.verdict, whole.old_ns, whole.ratio, whole.low, whole.high, whole.rounds)


def per_call(turn: Turn, calls: int) -> Turn:
    """Returns a turn whose times are those of one of `calls` calls."""

    def shared(waits: bool) -> tuple[Array, Array]:
        taken, clean = turn(waits)
        return taken / calls, clean / calls

    return turn if calls == 1 else shared


def turn_of(build: Build, values: Sequence[Sequence[Array]]) -> Turn:
    """Returns the function that runs a build once and returns the times of its kernels. If other
    code than kernels runs between them, its time is not known apart, and a call is timed whole.
    """
    instructions = build.program.instructions
    if build.uses and all(isinstance(i, RunSegment) for i in instructions):
        return whole_turn(Timed(build, values), values)
    return _whole_calls(build, values)


def _whole_calls(build: Build, values: Sequence[Sequence[Array]]) -> Turn:
    """Returns a turn of some calls, each timed from outside."""
    watcher = quiet()
    took = min(_timed(build, each) for each in values for _ in range(2))
    calls = int(np.clip(_TURN_NS / took, 1, _MOST_CALLS))

    def turn(waits: bool) -> tuple[Array, Array]:
        _timed(build, values[0])
        rows: list[float] = []
        clean: list[float] = []
        for number in range(calls):
            began = watcher.begin() if waits else watcher.is_so()
            ns = _timed(build, values[number % len(values)])
            rows.append(ns)
            clean.append(ns if watcher.is_so() and began else math.nan)
        left = [ns for ns in clean if not math.isnan(ns)]
        return np.array([np.median(rows)]), np.array([np.median(left) if left else math.nan])

    return turn


def _timed(build: Build, values: Sequence[Array]) -> float:
    began = time.perf_counter_ns()
    build.program(values)
    return float(time.perf_counter_ns() - began)
