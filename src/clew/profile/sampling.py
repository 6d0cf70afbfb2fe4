"""Samples the kernels of a compiled model, each as often as it takes to tell its lines apart.

The steps run in the order of a run, so that each has the operands it has there. Small kernels are
run several times in their place, until each kernel of several operators has been met often enough:
one that takes 0.1 % of a run would else need a thousand times the time. Equal kernels share one
object; which use of it was met is told by the step that ran.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from clew.backends.cpu.lowering import operator_calls
from clew.build.result import Build, KernelUse
from clew.codegen.artifact import ObjectCode
from clew.codegen.disassemble import code_lines
from clew.compiled import CompiledModel
from clew.ir.expr import Call, Function
from clew.profile.blame import Blame, samples_are_late
from clew.runtime.context import Context
from clew.runtime.driver import driver
from clew.runtime.model import segment_inputs
from clew.runtime.sampler import INTERVAL_NS, Row, Sampler, Samples
from clew.runtime.segment import NativeSegment

ENOUGH: Final = 400
"""Samples in a kernel's code that sampling aims at: a share of a half is then known within 2.5
points (one standard error)."""

LEAST: Final = 100
"""Samples that a split is made of at least: a share's standard error is up to 5 points there."""

_PLENTY: Final = 8 * ENOUGH  # with time left, sampling goes on to so many
_PLAIN_SHARE: Final = 0.3  # of the time, for runs in which no step is repeated
_MOST_PASSES: Final = 12
_CALL_NS: Final = 30_000_000  # about what a native call takes; then the samples are looked at
_SHORT_NS: Final = 5_000_000  # runs that are timed more than once
_SLOWER: Final = 1.5  # what sampling about makes of a kernel's time, until that is known
_KNOWN: Final = 20  # samples that tell how many come in a time
_ATTEMPTS: Final = 4


@dataclass
class UseSamples:
    """Samples of one use of a kernel, by offset in its object's code.

    While it ran some were met outside its code: `waiting` in the native driver, which hands out
    work and waits, and `elsewhere`, such as the C library and the system.
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
    """Samples of a kernel's uses, by the ids of their calls, for those that ran. `blame` says what
    they are about, by the kernel's key.

    `between` counts samples while no step ran (the run's own overhead), `lost` those that found no
    room, `alone` the steps that had to do without the pool's threads.
    """

    uses: Mapping[int, UseSamples]
    blame: Mapping[str, Blame]
    between: int
    lost: int
    alone: int


def sample_kernels(
    compiled: CompiledModel,
    arrays: Sequence[Any],
    *,
    seconds: float = 1.0,
    interval_ns: int = INTERVAL_NS,
    every: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Sampling:
    """Returns samples of the kernels in runs of a model with these inputs.

    `seconds` is for sampling, twice as much where kernels still have fewer than `LEAST` then; a few
    plain runs come on top, and at least one run is sampled. Kernels of one operator are met by the
    way, and with `every` as often as others.
    Segments run one by one with what the program gives them; those that it does not reach with
    these inputs, and host steps, are left out.

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
    """A segment that is sampled: its kernels' uses by step, what each takes in a run, and in one of
    its turns, where it is in a loop.
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
        self.turns = native.turns(inputs).tolist()
        times_ns = zip(self.times_ns, self.turns, strict=True)
        self.turn_ns = [max(1, time // max(1, turns)) for time, turns in times_ns]
        self.run_ns = sum(self.times_ns)


def _segments(build: Build, given: Sequence[Any]) -> list[_Segment]:
    inputs = segment_inputs(build.program, build.segments, given)
    uses: dict[int, list[KernelUse]] = {}
    for use in build.uses:
        uses.setdefault(use.segment, []).append(use)
    return [_Segment(build.segments[n], inputs[n], uses[n]) for n in sorted(uses) if n in inputs]


@dataclass
class _Group:
    """The uses of one kernel: what they take in a run, for how long they ran while sampled (both
    as times without sampling), and how many samples they had.
    """

    run_ns: int = 0
    sampled_ns: int = 0
    samples: int = 0


@dataclass(frozen=True)
class _Call:
    """A native call: its rows, and for how long each kernel runs in it, by its key."""

    rows: list[Row]
    ran_ns: Mapping[str, int]


class _Plan:
    """Decides how often each step runs, pass by pass, until every kernel of several operators (with
    `every`, of one, too) had enough samples or the time is over. Those that take most of a run come
    first.

    What sampling costs and gives on this machine it learns on the way.
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
            for use, time_ns, turns in zip(
                segment.uses, segment.times_ns, segment.turns, strict=True
            ):
                if not turns:
                    continue
                if every or len(_calls(use)) > 1:
                    self.groups.setdefault(use.source.key, _Group()).run_ns += time_ns
        self._missing: dict[str, int] = {}
        self._plain = int(seconds * 1e9 * _PLAIN_SHARE / (self._run_ns * _SLOWER))

    def passes(self) -> Iterator[int]:
        """Yields the number of each pass through the model; `calls` says what runs in it."""
        for number in range(_MOST_PASSES):
            plain = number == 0 and self._plain > 0
            self._missing = {} if plain else self._chosen()
            if number and not self._missing:
                return
            yield number
            self._plain = 0

    def calls(self, segment: _Segment, context: Context) -> Iterator[_Call]:
        """Yields the native calls of a segment in this pass; none takes long."""
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
        for step, (use, time_ns) in enumerate(zip(segment.uses, segment.turn_ns, strict=True)):
            if not segment.turns[step]:  # in a branch that is not taken
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
        """Yields calls of one step until it has its part of the samples: what it takes when it is
        repeated, its operands in the cache, is not known before. It takes `time_ns` each time, and
        `share_ns` in a run.
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
        """Counts what a call gave: samples by the kernel's key."""
        for key, ran_ns in call.ran_ns.items():
            for group in (self._all, self.groups.get(key)):
                if group is not None:
                    group.sampled_ns += ran_ns
                    group.samples += samples.get(key, 0)

    def _chosen(self) -> dict[str, int]:
        """Returns how many samples a pass is to bring which kernels, as far as there is time.

        Where it will not do for all, all get fewer. For those that have too few to tell anything
        by there is as much time again.
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
            # More, so that chance seldom leaves some to do.
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
        """Returns how many of a kernel's samples a pass does not bring that runs it once."""
        return max(0.0, samples - self.groups[key].run_ns * self._per_ns(key))

    def _times(self, key: str) -> int:
        """Returns how often the uses of a kernel are to run, by what was sampled so far."""
        if key not in self._missing or time.monotonic() - self._start > 2 * self._seconds:
            return 1
        return max(1, math.ceil(self._missing[key] / self._per_ns(key) / self.groups[key].run_ns))

    def _per_ns(self, key: str) -> float:
        """Returns the samples that a kernel gives in a nanosecond of its time without sampling."""
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
        for segment in segments:
            for use in segment.uses:
                self.uses[use.call.id] = UseSamples()
                key = use.source.key
                if key not in self._numbers:
                    self._numbers[key] = number = len(self._numbers)
                    code = build.binaries[key].object
                    self.blame[key] = Blame(code.data, late)
                    places += _places(code, segment.native.function_address, number)
        places += _places(driver().object, driver().address, _DRIVER)
        places.sort()
        table = np.array(places, np.int64).T
        self._starts, self._ends, self._kernels, self._bases = table

    def add(self, segment: _Segment, context: Context, samples: Samples) -> Counter[str]:
        """Counts samples of a segment's steps; returns those in each kernel's code, by its key."""
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
    """Returns begin and end of each function of an object in memory, the number given to it, and
    where its code begins, which offsets count from.
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
