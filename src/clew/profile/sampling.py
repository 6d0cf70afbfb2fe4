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

from clew.build.build import Build, KernelUse
from clew.build.lowering import operator_calls
from clew.codegen.artifact import ObjectCode
from clew.codegen.disassemble import CodeLines, code_lines
from clew.compiled import CompiledModel
from clew.ir.expr import Call, Function
from clew.runtime.context import Context
from clew.runtime.driver import driver
from clew.runtime.model import segment_inputs
from clew.runtime.sampler import INTERVAL_NS, Row, Sampler, Samples
from clew.runtime.segment import NativeSegment
from clew.support.errors import InputError

ENOUGH: Final = 400
"""Samples in a kernel's code that sampling aims at: a share of a half is then known within 2.5
points (one standard error)."""

_PLENTY: Final = 8 * ENOUGH  # with time left, sampling goes on to so many
_PLAIN_SHARE: Final = 0.3  # of the time, for runs in which no step is repeated
_MOST_ROUNDS: Final = 10
_CALL_NS: Final = 250_000_000  # of one native call, between two looks at the samples
_SLOWER: Final = 1.5  # what sampling about makes of a kernel's time
_FEWEST_PER_NS: Final = 0.4 / INTERVAL_NS  # samples of a thread, until they are counted


@dataclass
class UseSamples:
    """Samples of one use of a kernel, by line of its loop nest.

    While it ran some were met outside its code: `waiting` in the native driver, which hands out
    work and waits, and `elsewhere`, such as the C library and the system.
    """

    lines: Counter[int] = field(default_factory=Counter)
    waiting: int = 0
    elsewhere: int = 0

    @property
    def total(self) -> int:
        """Samples in the kernel's code."""
        return sum(self.lines.values())


@dataclass(frozen=True)
class Sampling:
    """Samples of a kernel's uses, by the ids of their calls, for those that ran.

    `between` counts samples while no step ran (the run's own overhead), `lost` those that found no
    room, `alone` the steps that had to do without the pool's threads.
    """

    uses: Mapping[int, UseSamples]
    between: int
    lost: int
    alone: int


def sample_kernels(
    compiled: CompiledModel,
    arrays: Sequence[Any],
    *,
    seconds: float = 1.0,
    interval_ns: int = INTERVAL_NS,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Sampling:
    """Returns samples of the kernels in runs of a model with these inputs.

    `seconds` is for sampling; a few plain runs come on top, and at least one run is sampled.
    Segments run one by one with what the program gives them; those that it does not reach with
    these inputs, and host steps, are left out.

    Errors: I040, I042, I043 (the inputs); I117, I118 (see `Sampler`).
    """
    given = _checked(compiled, arrays)
    build = compiled.build_for(given)
    segments = _segments(build, given)
    found = _Account(build, segments)
    plan = _Plan(segments, seconds)
    alone = 0
    if plan.groups:
        with Sampler(build.segments[0].pool, interval_ns) as sampler:
            for number, round_ in enumerate(plan.rounds()):
                on_progress(f"sampling, round {number + 1}")
                for segment in segments:
                    with segment.native.prepared(segment.inputs) as context:
                        for rows in segment.calls(context, round_):
                            alone += sampler.run(context.steps_address, rows)
                            found.add(segment, context, sampler.take())
                plan.update(round_, found)
    return Sampling(found.uses, found.between, found.lost, alone)


def _checked(compiled: CompiledModel, arrays: Sequence[Any]) -> list[Any]:
    specs = compiled.inputs
    if len(arrays) != len(specs):
        names = ", ".join(spec.name for spec in specs)
        raise InputError(
            "I040", f"{len(arrays)} inputs given, the model has {len(specs)}", hint=f"they: {names}"
        )
    return [spec.check(array) for spec, array in zip(specs, arrays, strict=True)]


@dataclass(frozen=True)
class _Round:
    """Runs that are sampled: how many, and how often in each a kernel is run, by its key; once
    where it is not named.
    """

    passes: int
    repeats: Mapping[str, int] = field(default_factory=dict)

    def times(self, key: str) -> int:
        """Returns how often a kernel runs in its place."""
        return self.repeats.get(key, 1)


class _Segment:
    """A segment that is sampled: its kernels' uses by step, and what each takes in a run."""

    def __init__(
        self, native: NativeSegment, inputs: list[np.ndarray], uses: Sequence[KernelUse]
    ) -> None:
        self.native = native
        self.inputs = inputs
        self.uses = sorted(uses, key=lambda use: use.step)
        self.times_ns = [max(1, int(t)) for t in native.profile(inputs, 2).min(axis=0)]
        self.run_ns = sum(self.times_ns)

    def calls(self, context: Context, round_: _Round) -> Iterator[list[Row]]:
        """Yields the rows of each native call; none takes long."""
        at_once = int(_CALL_NS / (self.run_ns * _SLOWER))
        if round_.repeats or not at_once:
            for _ in range(round_.passes):
                yield from self._stretched(context, round_)
            return
        for done in range(0, round_.passes, at_once):
            yield [Row(0, context.n_entries, min(at_once, round_.passes - done))]

    def _stretched(self, context: Context, round_: _Round) -> Iterator[list[Row]]:
        bounds = [*context.first_entries, context.n_entries]
        rows: list[Row] = []
        cost_ns = 0.0
        for step, (use, time_ns) in enumerate(zip(self.uses, self.times_ns, strict=True)):
            times = round_.times(use.source.key)
            restore = context.overwritten(self.native.plan, step) if times > 1 else (0, 0)
            rows.append(Row(bounds[step], bounds[step + 1], times, restore))
            cost_ns += times * time_ns * _SLOWER
            if cost_ns > _CALL_NS:
                yield rows
                rows, cost_ns = [], 0.0
        if rows:
            yield rows


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
    sampled_ns: float = 0.0
    samples: int = 0


class _Plan:
    """Decides which kernels run how often, round by round, until all had enough samples or the
    time is over. Those that take most of a run come first.
    """

    def __init__(self, segments: Sequence[_Segment], seconds: float) -> None:
        self._seconds = seconds
        self._start = time.monotonic()
        self._run_ns = sum(segment.run_ns for segment in segments)
        self.groups: dict[str, _Group] = {}
        self._key: dict[int, str] = {}
        for segment in segments:
            for use, time_ns in zip(segment.uses, segment.times_ns, strict=True):
                if len(_calls(use)) > 1:
                    self._key[use.call.id] = use.source.key
                    self.groups.setdefault(use.source.key, _Group()).run_ns += time_ns

    def rounds(self) -> Iterator[_Round]:
        """Yields the rounds; `update` is told of each before the next."""
        plain_ns = self._seconds * 1e9 * _PLAIN_SHARE
        yield _Round(max(1, int(plain_ns / (self._run_ns * _SLOWER))))
        for _ in range(_MOST_ROUNDS):
            repeats = self._repeats()
            if not repeats:
                return
            yield _Round(1, repeats)

    def update(self, done: _Round, found: _Account) -> None:
        """Counts what a round gave."""
        for group in self.groups.values():
            group.samples = 0
        for call, key in self._key.items():
            self.groups[key].samples += found.uses[call].total
        for key, group in self.groups.items():
            group.sampled_ns += group.run_ns * done.passes * done.times(key)

    def _repeats(self) -> dict[str, int]:
        left_ns = (self._start + self._seconds - time.monotonic()) * 1e9 - self._run_ns * _SLOWER
        fewest = min(group.samples for group in self.groups.values())
        goal = ENOUGH if fewest < ENOUGH else min(_PLENTY, 2 * fewest)
        repeats: dict[str, int] = {}
        for key, group in sorted(self.groups.items(), key=lambda item: -item[1].run_ns):
            if group.samples >= goal:
                continue
            missing = goal - group.samples
            missing += 2 * math.isqrt(missing)  # so that chance seldom leaves some to do
            per_ns = max(group.samples / group.sampled_ns, _FEWEST_PER_NS)
            times = math.ceil(missing / per_ns / group.run_ns)
            cost_ns = times * group.run_ns * _SLOWER
            if cost_ns <= left_ns:
                left_ns -= cost_ns
                repeats[key] = times
        return repeats


class _Account:
    """Sorts samples by use and line."""

    def __init__(self, build: Build, segments: Sequence[_Segment]) -> None:
        self.uses: dict[int, UseSamples] = {}
        self.between = 0
        self.lost = 0
        self._numbers: dict[str, int] = {}  # of kernels, by key
        self._lines: list[CodeLines] = []
        places: list[tuple[int, int, int, int]] = []
        for segment in segments:
            for use in segment.uses:
                self.uses[use.call.id] = UseSamples()
                key = use.source.key
                if key not in self._numbers:
                    self._numbers[key] = number = len(self._lines)
                    code = build.binaries[key].object
                    places += self._place(code, segment.native.function_address, number)
        places += self._place(driver().object, driver().address, _DRIVER)
        places.sort()
        table = np.array(places, np.int64).T
        self._starts, self._ends, self._kernels, self._bases = table

    def _place(
        self, code: ObjectCode, address: Callable[[str], int], number: int
    ) -> list[tuple[int, int, int, int]]:
        """Returns begin and end of each function in memory, the kernel's number, and where the code
        begins that offsets count from.
        """
        lines = code_lines(code.data)
        self._lines.append(lines)
        symbol = code.symbols[0]
        base = address(symbol) - lines.functions[symbol][0]
        return [
            (base + offset, base + offset + size, number, base)
            for offset, size in lines.functions.values()
        ]

    def add(self, segment: _Segment, context: Context, samples: Samples) -> None:
        """Counts samples of a segment's steps."""
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
                into.lines[self._lines[kernel].line_at(offset)] += count
            elif kernel == _DRIVER:
                into.waiting += count
            else:
                into.elsewhere += count


_DRIVER: Final = -1
_ELSEWHERE: Final = -2


def _calls(use: KernelUse) -> list[Call]:
    assert isinstance(use.call.op, Function)
    return operator_calls(use.call.op)
