"""Times every kernel of a model as the program runs it, with probes of the machine in between.

A kernel's time depends on the state in which earlier kernels left the caches, so times are taken
from consecutive whole runs of the program, as in deployment. Other programs share the machine, and
often the core itself (its other hardware thread), for some tens of milliseconds at a time. A
sentinel around every few runs tells which of them had the core for themselves.
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
from clew.machine.probes.sentinel import Sentinel
from clew.machine.target import host
from clew.runtime.program import Instruction, RunSegment

Array: TypeAlias = "np.ndarray[Any, Any]"
_SETTLED_AFTER: Final = 4  # runs, after which pages of weights have stopped moving
_MOST_ALONE_S: Final = 4.0  # each kernel run alone first needs a whole run
# Shorter than most undisturbed periods: both sentinels around a batch are then in the same one.
_BATCH_S: Final = 0.008
_MOST_BATCH: Final = 12
_MOST_WAIT_S: Final = 0.05  # for an undisturbed moment, before a batch
_TURN_RUNS: Final = 5  # undisturbed runs of one turn
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
        self.sentinel = Sentinel()

    def probe(self, threads: int) -> Probe:
        """Returns the current speed of the machine; takes about ten milliseconds."""
        gflops = self._peak.gflops(threads, runs=2)
        near = self._bandwidth.gbps("read", host().l2_bytes // 2 * threads, threads)
        far = self._bandwidth.gbps("read", _L3_PROBE_BYTES, threads)
        return Probe(gflops, near, far)


@dataclass(frozen=True)
class Timed:
    """Nanoseconds of a model's kernels, of whole calls, and the probes.

    `kernels` is f64[runs, kernels], in the order of `Build.uses`; NaN for a kernel in a branch that
    did not run. These are the undisturbed runs, or all of them if there were too few; `share` is
    the share of these that was undisturbed. `alone` is f64[repeats, kernels] of each kernel run
    repeatedly by itself (no rows if not requested). `runs` is i64[kernels]: in a loop a kernel runs
    several times, and `kernels` has their total time. `calls` are whole calls from Python beside
    these runs, none if they are long. `steady` says whether undisturbed runs sufficed.
    """

    kernels: Array
    share: float
    alone: Array
    runs: Array
    calls: Array
    probes: tuple[Probe, ...]
    steady: bool

    @property
    def typical(self) -> Array:
        """f64[kernels]: the time of each kernel in an undisturbed run: the lower quartile of those
        runs that were undisturbed.
        """
        return self._of_undisturbed(self.kernels)

    def _of_undisturbed(self, times: Array) -> Array:
        found: Array = np.quantile(times, _QUANTILE * self.share, axis=0)
        return found

    @property
    def sum_ns(self) -> float:
        """The total time of the kernels in an undisturbed run."""
        return float(np.nansum(self.typical))

    @property
    def call_ns(self) -> float:
        """The time of an undisturbed call: that of its kernels, and the time outside of them."""
        if not len(self.calls):
            return self.sum_ns
        inside = self._of_undisturbed(np.nansum(self.kernels, axis=1))
        return self.sum_ns + max(0.0, float(self._of_undisturbed(self.calls) - inside))


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
    """Returns the times of undisturbed runs, five for each of `turns`, or of all runs if the
    machine is disturbed for so long that there are fewer.

    `arrays` are the model's inputs in order. `alone` is the number of runs of each kernel by
    itself; they are skipped if they would take long.
    """
    subject = _Subject(build, arrays)
    threads = max((segment.pool.threads for segment in build.segments), default=1)
    took_s = min(subject.run() for _ in range(_SETTLED_AFTER)) / 1e9
    distinct = len({use.source.key for use in build.uses})
    affordable = 2 * took_s * distinct < _MOST_ALONE_S
    probes = [machine.probe(threads) for _ in range(_PROBES)]
    batches = _batches(subject, machine.sentinel, took_s, turns)
    quiet = [b for b in batches if b.began_quiet and b.ended_quiet]
    enough = 2 * _rows(quiet) >= turns * _TURN_RUNS
    # How a batch begins has been waited for; how it ends has not.
    ended = sum(len(b.kernels) for b in batches if b.ended_quiet)
    share = 1.0 if enough else ended / _rows(batches)
    chosen = quiet if enough else batches
    return Timed(
        np.concatenate([b.kernels for b in chosen]),
        share,
        subject.alone(alone) if alone and affordable else np.zeros((0, len(build.uses))),
        subject.runs(),
        np.concatenate([b.calls for b in chosen]),
        tuple(probes),
        enough or 4 * ended >= turns * _TURN_RUNS,
    )


@dataclass(frozen=True)
class _Batch:
    """Some consecutive runs, and whether the core was undisturbed just before and after them."""

    kernels: Array
    calls: Array
    began_quiet: bool
    ended_quiet: bool


def _batches(subject: _Subject, sentinel: Sentinel, took_s: float, turns: int) -> Sequence[_Batch]:
    """Returns batches until enough of their runs were undisturbed, or enough time has passed."""
    runs = int(np.clip(_BATCH_S / took_s, 1, _MOST_BATCH))
    long = took_s > _LONG_S
    until = time.perf_counter() + turns * _MOST_TURN_S
    batches: list[_Batch] = []
    subject.run()
    while True:
        began_quiet = sentinel.wait(_MOST_WAIT_S)
        if not long:
            subject.run()  # the caches again have what a run leaves in them
        kernels = subject.kernels(runs)
        calls = np.array([subject.run() for _ in range(0 if long else runs)], np.float64)
        batches.append(_Batch(kernels, calls, began_quiet, sentinel.undisturbed()))
        # A long run is never undisturbed as a whole, but the same share of each kernel's runs is.
        quiet = [b for b in batches if b.ended_quiet and (long or b.began_quiet)]
        if _rows(quiet) >= turns * _TURN_RUNS or time.perf_counter() > until:
            return batches


def _rows(batches: Sequence[_Batch]) -> int:
    return sum(len(batch.kernels) for batch in batches)
