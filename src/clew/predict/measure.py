"""Times every kernel of a model as the program runs it, with probes of the machine before.

A kernel's time depends on the state in which earlier kernels left the caches, so times are taken
from whole runs of the program, as in deployment. Other programs share the machine, and often the
core itself: the runs are divided into pieces, and those on an undisturbed core count
(`runtime/pieces.py`).
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
_QUANTILE: Final = 0.25
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

    `kernels` is f64[runs, kernels], in the order of `Build.uses`; NaN where something disturbed a
    kernel's piece. A kernel of which too few runs were undisturbed has all of them, and `share` is
    f64[kernels], the share of its runs here that was undisturbed. `alone` is f64[repeats, kernels]
    of each kernel run repeatedly by itself (no rows if not requested). `runs` is i64[kernels]: in a
    loop a kernel runs several times, and `kernels` has their total time; in a branch that was not
    taken it does not run. `calls` are undisturbed whole calls from Python beside these runs, none
    if they are long. `steady` says whether the undisturbed runs of every kernel sufficed.
    """

    kernels: Array
    share: Array
    alone: Array
    runs: Array
    calls: Array
    probes: tuple[Probe, ...]
    steady: bool

    def of_kernel(self, number: int) -> Array:
        """f64[runs]: the times of a kernel that count."""
        times = self.kernels[:, number]
        found: Array = times[~np.isnan(times)]
        return found

    @property
    def typical(self) -> Array:
        """f64[kernels]: the time of each kernel in an undisturbed run: the lower quartile of those
        runs that were undisturbed. NaN for those that do not run.
        """
        found = np.full(len(self.share), np.nan)
        for number, share in enumerate(self.share):
            times = self.of_kernel(number)
            if len(times):
                found[number] = np.quantile(times, _QUANTILE * share)
        return found

    @property
    def sum_ns(self) -> float:
        """The total time of the kernels in an undisturbed run."""
        return float(np.nansum(self.typical))

    @property
    def call_ns(self) -> float:
        """The time of an undisturbed call: that of its kernels, and the time outside of them."""
        inside = self.kernels[:, self.runs > 0].sum(axis=1)
        inside = inside[~np.isnan(inside)]
        if not len(self.calls) or not len(inside):
            return self.sum_ns
        outside = np.quantile(self.calls, _QUANTILE) - np.quantile(inside, _QUANTILE)
        return self.sum_ns + max(0.0, float(outside))


class _Subject:
    """A built model with the operands of each of its native segments."""

    def __init__(self, build: Build, arrays: Sequence[Any], watcher: Quiet) -> None:
        self.build = build
        self.arrays = arrays
        self._watcher = watcher
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

    def undisturbed_call(self) -> list[int]:
        """Returns the nanoseconds of one whole call; none if something disturbed it."""
        began = self._watcher.begin()
        took = self.run()
        return [took] if self._watcher.is_so() and began else []

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
    """Returns the times of undisturbed runs of each kernel, five for each of `turns`, or of all
    runs if the machine is disturbed for so long that there are fewer.

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
    times, good, calls = _measured(subject, runs, took_s, turns)
    counts = good.sum(axis=0)
    enough = (2 * counts >= turns * _TURN_RUNS) | (runs == 0)
    return Timed(
        np.where(good | ~enough, times, np.nan),
        np.where(enough, 1.0, counts / len(good)),
        subject.alone(alone) if alone and affordable else np.zeros((0, len(build.uses))),
        runs,
        calls,
        tuple(probes),
        bool(enough.all()),
    )


def _measured(
    subject: _Subject, runs: Array, took_s: float, turns: int
) -> tuple[Array, Array, Array]:
    """Returns f64[rows, kernels], the times of runs; bool[rows, kernels], which were undisturbed;
    and f64[calls] of undisturbed whole calls. There are runs until enough of each kernel were
    undisturbed, or enough time has passed.
    """
    long = took_s > _LONG_S
    until = time.perf_counter() + turns * _MOST_TURN_S
    first, _ = subject.pieces.run(subject.arrays)
    subject.pieces.divide(first)
    times: list[Array] = []
    good: list[Array] = []
    calls: list[int] = []
    left = np.where(runs > 0, turns * _TURN_RUNS, 0)
    while not times or ((left > 0).any() and time.perf_counter() < until):
        if not long:
            calls += subject.undisturbed_call()  # the caches again have what a run leaves in them
        taken, undisturbed = subject.pieces.run(subject.arrays)
        times.append(taken)
        good.append(undisturbed)
        left = left - undisturbed
    return np.stack(times), np.stack(good), np.array(calls, float)
