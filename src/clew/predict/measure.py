"""Times every kernel of a model as the program runs it, with probes of the machine before.

A kernel's time depends on the state in which earlier kernels left the caches, so times are taken
from whole runs of the program, as in deployment. Other programs share the machine, and often the
core itself. The runs are divided into pieces, of which some have the core for themselves
(`runtime/pieces.py`). Their share is that of a kernel's runs that were undisturbed, and the
fastest ones are taken to be these: which pieces they were is less certain, since a piece has
several kernels, and a disturbance within it may go unnoticed.
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
from clew.machine.probes.quiet import Quiet, quiet
from clew.machine.target import host
from clew.runtime.pieces import Pieces
from clew.runtime.program import Instruction, RunSegment

Array: TypeAlias = "np.ndarray[Any, Any]"
_SETTLED_AFTER: Final = 4  # runs, after which pages of weights have stopped moving
_MOST_ALONE_S: Final = 4.0  # each kernel run alone first needs a whole run
_TURN_RUNS: Final = 5  # undisturbed runs of each kernel in one turn
_MOST_TURN_S: Final = 2.5
# In longer runs, the time outside the kernels is smaller than the variation of the run.
_LONG_S: Final = 0.02
# Disturbances only ever add time, and not all are noticed.
_QUANTILE: Final = 0.1
_PROBES: Final = 3
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
    """Probes the machine."""

    def __init__(self) -> None:
        self._peak = FmaPeak()
        self._bandwidth = Bandwidth()
        self.watcher: Quiet = quiet(lenient=False)

    def probe(self, threads: int) -> Probe:
        """Returns the current speed of the machine; takes about ten milliseconds."""
        gflops = self._peak.gflops(threads, runs=2)
        near = self._bandwidth.gbps("read", host().l2_bytes // 2 * threads, threads)
        far = self._bandwidth.gbps("read", _L3_PROBE_BYTES, threads)
        return Probe(gflops, near, far)


@dataclass(frozen=True)
class Timed:
    """Nanoseconds of a model's kernels, of whole calls, and the probes.

    `kernels` is f64[runs, kernels], in the order of `Build.uses`, and `share` f64[kernels], the
    share of each kernel's runs that was undisturbed. `alone` is f64[repeats, kernels] of each
    kernel run repeatedly by itself (no rows if not requested). `runs` is i64[kernels]: in a loop a
    kernel runs several times, and `kernels` has their total time; in a branch that was not taken it
    does not run, and its times are NaN. `calls` are whole calls from Python, `inside` what kernels
    take in runs that are not divided either; none if they are long. `steady` says whether
    undisturbed runs of every kernel sufficed.
    """

    kernels: Array
    share: Array
    alone: Array
    runs: Array
    calls: Array
    inside: Array
    probes: tuple[Probe, ...]
    steady: bool

    def of_kernel(self, number: int) -> Array:
        """f64[runs]: the times of a kernel's undisturbed runs; at least one."""
        return _fastest(self.kernels[:, number], float(self.share[number]))

    @property
    def typical(self) -> Array:
        """f64[kernels]: the time of each kernel in an undisturbed run, their lower decile. NaN for
        those that do not run.
        """
        numbers = range(len(self.share))
        return np.array([np.quantile(self.of_kernel(n), _QUANTILE) for n in numbers], float)

    @property
    def sum_ns(self) -> float:
        """The total time of the kernels in an undisturbed run."""
        return float(np.nansum(self.typical))

    @property
    def call_ns(self) -> float:
        """The time of an undisturbed call: that of its kernels, and the time outside of them."""
        if not len(self.calls):
            return self.sum_ns
        return self.sum_ns + max(0.0, float(self.calls.min() - self.inside.min()))


def _fastest(times: Array, share: float) -> Array:
    """Returns a share of some times, at least one: the least ones."""
    found: Array = np.sort(times)[: max(1, round(share * len(times)))]
    return found


class _Subject:
    """A built model with the operands of each of its native segments."""

    def __init__(self, build: Build, arrays: Sequence[Any], watcher: Quiet) -> None:
        self.build = build
        self.arrays = arrays
        self.watcher = watcher
        seen: dict[int, list[Any]] = {}
        numbers = {id(s): n for n, s in enumerate(build.segments)}

        def note(what: Instruction, inputs: Sequence[Any], run: Callable[[], Any]) -> Any:
            if isinstance(what, RunSegment):
                seen[numbers[id(what.segment)]] = list(inputs)
            return run()

        build.program.observed(arrays, note)
        self.given = dict(sorted(seen.items()))
        places = [(use.segment, use.step) for use in build.uses]
        self.pieces = Pieces(build.program, build.segments, places, watcher)

    def run(self) -> int:
        """Returns the nanoseconds of one whole call."""
        began = time.perf_counter_ns()
        self.build.program(self.arrays)
        return time.perf_counter_ns() - began

    def inside(self) -> float:
        """Returns the nanoseconds of all kernels in one run that is not divided."""
        segments = self.build.segments
        return float(sum(segments[n].profile(given, 1).sum() for n, given in self.given.items()))

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

        none = np.full(repeats, np.nan)
        columns = [timed(u) if u.segment in self.given else none for u in self.build.uses]
        return np.stack(columns, axis=1) if columns else np.zeros((repeats, 0))


def time_program(
    build: Build, arrays: Sequence[Any], machine: Machine, turns: int = 4, alone: int = 0
) -> Timed:
    """Returns the times of runs, until five for each of `turns` were undisturbed of each kernel, or
    until enough time has passed.

    `arrays` are the model's inputs in order. `alone` is the number of runs of each kernel by
    itself; they are skipped if they would take long.
    """
    subject = _Subject(build, arrays, machine.watcher)
    threads = max((segment.pool.threads for segment in build.segments), default=1)
    took_s = min(subject.run() for _ in range(_SETTLED_AFTER)) / 1e9
    distinct = len({use.source.key for use in build.uses})
    affordable = 2 * took_s * distinct < _MOST_ALONE_S
    probes = [machine.probe(threads) for _ in range(_PROBES)]
    runs = subject.runs()
    long = took_s > _LONG_S
    times, good = _measured(subject, runs, turns, long=long)
    shorts = 0 if long else turns * _TURN_RUNS
    pairs = np.array([(subject.run(), subject.inside()) for _ in range(shorts)], float)
    calls, inside = pairs.reshape(-1, 2).T
    counts = good.sum(axis=0)
    return Timed(
        times,
        counts / len(good),
        subject.alone(alone) if alone and affordable else np.zeros((0, len(build.uses))),
        runs,
        calls,
        inside,
        tuple(probes),
        bool(((2 * counts >= turns * _TURN_RUNS) | (runs == 0)).all()),
    )


def _measured(subject: _Subject, runs: Array, turns: int, *, long: bool) -> tuple[Array, Array]:
    """Returns f64[rows, kernels], the times of runs, and bool[rows, kernels], which were
    undisturbed. There are runs until enough of each kernel were, or enough time has passed. They
    wait for undisturbed moments, unless this has taken half of the time. Nothing waits within a
    run, since meanwhile others would fill the caches.
    """
    began = time.perf_counter()
    first, _ = subject.pieces.run(subject.arrays)
    subject.pieces.divide(first)
    times: list[Array] = []
    good: list[Array] = []
    left = np.where(runs > 0, turns * _TURN_RUNS, 0)
    now, waited = began, 0.0
    while not times or ((left > 0).any() and now - began < turns * _MOST_TURN_S):
        if 2 * waited <= now - began:
            subject.watcher.begin()
            waited += time.perf_counter() - now
            if not long:
                subject.run()  # the caches again have what a run leaves in them
        taken, undisturbed = subject.pieces.run(subject.arrays, waits=False)
        now = time.perf_counter()
        times.append(taken)
        good.append(undisturbed)
        left = left - undisturbed
    return np.stack(times), np.stack(good)
