"""Times every kernel of a model as the program runs it, with probes of the machine in between.

A kernel's time depends on the state in which earlier kernels left the caches, so times are taken
from consecutive whole runs of the program, as in deployment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from clew.build.result import Build, KernelUse
from clew.machine.probes.bandwidth import Bandwidth
from clew.machine.probes.peak import FmaPeak
from clew.machine.target import host
from clew.runtime.program import Instruction, RunSegment

Array: TypeAlias = "np.ndarray[Any, Any]"
_TURN_S: Final = 0.1  # of one turn's runs
_MOST_RUNS: Final = 60
_SETTLED_AFTER: Final = 4  # runs, after which pages of weights have stopped moving
_MOST_ALONE_S: Final = 4.0  # each kernel run alone first needs a whole run
# A turn counts if the machine was close to its best speed in this session (clocks drift), and the
# model close to its best turn.
_UNDISTURBED: Final = 0.85
_NEAR_BEST: Final = 1.08
_L3_PROBE_BYTES: Final = 24 << 20


@dataclass(frozen=True)
class Probe:
    """The speed of the machine at one moment, over all threads of the run: GFLOP/s of fused
    multiply-adds, GB/s of arrays in L2 and beyond it.
    """

    fma_gflops: float
    l2_gbps: float
    l3_gbps: float


class Machine:
    """Probes the machine and stores the best result per number of threads."""

    def __init__(self) -> None:
        self._peak = FmaPeak()
        self._bandwidth = Bandwidth()
        self._best: dict[int, float] = {}

    def probe(self, threads: int) -> Probe:
        """Returns the current speed of the machine; takes about ten milliseconds."""
        gflops = self._peak.gflops(threads, runs=2)
        self._best[threads] = max(self._best.get(threads, 0.0), gflops)
        near = self._bandwidth.gbps("read", host().l2_bytes // 2 * threads, threads)
        far = self._bandwidth.gbps("read", _L3_PROBE_BYTES, threads)
        return Probe(gflops, near, far)

    def disturbed(self, threads: int) -> bool:
        """Whether the machine is now notably slower than its best: another program is using it."""
        gflops = self._peak.gflops(threads, runs=1)
        return gflops < _UNDISTURBED * self._best.get(threads, 0.0)

    def poor(self, probe: Probe, threads: int) -> bool:
        """Whether a probe is notably slower than the best."""
        return probe.fma_gflops < _UNDISTURBED * self._best[threads]


@dataclass(frozen=True)
class Timed:
    """Nanoseconds of a model's kernels, of whole calls, and the probes of the turns.

    `kernels` is f64[runs, kernels], in the order of `Build.uses`; NaN for a kernel in a branch that
    did not run. `alone` is f64[repeats, kernels] of each kernel run repeatedly by itself (no rows
    if not requested). `runs` is i64[kernels]: in a loop a kernel runs several times, and `kernels`
    has their total time. `calls` are whole calls from Python. `steady` says that at least half of
    the requested turns were undisturbed, and that only these count.
    """

    kernels: Array
    alone: Array
    runs: Array
    calls: Array
    probes: tuple[Probe, ...]
    disturbed_turns: int
    steady: bool

    @property
    def typical(self) -> Array:
        """f64[kernels]: means over the middle half of the runs, ranked by their sums. Unlike
        medians of kernels, they add up to the time of a typical run.
        """
        order = np.argsort(np.nansum(self.kernels, axis=1))
        quarter = len(order) // 4
        means: Array = np.mean(self.kernels[order[quarter : len(order) - quarter]], axis=0)
        return means

    @property
    def sum_ns(self) -> float:
        """The total time of the kernels in a typical run."""
        return float(np.nansum(self.typical))

    @property
    def call_ns(self) -> float:
        """The median of whole calls."""
        return float(np.median(self.calls))


class _Subject:
    """A built model with the operands of each of its native segments."""

    def __init__(self, build: Build, arrays: Sequence[Any]) -> None:
        self.build = build
        self.arrays = arrays
        seen: dict[int, list[Any]] = {}
        numbers = {id(s): n for n, s in enumerate(build.segments)}

        def note(what: Instruction, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
            if isinstance(what, RunSegment):
                seen[numbers[id(what.segment)]] = list(inputs)
            return run()

        build.program.observed(arrays, note)
        self.given = dict(sorted(seen.items()))

    def run(self) -> int:
        """Returns the nanoseconds of one whole call."""
        began = time.perf_counter_ns()
        self.build.program(self.arrays)
        return time.perf_counter_ns() - began

    def kernels(self, runs: int) -> Array:
        """Returns f64[runs, kernels] of runs with every kernel timed."""
        times = {
            n: self.build.segments[n].profile(given, runs).astype(np.float64)
            for n, given in self.given.items()
        }
        return self._by_use(lambda use: times[use.segment][:, use.step], runs)

    def runs(self) -> Array:
        """Returns i64[kernels]: the number of runs of each."""
        counts = {n: self.build.segments[n].iterations(given) for n, given in self.given.items()}
        uses = self.build.uses
        return np.array([counts[u.segment][u.step] if u.segment in counts else 0 for u in uses])

    def alone(self, repeats: int) -> Array:
        """Returns f64[repeats, kernels] of each kernel run repeatedly."""
        segments = self.build.segments

        known: dict[str, Array] = {}  # another use of the same kernel is not timed again

        def timed(use: KernelUse) -> Array:
            if use.source.key not in known:
                given = self.given[use.segment]
                times = segments[use.segment].time_step(use.step, given, repeats)
                known[use.source.key] = times.astype(np.float64)
            return known[use.source.key]

        return self._by_use(timed, repeats)

    def _by_use(self, times: Callable[[KernelUse], Array], rows: int) -> Array:
        none = np.full(rows, np.nan)
        columns = [times(u) if u.segment in self.given else none for u in self.build.uses]
        return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))


def time_program(
    build: Build, arrays: Sequence[Any], machine: Machine, turns: int = 4, alone: int = 0
) -> Timed:
    """Returns the times of `turns` undisturbed turns, or of twice as many turns of any kind.

    `arrays` are the model's inputs in order. A turn is a probe, an uncounted run, runs with every
    kernel timed, and whole calls. `alone` is the number of runs of each kernel by itself; they are
    skipped if they would take long.
    """
    subject = _Subject(build, arrays)
    threads = max((segment.pool.threads for segment in build.segments), default=1)
    took_ns = min(subject.run() for _ in range(_SETTLED_AFTER))
    runs = int(np.clip(_TURN_S * 1e9 / took_ns, 3, _MOST_RUNS))
    distinct = len({use.source.key for use in build.uses})
    affordable = 2e-9 * took_ns * distinct < _MOST_ALONE_S
    seen: list[_Turn] = []
    chosen: list[_Turn] = []
    for _ in range(2 * turns):
        probe = machine.probe(threads)
        subject.run()
        kernels = subject.kernels(runs)
        calls = np.array([subject.run() for _ in range(runs)], np.float64)
        poor = machine.disturbed(threads) or machine.poor(probe, threads)
        seen.append(_Turn(probe, kernels, calls, poor))
        chosen = _undisturbed(seen)
        if len(chosen) == turns:
            break
    steady = 2 * len(chosen) >= turns
    chosen = chosen or seen
    return Timed(
        np.concatenate([turn.kernels for turn in chosen]),
        subject.alone(alone) if alone and affordable else np.zeros((0, len(build.uses))),
        subject.runs(),
        np.concatenate([turn.calls for turn in chosen]),
        tuple(turn.probe for turn in chosen),
        len(seen) - len(chosen),
        steady,
    )


@dataclass(frozen=True)
class _Turn:
    probe: Probe
    kernels: Array
    calls: Array
    poor: bool

    @property
    def median_ns(self) -> float:
        return float(np.median(self.calls))


def _undisturbed(turns: Sequence[_Turn]) -> list[_Turn]:
    """Returns the turns in which no other program used the machine."""
    best = min(turn.median_ns for turn in turns)
    return [t for t in turns if not t.poor and t.median_ns <= _NEAR_BEST * best]
