"""Runs models with the native driver's timers, alternating with plain runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from clew.runtime.program import RunHost
from clew.runtime.timing import Turns
from clew.serving.model import Model
from clew.serving.ready import Ready

FEWEST_ROUNDS: Final = 20
_FEWEST_QUICK: Final = 5  # if the caller limits the time
_MOST_ROUNDS = 200
_SECONDS = 1.5


@dataclass(frozen=True)
class Time:
    """Statistics of the nanoseconds of a run: the median `ns`, the quartiles and the minimum.

    `median_ns` is the median as measured; `ns` may be rounded, so that sums are exact. No time is
    negative: where noise makes it so, it is 0.
    """

    ns: float
    median_ns: float
    q1_ns: float
    q3_ns: float
    best_ns: float

    @property
    def spread(self) -> float:
        """The range of the middle half of the runs, relative to the median."""
        return (self.q3_ns - self.q1_ns) / self.median_ns if self.median_ns else 0.0

    def to_json(self) -> dict[str, float]:
        """Returns the statistics, with the spread."""
        return {**asdict(self), "spread": self.spread}


@dataclass(frozen=True)
class Measured:
    """Times of a model's parts in a run.

    `kernels` and `hosts` have the number of executions of each in a run, and its time; those that
    did not run are omitted. `outside` has other work, its count, and its share of the rest. `wall`
    is that of plain runs, `timed_wall` that of runs with timers, which took `overhead` longer
    (relative; the median over pairs). A round is `parts` runs: each times only a part of the
    kernels, so the timers do not slow it down.
    """

    ready: Ready[Any]
    kernels: list[tuple[Any, float, Time]]
    hosts: list[tuple[RunHost, float, Time]]
    outside: dict[str, tuple[int, float]]
    wall: Time
    timed_wall: Time
    overhead: float
    rounds: int
    parts: int


@dataclass(frozen=True)
class Subject:
    """A model to measure, and its inputs."""

    model: Model[Any, Any]
    arrays: Sequence[Any]


def measure(
    subjects: Sequence[Subject],
    repeats: int | None,
    warmup: int,
    say: Callable[[str], None] = lambda text: None,
    seconds: float | None = None,
) -> list[Measured]:
    """Returns the times of models, measured alternately.

    `repeats` is the number of rounds. By default, there are as many as fit into one second, at
    least twenty, or into `seconds`, at least five.
    """
    readies, turns = [], []
    for subject in subjects:
        model, arrays = subject.model, subject.arrays
        checked = model.checked(arrays)
        ready = model.ready_for(checked)
        readies.append(ready)
        turns.append(Turns(ready.program, ready.segments, _inputs(model, arrays), warmup))
    each = sum(turn.round_ns for turn in turns)
    fewest = FEWEST_ROUNDS if seconds is None else _FEWEST_QUICK
    fitting = int((_SECONDS if seconds is None else seconds) * 1e9 / max(each, 1.0))
    rounds = repeats or min(_MOST_ROUNDS, max(fewest, fitting))
    for number in range(rounds):
        say(f"run {number + 1} of {rounds}")
        for turn in turns:
            turn.take()
    return [_measured(r, t) for r, t in zip(readies, turns, strict=True)]


def measure_ready(
    ready: Ready[Any], inputs: Callable[[], Sequence[Any]], seconds: float
) -> Measured:
    """Returns the times of a program that is ready, in runs of `seconds` in total or a little more.
    `inputs` returns its checked inputs.
    """
    turns = Turns(ready.program, ready.segments, inputs, 1)
    for _ in range(max(_FEWEST_QUICK, min(_MOST_ROUNDS, int(seconds * 1e9 / turns.round_ns)))):
        turns.take()
    return _measured(ready, turns)


def _inputs(model: Model[Any, Any], arrays: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    """Returns a function that checks the inputs in each run, as a call of the model does."""
    return lambda: model.checked(arrays)


def _measured(ready: Ready[Any], turns: Turns) -> Measured:
    timings = turns.timings
    first = timings.rounds[0]
    plain, timed = np.array(timings.plain_ns, float), np.array(timings.timed_ns, float)
    runs = {n: timings.runs(n) for n in range(len(first.calls))}
    by_segment = {n: timings.kernel_ns(n) for n, of_steps in runs.items() if of_steps.any()}
    hosts = np.array([r.hosts for r in timings.rounds], float)

    return Measured(
        ready=ready,
        kernels=[
            (kernel, float(runs[segment][step]), time_of(by_segment[segment][:, step]))
            for kernel, segment, step in ready.uses
            if segment in by_segment and runs[segment][step]
        ],
        hosts=[
            (host, calls, time_of(hosts[:, n]))
            for n, (host, calls) in enumerate(
                zip(timings.timed.hosts, first.host_calls, strict=True)
            )
            if calls
        ],
        outside=turns.outside(),
        wall=time_of(plain),
        timed_wall=time_of(timed),
        overhead=max(0.0, float(np.median(timed / plain)) - 1.0),
        rounds=len(timings.rounds),
        parts=timings.timed.parts,
    )


def time_of(values: Sequence[float] | np.ndarray) -> Time:
    """Returns the statistics of values over runs."""
    found = np.maximum(np.asarray(values, float), 0.0)
    q1, median, q3 = map(float, np.percentile(found, [25, 50, 75]))
    return Time(median, median, q1, q3, float(found.min()))
