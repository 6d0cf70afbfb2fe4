"""Measures two builds against each other, in alternating turns.

A sequential test decides first, in as few turns as possible (`tuning/sequential.py`). Its turns
overstate the gain of a winner, because the test ends when the winner looks best. So the gain of a
winner, and its interval, come from further rounds (`tuning/whole.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from clew.advice.candidate import Array
from clew.build.result import Build
from clew.runtime.program import RunSegment
from clew.tuning.sequential import Comparison, Demand, Verdict
from clew.tuning.whole import Turn, Whole, compared
from clew.tuning.workbench import Timed, whole_turn

_ROUNDS: Final = 24
_SCREENED: Final = 0.5  # of the time
_LEAST_ROUNDS: Final = 12  # enough for an interval
_LEAST_TURNS: Final = 12  # enough to decide about a large gain
_PATIENCE: Final = 4.0  # a factor on the seconds, until these turns are done on a busy machine
_DEMAND: Final = Demand(margin=0.005, most=120, patience=24)
_LEAST_CALLS: Final = 3
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
    """Races builds. Tests use another implementation."""

    def race(
        self,
        old: tuple[Build, Sequence[Sequence[Array]]],
        new: tuple[Build, Sequence[Sequence[Array]]],
        calls: int,
        seconds: float,
        threads: tuple[int, int] = (1, 1),
        *,
        to_win: bool = True,
    ) -> Outcome:
        """Returns how a new build compares with an old one, each with the inputs of its calls, on
        their numbers of `threads`. One call of the new build does the work of `calls` calls. Takes
        about `seconds`. Without `to_win`, the interval is measured even if the new build does not
        win the test.
        """
        ...


class Race:
    """Races builds on this machine."""

    def __init__(self, seed: int = 0) -> None:
        self._order = np.random.default_rng(seed)
        self._old: tuple[Build, int, Turn] | None = None

    def race(
        self,
        old: tuple[Build, Sequence[Sequence[Array]]],
        new: tuple[Build, Sequence[Sequence[Array]]],
        calls: int,
        seconds: float,
        threads: tuple[int, int] = (1, 1),
        *,
        to_win: bool = True,
    ) -> Outcome:
        """Returns how a new build compares with an old one."""
        if max(threads) > 1:  # both by one clock
            threads = max(threads), max(threads)
        if self._old is None or self._old[0] is not old[0] or self._old[1] != threads[0]:
            self._old = (old[0], threads[0], turn_of(*old, threads[0]))
        turns = self._old[2], per_call(turn_of(*new, threads[1]), calls)
        began = time.perf_counter()
        comparison = self._screened(turns, seconds * _SCREENED)
        a_turn_s = (time.perf_counter() - began) / comparison.turns
        verdict = comparison.verdict or "undecided"
        median = float(np.median(comparison.old_ns))
        if verdict != "won" and to_win:
            return Outcome(verdict, median, comparison.ratio, rounds=comparison.turns)
        within_s = max(seconds * (1 - _SCREENED), _LEAST_ROUNDS * a_turn_s)
        return confirmed(compared(*turns, _ROUNDS, within_s), comparison)

    def _screened(self, turns: tuple[Turn, Turn], seconds: float) -> Comparison:
        """Returns the turns of a sequential test."""
        found = Comparison(_DEMAND)
        began = time.perf_counter()
        while found.verdict is None:
            passed = time.perf_counter() - began
            limit = seconds if found.turns >= _LEAST_TURNS else _PATIENCE * seconds
            if found.turns and passed > limit:
                break
            times = [0.0, 0.0]
            for side in self._order.permutation(2):
                taken, clean = turns[side](True)
                times[side] = float(np.nansum(np.where(np.isnan(clean), taken, clean)))
            found.add(times[1], times[0])
        return found


def confirmed(whole: Whole, comparison: Comparison) -> Outcome:
    """Returns the outcome of further rounds after a sequential test."""
    if whole.old_ns is None or whole.ratio is None:
        median = float(np.median(comparison.old_ns))
        return Outcome("undecided", median, comparison.ratio, rounds=comparison.turns)
    return Outcome(whole.verdict, whole.old_ns, whole.ratio, whole.low, whole.high, whole.rounds)


def per_call(turn: Turn, calls: int) -> Turn:
    """Returns a turn with the times divided by `calls`."""

    def shared(waits: bool) -> tuple[Array, Array]:
        taken, clean = turn(waits)
        return taken / calls, clean / calls

    return turn if calls == 1 else shared


def turn_of(build: Build, values: Sequence[Sequence[Array]], threads: int) -> Turn:
    """Returns a function that runs a build and returns the times of its kernels. If other code runs
    between kernels, whole calls are timed instead, and so are calls on one thread, by the CPU time
    of the thread, which other programs disturb less.
    """
    if threads == 1:
        return _whole_calls(build, values, time.thread_time_ns)
    instructions = build.program.instructions
    if build.uses and all(isinstance(i, RunSegment) for i in instructions):
        return whole_turn(Timed(build, values), values)
    return _whole_calls(build, values, time.perf_counter_ns)


def _whole_calls(build: Build, values: Sequence[Sequence[Array]], clock: Callable[[], int]) -> Turn:
    """Returns a turn that times whole calls."""

    def timed(inputs: Sequence[Array]) -> float:
        began = clock()
        build.program(inputs)
        return float(clock() - began)

    took = max(1.0, min(timed(each) for each in values for _ in range(2)))
    calls = int(np.clip(_TURN_NS / took, _LEAST_CALLS, _MOST_CALLS))

    def turn(waits: bool) -> tuple[Array, Array]:
        if took < _TURN_NS:  # the other build has displaced this one's data from the caches
            timed(values[0])
        # The least of some calls, because other programs only add time.
        least = np.array([min(timed(values[n % len(values)]) for n in range(calls))])
        return least, least

    return turn
