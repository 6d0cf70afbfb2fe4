"""Samples the kernels of a compiled model, each until its lines can be distinguished.

Steps run in the order of a run, so each has its actual operands. Small kernels are repeated in
place until each kernel of several operators has enough samples: otherwise a kernel that takes 0.1 %
of a run would need a thousand times its time. Equal kernels share one object; the running step
identifies the sampled use.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from clew.backends.cpu.kernel_stages import operator_calls
from clew.build.result import Build, KernelUse
from clew.codegen.artifact import ObjectCode
from clew.codegen.disassemble import code_lines
from clew.ir.expr import Call, Function
from clew.profile.blame import Blame, samples_are_late
from clew.runtime.context import Context
from clew.runtime.driver import driver
from clew.runtime.sampler import INTERVAL_NS, Row, Sampler, Samples
from clew.runtime.segment import NativeSegment
from clew.serving.built_model import BuiltModel
from clew.serving.ready import segment_inputs

ENOUGH: Final = 400
"""The number of samples per kernel that sampling aims at: a share of one half then has a standard
error of 2.5 points.
"""

LEAST: Final = 100
"""The minimum number of samples for a split: a share's standard error is then up to 5 points."""

_PLENTY: Final = 8 * ENOUGH  # sampling continues up to this number if there is time
_PLAIN_SHARE: Final = 0.3  # share of the time for runs without repeated steps
_MOST_PASSES: Final = 12
_CALL_NS: Final = 30_000_000  # approximate length of a native call, after which samples are read
_SHORT_NS: Final = 5_000_000  # shorter runs are timed more than once
_SLOWER: Final = 1.5  # assumed slowdown of a kernel by sampling, until measured
_KNOWN: Final = 20  # samples needed to know the sampling rate
_ATTEMPTS: Final = 4


@dataclass
class UseSamples:
    """Samples of one use of a kernel, by offset in its object's code.

    Some samples taken during the kernel are outside its code: `waiting` in the native driver, which
    distributes work and waits, and `elsewhere`, such as in the C library and the system.
    """

    code: Counter[int] = field(default_factory=Counter)
    waiting: int = 0
    elsewhere: int = 0

    @property
    def total(self) -> int:
        """Samples in the kernel's code."""
        return self.code.total()


@dataclass(frozen=True)
class Sampling:
    """Samples of the kernel uses that ran, by the ids of their calls. `blame` maps samples to
    lines, by the kernel's key.

    `between` counts samples taken while no step ran (the run's own overhead), `lost` those for
    which there was no room, `alone` the steps that ran without the pool's threads.
    """

    uses: Mapping[int, UseSamples]
    blame: Mapping[str, Blame]
    between: int
    lost: int
    alone: int


def sample_kernels(
    compiled: BuiltModel,
    arrays: Sequence[Any],
    *,
    seconds: float = 1.0,
    interval_ns: int = INTERVAL_NS,
    every: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Sampling:
    """Returns samples of the kernels in runs of a model with these inputs.

    `seconds` is the time for sampling, doubled if kernels still have fewer than `LEAST` samples; a
    few plain runs are added, and at least one run is sampled. Kernels of one operator are sampled
    only incidentally; with `every`, as often as others. Segments run one by one on the program's
    values. Segments that these inputs do not reach, and host steps, are skipped.

    Errors: I040, I042, I043 (the inputs); I117, I118 (see `Sampler`).
    """
    given = compiled.checked(arrays)
    build = compiled.build_for(given)
    segments = _segments(build, given)
    found = _Account(build, segments)
    plan = _Plan(segments, seconds, interval_ns, every)
    alone = 0
    if plan.groups:
        with Sampler(build.segments[0].pool, interval_ns) as sampler:
            for number in plan.passes():
                on_progress(f"sampling, pass {number + 1}")
                for segment in segments:
                    with segment.native.prepared(segment.inputs) as context:
                        for call in plan.calls(segment, context):
                            alone += sampler.run(context.steps_address, call.rows)
                            plan.add(call, found.add(segment, context, sampler.take()))
    return Sampling(found.uses, found.blame, found.between, found.lost, alone)


class _Segment:
    """A sampled segment: its kernel uses by step, the time of each in a run, and, in a loop, in one
    iteration.
    """

    def __init__(
        self, native: NativeSegment, inputs: list[np.ndarray], uses: Sequence[KernelUse]
    ) -> None:
        self.native = native
        self.inputs = inputs
        self.uses = sorted(uses, key=lambda use: use.step)
        times = native.profile(inputs, 1)
        if times.sum() < _SHORT_NS:
            times = native.profile(inputs, 5)
        self.times_ns = [max(1, int(t)) for t in times.min(axis=0)]
        self.iterations = native.iterations(inputs).tolist()
        times_ns = zip(self.times_ns, self.iterations, strict=True)
        self.iteration_ns = [max(1, time // max(1, iterations)) for time, iterations in times_ns]
        self.run_ns = sum(self.times_ns)


def _segments(build: Build, given: Sequence[Any]) -> list[_Segment]:
    inputs = segment_inputs(build.program, build.segments, given)
    uses: dict[int, list[KernelUse]] = {}
    for use in build.uses:
        uses.setdefault(use.segment, []).append(use)
    return [_Segment(build.segments[n], inputs[n], uses[n]) for n in sorted(uses) if n in inputs]


@dataclass
class _Group:
    """The uses of one kernel: their time in a run, their running time while sampled (both converted
    to times without sampling), and their number of samples.
    """

    run_ns: int = 0
    sampled_ns: int = 0
    samples: int = 0


@dataclass(frozen=True)
class _Call:
    """A native call: its rows, and the running time of each kernel in it, by key."""

    rows: list[Row]
    ran_ns: Mapping[str, int]


class _Plan:
    """Decides how often each step runs in each pass, until every kernel of several operators (with
    `every`, also of one) has enough samples or the time is over. The longest kernels come first.

    The plan measures the cost and yield of sampling on this machine as it goes.
    """

    def __init__(
        self, segments: Sequence[_Segment], seconds: float, interval_ns: int, every: bool
    ) -> None:
        self._start = time.monotonic()
        self._seconds = seconds
        self._run_ns = max(1, sum(segment.run_ns for segment in segments))
        self._interval_ns = interval_ns
        self._all = _Group()
        self.groups: dict[str, _Group] = {}
        for segment in segments:
            for use, time_ns, iterations in zip(
                segment.uses, segment.times_ns, segment.iterations, strict=True
            ):
                if not iterations:
                    continue
                if every or len(_calls(use)) > 1:
                    self.groups.setdefault(use.source.key, _Group()).run_ns += time_ns
        self._missing: dict[str, int] = {}
        self._plain = int(seconds * 1e9 * _PLAIN_SHARE / (self._run_ns * _SLOWER))

    def passes(self) -> Iterator[int]:
        """Yields the number of each pass through the model; `calls` gives the calls of a pass."""
        for number in range(_MOST_PASSES):
            plain = number == 0 and self._plain > 0
            self._missing = {} if plain else self._chosen()
            if number and not self._missing:
                return
            yield number
            self._plain = 0

    def calls(self, segment: _Segment, context: Context) -> Iterator[_Call]:
        """Yields the native calls of a segment in this pass, all of them short."""
        at_once = max(1, int(_CALL_NS / max(1, segment.run_ns)))
        for done in range(0, self._plain, at_once):
            times = min(at_once, self._plain - done)
            ran: Counter[str] = Counter()
            for use, time_ns in zip(segment.uses, segment.times_ns, strict=True):
                ran[use.source.key] += times * time_ns
            yield _Call([Row(0, context.n_entries, times)], ran)
        if not self._plain:
            yield from self._stretched(segment, context)

    def _stretched(self, segment: _Segment, context: Context) -> Iterator[_Call]:
        bounds = [segment.native.entries_of(step) for step in range(len(segment.uses))]
        rows: list[Row] = []
        ran: Counter[str] = Counter()
        total_ns = 0
        for step, (use, time_ns) in enumerate(zip(segment.uses, segment.iteration_ns, strict=True)):
            if not segment.iterations[step]:  # in a branch that was not taken
                continue
            times = self._times(use.source.key)
            restore = context.overwritten(segment.native.plan, step) if times > 1 else (0, 0)
            if times > 1 and not restore[1] and self.groups[use.source.key].samples < _KNOWN:
                if rows:
                    yield _Call(rows, ran)
                share_ns = segment.times_ns[step]
                yield from self._until_known(bounds[step], use.source.key, time_ns, share_ns)
                rows, ran, total_ns = [], Counter(), 0
                continue
            rows.append(Row(*bounds[step], times, restore))
            ran[use.source.key] += times * time_ns
            total_ns += times * time_ns
            if total_ns > _CALL_NS:
                yield _Call(rows, ran)
                rows, ran, total_ns = [], Counter(), 0
        if rows:
            yield _Call(rows, ran)

    def _until_known(
        self, bounds: tuple[int, int], key: str, time_ns: int, share_ns: int
    ) -> Iterator[_Call]:
        """Yields calls of one step until it has its part of the samples. The step takes `time_ns`
        each time and `share_ns` in a run. Its time when repeated, with operands in the cache, is
        not known in advance.
        """
        group = self.groups[key]
        before = group.samples
        wanted = self._missing[key] * share_ns / group.run_ns
        for _ in range(_ATTEMPTS):
            left = wanted - (group.samples - before)
            if left <= wanted / 4:
                return
            times = max(1, math.ceil(left / self._per_ns(key) / time_ns))
            yield _Call([Row(*bounds, times)], {key: times * time_ns})
            if self._times(key) == 1:
                return

    def add(self, call: _Call, samples: Mapping[str, int]) -> None:
        """Records the result of a call: samples by the kernel's key."""
        for key, ran_ns in call.ran_ns.items():
            for group in (self._all, self.groups.get(key)):
                if group is not None:
                    group.sampled_ns += ran_ns
                    group.samples += samples.get(key, 0)

    def _chosen(self) -> dict[str, int]:
        """Returns the number of samples to take of each kernel in a pass, given the remaining time.

        If the time is too short for all, each kernel gets fewer. Kernels with too few samples for a
        split get additional time, up to twice the limit.
        """
        elapsed_ns = (time.monotonic() - self._start) * 1e9
        left_ns = self._seconds * 1e9 - elapsed_ns - self._run_ns * _SLOWER
        overtime_ns = self._seconds * 1e9 * bool(self._all.samples)
        sample_ns = _SLOWER * self._interval_ns
        if self._all.samples:
            sample_ns = elapsed_ns / self._all.samples
        fewest = min(group.samples for group in self.groups.values())
        goals = [ENOUGH, ENOUGH // 2, 3 * LEAST // 2]
        if fewest >= ENOUGH:
            goals = [min(_PLENTY, 2 * fewest)]
        by_time = sorted(self.groups.items(), key=lambda item: -item[1].run_ns)
        wanted: dict[str, int] = {}
        costs: dict[str, float] = {}
        for goal in goals:
            missing = {k: goal - g.samples for k, g in by_time if g.samples < goal}
            if not missing:
                break
            # A margin, so that random variation rarely leaves some missing.
            wanted = {k: n + 2 * math.isqrt(n) for k, n in missing.items()}
            costs = {k: self._extra(k, n) * sample_ns for k, n in wanted.items()}
            if sum(costs.values()) <= left_ns:
                return wanted
        chosen: dict[str, int] = {}
        for key, cost_ns in costs.items():
            more_ns = overtime_ns if self.groups[key].samples < LEAST else 0.0
            if cost_ns <= left_ns + more_ns:
                left_ns -= cost_ns
                chosen[key] = wanted[key]
        return chosen

    def _extra(self, key: str, samples: int) -> float:
        """Returns the kernel's samples missing from a pass that runs it once."""
        return max(0.0, samples - self.groups[key].run_ns * self._per_ns(key))

    def _times(self, key: str) -> int:
        """Returns how often to run the uses of a kernel, from the samples so far."""
        if key not in self._missing or time.monotonic() - self._start > 2 * self._seconds:
            return 1
        return max(1, math.ceil(self._missing[key] / self._per_ns(key) / self.groups[key].run_ns))

    def _per_ns(self, key: str) -> float:
        """Returns the samples of a kernel per nanosecond of its time without sampling."""
        for group in (self.groups[key], self._all):
            if group.samples >= _KNOWN:
                return group.samples / group.sampled_ns
        return 1 / self._interval_ns


class _Account:
    """Sorts samples by use and line."""

    def __init__(self, build: Build, segments: Sequence[_Segment]) -> None:
        self.uses: dict[int, UseSamples] = {}
        self.between = 0
        self.lost = 0
        self._numbers: dict[str, int] = {}  # of kernels, by key
        self.blame: dict[str, Blame] = {}
        late = samples_are_late() if segments else False
        places: list[tuple[int, int, int, int]] = []
        numbers: dict[str, int] = {}  # by the key of the object, which several kernels may share
        for segment in segments:
            for use in segment.uses:
                self.uses[use.call.id] = UseSamples()
                key = use.source.key
                if key not in self._numbers:
                    code = build.binaries[key].object
                    self.blame[key] = Blame(code.data, late)
                    known = code.key in numbers
                    self._numbers[key] = number = numbers.setdefault(code.key, len(numbers))
                    if known:
                        continue
                    places += _places(code, segment.native.function_address, number)
        places += _places(driver().object, driver().address, _DRIVER)
        places.sort()
        table = np.array(places, np.int64).T
        self._starts, self._ends, self._kernels, self._bases = table

    def add(self, segment: _Segment, context: Context, samples: Samples) -> Counter[str]:
        """Adds samples of a segment's steps; returns the number in each kernel's code, by key."""
        added: Counter[str] = Counter()
        self.lost += samples.lost
        ran = samples.steps >= 0
        self.between += int(np.count_nonzero(~ran))
        addresses = samples.addresses[ran].astype(np.int64)
        steps = np.searchsorted(context.first_entries, samples.steps[ran], "right") - 1
        at = np.maximum(np.searchsorted(self._starts, addresses, "right") - 1, 0)
        inside = (self._starts[at] <= addresses) & (addresses < self._ends[at])
        kernels = np.where(inside, self._kernels[at], _ELSEWHERE)
        offsets = addresses - self._bases[at]
        rows, counts = np.unique(np.stack([steps, kernels, offsets]), axis=1, return_counts=True)
        for step, kernel, offset, count in zip(*rows.tolist(), counts.tolist(), strict=True):
            use = segment.uses[step]
            into = self.uses[use.call.id]
            if kernel == self._numbers[use.source.key]:
                into.code[offset] += count
                added[use.source.key] += count
            elif kernel == _DRIVER:
                into.waiting += count
            else:
                into.elsewhere += count
        return added


def _places(
    code: ObjectCode, address: Callable[[str], int], number: int
) -> list[tuple[int, int, int, int]]:
    """Returns the begin and end of each function of an object in memory, the given number, and the
    start of its code, from which offsets count.
    """
    functions = code_lines(code.data).functions
    symbol = code.symbols[0]
    base = address(symbol) - functions[symbol][0]
    return [(base + at, base + at + size, number, base) for at, size in functions.values()]


_DRIVER: Final = -1
_ELSEWHERE: Final = -2


def _calls(use: KernelUse) -> list[Call]:
    assert isinstance(use.call.op, Function)
    return operator_calls(use.call.op)
