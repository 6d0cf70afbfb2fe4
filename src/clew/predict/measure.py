"""Times every kernel of a model as it runs in the program, with probes of the machine between.

A kernel's time depends on what the kernels before it left in the caches, so it is taken from whole
runs of the program, one after another, as a deployed model has them.
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
_TURN_S: Final = 0.1  # of a turn's runs
_MOST_RUNS: Final = 60
_SETTLED_AFTER: Final = 4  # runs: weights have moved where they stay
_MOST_ALONE_S: Final = 4.0  # each kernel that is run alone needs a whole run before
# A turn counts where the machine gave about what it gives at its best in this session (clocks
# drift), and where the model took about as long as in its best turn.
_UNDISTURBED: Final = 0.85
_NEAR_BEST: Final = 1.08
_L3_PROBE_BYTES: Final = 24 << 20


@dataclass(frozen=True)
class Probe:
    """What the machine gave at one moment, all threads of the run together: GFLOP/s of fused
    multiply-adds, GB/s of arrays in L2 and beyond it.
    """

    fma_gflops: float
    l2_gbps: float
    l3_gbps: float


class Machine:
    """Probes the machine, and remembers the best that it gave, by the number of threads."""

    def __init__(self) -> None:
        self._peak = FmaPeak()
        self._bandwidth = Bandwidth()
        self._best: dict[int, float] = {}

    def probe(self, threads: int) -> Probe:
        """Returns what the machine gives now; takes about ten milliseconds."""
        gflops = self._peak.gflops(threads, runs=2)
        self._best[threads] = max(self._best.get(threads, 0.0), gflops)
        near = self._bandwidth.gbps("read", host().l2_bytes // 2 * threads, threads)
        far = self._bandwidth.gbps("read", _L3_PROBE_BYTES, threads)
        return Probe(gflops, near, far)

    def disturbed(self, threads: int) -> bool:
        """Whether the machine gives notably less now than at its best: another program has it."""
        gflops = self._peak.gflops(threads, runs=1)
        return gflops < _UNDISTURBED * self._best.get(threads, 0.0)

    def poor(self, probe: Probe, threads: int) -> bool:
        """Whether a probe found notably less than the best."""
        return probe.fma_gflops < _UNDISTURBED * self._best[threads]


@dataclass(frozen=True)
class Timed:
    """Nanoseconds of a model's kernels, of whole calls, and the probes of the turns.

    `kernels` is f64[runs, kernels], in the order of `Build.uses`; NaN for a kernel in a branch that
    did not run. `alone` is f64[repeats, kernels] of each run again and again by itself (no rows
    where that was not asked for). `runs` is i64[kernels]: in a loop a kernel runs several times,
    and `kernels` has the time of all of them. `calls` are whole calls from Python. `steady` says
    that at least half of the turns asked for were undisturbed, and that only these count.
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
        """f64[kernels]: means over the middle half of the runs, as their sums rank them. These add
        up to what a typical run takes, which medians of kernels do not.
        """
        order = np.argsort(np.nansum(self.kernels, axis=1))
        quarter = len(order) // 4
        means: Array = np.mean(self.kernels[order[quarter : len(order) - quarter]], axis=0)
        return means

    @property
    def sum_ns(self) -> float:
        """What the kernels of a typical run take together."""
        return float(np.nansum(self.typical))

    @property
    def call_ns(self) -> float:
        """The median of whole calls."""
        return float(np.median(self.calls))


class _Subject:
    """A built model with what each of its native segments is given."""

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
        """Returns i64[kernels]: how often each runs."""
        counts = {n: self.build.segments[n].turns(given) for n, given in self.given.items()}
        uses = self.build.uses
        return np.array([counts[u.segment][u.step] if u.segment in counts else 0 for u in uses])

    def alone(self, repeats: int) -> Array:
        """Returns f64[repeats, kernels] of each kernel run again and again."""
        segments = self.build.segments

        known: dict[str, Array] = {}  # a use more of the same kernel is not timed again

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
    """Returns the times of `turns` undisturbed turns, or of twice as many of any kind.

    `arrays` are the model's inputs in order. A turn is a probe, a run that is not counted, runs
    with every kernel timed, and whole calls. `alone` asks for so many runs of each kernel by
    itself, which are left out where they would take long.
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
    """Returns the turns in which nothing else had the machine."""
    best = min(turn.median_ns for turn in turns)
    return [t for t in turns if not t.poor and t.median_ns <= _NEAR_BEST * best]
