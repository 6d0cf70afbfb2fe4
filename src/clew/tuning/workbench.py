"""Compiles, verifies and measures candidates for the kernels of one model on this machine.

A candidate is measured as a part of the whole program: a second build of the model, equal to the
first but for the candidates, runs in turns with it, and every kernel is timed inside whole calls.
So weights come from where they come from in deployment, and neighbors run before and after.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clew.api.compiled_model import CompiledModel
from clew.backends.cpu.history import with_choices
from clew.backends.cpu.lowering import KernelSource
from clew.backends.cpu.schedule_choice import of_operators
from clew.backends.options import Options
from clew.bisection.numbers import whole_tolerance
from clew.build.all_sizes import build_at
from clew.build.kernel import Kernel
from clew.build.result import Build, KernelUse
from clew.codegen.objects import submit
from clew.ir.expr import Function
from clew.ir.module import Module
from clew.ir.structural import structural_hash
from clew.machine.probes.quiet import quiet
from clew.passes.apply_history import Advice, ApplyHistory, untuned
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.predict.describe import describe_uses
from clew.predict.features import NUMBERS
from clew.profile.roofs import Roofs, machine
from clew.records.trial import Outcome
from clew.runtime.cache import Cache
from clew.runtime.pieces import Pieces
from clew.runtime.program import Program
from clew.runtime.threads import shared_pool
from clew.support.collection import rare_collections
from clew.support.errors import ClewError
from clew.support.lazy import cached_property
from clew.tuning.screening import CLEARLY_SLOWER, ratios
from clew.tuning.sequential import Comparison, Demand, quantile
from clew.tuning.tunable import Knob, Tunable
from clew.tuning.verifying import Verifier
from clew.tuning.whole import Turn, Whole, compared, filled, quantiles

Array = np.ndarray[Any, Any]
Choices = Mapping[str, str]
"""The choices of kernels by structural hash; those of other kernels are the default ones."""
Note = Callable[[str, str, str], None]
"""Receives the subject of a trial, its choices, and its state when that changes."""

_TURN_S: Final = 0.012  # of the counted calls in a turn
_MOST_CALLS: Final = 8
_VALUES: Final = 3  # sets of inputs, which calls use in turn
_FIRST_TURNS: Final = 12
_FIRST_S: Final = 15.0
_SHARE_AGAIN: Final = 0.3  # of the time of a batch, for winners
_LANES: Final = 3
_FINALISTS: Final = 2  # candidates of a kernel measured in the program at once
SLOWER_ALONE: Final = "slower when it runs alone"
AGAIN: Final = 20
"""The number of turns in which a winner is measured again."""


class Told:
    """A history with given choices."""

    def __init__(self, choices: Choices) -> None:
        self._choices = dict(choices)

    def __repr__(self) -> str:
        return f"<{sorted(self._choices.items())}>"

    def advice(self, function: Function) -> Advice:
        """Returns the choices given for a kernel."""
        return Advice(self._choices.get(structural_hash(untuned(function)), ""))


class Workbench:
    """A model compiled without records, and builds of it with other choices."""

    def __init__(self, compiled: CompiledModel, cache: Cache, seed: int = 0) -> None:
        """`compiled` is the model compiled without records; its inputs have known sizes."""
        self.compiled = compiled
        self.options: Options = replace(
            compiled.options, required=(), disabled=(), instruments=(), trace=False,
            on_progress=lambda text: None, guard=False,
        )  # fmt: skip
        self.cache = cache
        self._order = np.random.default_rng(seed)
        self.values = [compiled.checked(compiled.drawn(seed=seed + n)) for n in range(_VALUES)]
        self.base: Build = compiled.build_for(self.values[0])
        self._fused: Module = self.base.stages[-1].module
        self._functions: dict[str, Function] = {}
        self._of_use: list[str] = []
        for use in self.base.uses:
            function = use.call.op
            assert isinstance(function, Function)
            subject = structural_hash(untuned(function))
            self._functions.setdefault(subject, function)
            self._of_use.append(subject)
        self._places: dict[str, list[int]] = {}
        for place, subject in enumerate(self._of_use):
            self._places.setdefault(subject, []).append(place)
        self._near = neighbors_of(self._of_use)
        self._verifier = Verifier(self.base, self.values[0], self.options, cache)
        self._codes: dict[str, dict[str, str]] = {}
        self._built: dict[tuple[tuple[str, str], ...], Timed] = {}

    # --- what can be tuned ---

    @cached_property
    def first_ns(self) -> Array:
        """f64[uses]: the time of each kernel use of the default build in a call."""
        timed = self.timed({})
        rows: list[Array] = []
        ends = time.perf_counter() + _FIRST_S
        while len(rows) < _FIRST_TURNS and (not rows or time.perf_counter() < ends):
            rows.append(timed.turn(self.values)[1])
        return filled(quantiles(rows), timed.first_ns)

    def tunables(self) -> list[Tunable]:
        """Returns the kernels with choices, with their times in the default build."""
        times = self._by_subject(self.first_ns)
        facts = facts_of(self.base, self.options.threads)
        roofs = Roofs(machine(self.options.threads, quick=True))
        found: list[Tunable] = []
        for subject, function in self._functions.items():
            places = self._places[subject]
            uses = [self.base.uses[n] for n in places]
            knobs = self._knobs(uses[0], function)
            if not knobs:
                continue
            ns = times[subject]
            found.append(
                Tunable(
                    subject,
                    tuple(use.name for use in uses),
                    tuple(self.base.kernel_layers(use) for use in uses),
                    tuple(places),
                    str(uses[0].source.plan.request),
                    knobs,
                    ns,
                    facts[places[0]],
                    1.0 - min(1.0, roofs.of(Kernel(uses[0], self.base), len(uses), ns).limit_share),
                )
            )
        return found

    def _knobs(self, use: KernelUse, function: Function) -> tuple[Knob, ...]:
        """Returns the choices of a kernel; none if a schedule was written for it."""
        if use.source.by_hand or of_operators(function, self.options.target):
            return ()
        return tuple(
            Knob(decision.rule, decision.root, choice.name, choice.default, choice.options)
            for decision in use.source.plan.decisions
            for choice in decision.space
            if len(choice.options) > 1
        )

    def _by_subject(self, times: Array) -> dict[str, float]:
        """Returns times of uses, f64[uses], summed by kernel."""
        found: dict[str, float] = {}
        for subject, ns in zip(self._of_use, times, strict=True):
            found[subject] = found.get(subject, 0.0) + float(ns)
        return found

    # --- candidates ---

    def run(
        self,
        incumbents: Choices,
        candidates: Sequence[tuple[str, str]],
        demand: Demand,
        note: Note = lambda subject, choices, state: None,
        seconds: float = 60.0,
    ) -> list[Outcome]:
        """Returns the outcomes of trials, one per candidate: it is compiled, compared with the
        interpreter, timed alone, and, unless that shows it to be slower, measured in the program in
        turns with the incumbents for at most some seconds.
        """
        with rare_collections():
            return self._run(incumbents, list(dict.fromkeys(candidates)), demand, note, seconds)

    def _run(
        self,
        incumbents: Choices,
        candidates: Sequence[tuple[str, str]],
        demand: Demand,
        note: Note,
        seconds: float,
    ) -> list[Outcome]:
        ends = time.perf_counter() + seconds
        schedules, outcomes = self._prepared(candidates)
        good: dict[str, list[str]] = {}
        for subject, choices in schedules:
            note(subject, choices, "verifying")
            reason = self._verifier.wrong(subject, self._functions[subject], choices)
            if reason:
                outcomes.append(Outcome(subject, choices, "wrong", reason))
            else:
                note(subject, choices, "measuring")
                good.setdefault(subject, []).append(choices)
        lanes: list[dict[str, str]] = []
        for subject, several in good.items():
            kept, slower = self.screened(subject, incumbents.get(subject, ""), several)
            outcomes += slower
            for choices in kept[:_FINALISTS]:
                self._lane(lanes, subject)[subject] = choices
        if lanes:
            try:
                left = ends - time.perf_counter()
                found = self.measured(incumbents, lanes, demand, (1 - _SHARE_AGAIN) * left)
                outcomes += self._again(incumbents, found, demand, ends)
            except ClewError as error:  # the program as a whole exceeds a budget
                reason = f"{error.code} {error.message}"
                outcomes += [
                    Outcome(*pair, "failed", reason) for lane in lanes for pair in lane.items()
                ]
        return [replace(o, schedule=schedules.get((o.subject, o.choices), "")) for o in outcomes]

    def screened(
        self, subject: str, incumbent: str, candidates: Sequence[str]
    ) -> tuple[list[str], list[Outcome]]:
        """Returns the candidates for a kernel that may be faster than the incumbent, best first,
        and the outcomes of those that are clearly slower when they run alone.
        """
        operands = self._verifier.operands(subject)
        _, *found = ratios(
            self._functions[subject],
            operands,
            [incumbent, *candidates],
            self.options,
            self.cache,
        )
        pairs = sorted(zip(found, candidates, strict=True))
        slower = [
            Outcome(subject, choices, "lost", SLOWER_ALONE, ratio=ratio)
            for ratio, choices in pairs
            if ratio > CLEARLY_SLOWER
        ]
        return [choices for ratio, choices in pairs if ratio <= CLEARLY_SLOWER], slower

    def _lane(self, lanes: list[dict[str, str]], subject: str) -> dict[str, str]:
        """Returns a lane for a candidate of a kernel: if possible, one without candidates for its
        neighbors in the program, which thus are as they were. Each lane costs whole calls, so there
        are only a few.
        """
        free = [lane for lane in lanes if subject not in lane]
        found = min(free, key=lambda lane: len(lane.keys() & self._near[subject]), default=None)
        apart = found is not None and not found.keys() & self._near[subject]
        if found is None or not (apart or len(lanes) >= _LANES):
            lanes.append(found := {})
        return found

    def _again(
        self, incumbents: Choices, found: Sequence[Outcome], demand: Demand, ends: float
    ) -> list[Outcome]:
        """Returns outcomes in which the best candidate of each kernel has the times of further
        turns: those of the turns that made it win are too good on average. There is at least one
        turn, also after the batch's time.
        """
        best: dict[str, Outcome] = {}
        for outcome in found:
            held = best.get(outcome.subject)
            if outcome.state == "won" and (held is None or outcome.ratio < held.ratio):  # type: ignore[operator]
                best[outcome.subject] = outcome
        if not best:
            return list(found)
        lane = {subject: outcome.choices for subject, outcome in best.items()}
        fixed = replace(demand, most=AGAIN)
        left = ends - time.perf_counter()
        again = self.measured(incumbents, [lane], fixed, left, until_decided=False)
        taken = {o.subject: o for o in again}
        return [
            repeated(outcome, taken[outcome.subject], demand)
            if best.get(outcome.subject) is outcome
            else outcome
            for outcome in found
        ]

    def _prepared(
        self, candidates: Sequence[tuple[str, str]]
    ) -> tuple[dict[tuple[str, str], str], list[Outcome]]:
        """Compiles candidates into the cache. Returns the schedules of those that compile, and the
        outcomes of the others.
        """
        outcomes: list[Outcome] = []
        waiting = []
        for subject, choices in candidates:
            made = with_choices(self._functions[subject], choices)
            source = KernelSource(made, self.options.target, bounds=self.options.bounds)
            try:
                text = source.emitted.llvm
            except ClewError as error:
                outcomes.append(_failed(subject, choices, error))
                continue
            same = self._tried(subject).setdefault(_code(source), choices)
            if same != choices:
                reason = f"the same code as {same or 'the default choices'}"
                outcomes.append(Outcome(subject, choices, "lost", reason))
                continue
            stored = self.cache.get(source.key) is not None
            pending = None if stored else submit(text, source.target)
            waiting.append(((subject, choices), source, pending))
        schedules: dict[tuple[str, str], str] = {}
        for pair, source, pending in waiting:
            try:
                if pending is not None:
                    self.cache.put(source.key, source.binary(pending.result()).to_bytes())
            except ClewError as error:
                outcomes.append(_failed(*pair, error))
                continue
            schedules[pair] = source.schedule.text
        return schedules, outcomes

    def _tried(self, subject: str) -> dict[str, str]:
        """Returns the choices of a kernel that were compiled, by the hash of their code."""
        if subject not in self._codes:
            function = with_choices(self._functions[subject], "")
            source = KernelSource(function, self.options.target, bounds=self.options.bounds)
            self._codes[subject] = {_code(source): ""}
        return self._codes[subject]

    def measured(
        self,
        incumbents: Choices,
        lanes: Sequence[Choices],
        demand: Demand,
        seconds: float = 60.0,
        *,
        until_decided: bool = True,
    ) -> list[Outcome]:
        """Returns the outcomes of measuring candidates in turns with the incumbents; without
        `until_decided`, after all turns.
        """
        old = self.timed(incumbents)
        new = [self.timed({**incumbents, **lane}, keep=False) for lane in lanes]
        found = [{subject: Comparison(demand) for subject in lane} for lane in lanes]
        ends = time.perf_counter() + seconds
        for turn in range(demand.most):
            open_ = [
                n
                for n, lane in enumerate(found)
                if any(_is_open(comparison, until_decided) for comparison in lane.values())
            ]
            if not open_ or (turn and time.perf_counter() > ends):
                break
            times = self.turn({-1: old, **{n: new[n] for n in open_}})
            for number in open_:
                for subject, comparison in found[number].items():
                    for place in self._places[subject]:
                        pair = float(times[number][1][place]), float(times[-1][1][place])
                        if _is_open(comparison, until_decided) and not any(map(math.isnan, pair)):
                            comparison.add(*pair)
        return [
            _outcome(subject, lane[subject], comparison, len(self._places[subject]))
            for n, lane in enumerate(lanes)
            for subject, comparison in found[n].items()
        ]

    def turn(self, programs: Mapping[int, Timed]) -> dict[int, tuple[Array, Array]]:
        """Returns the times of one turn of each program. Their order is random: which of two equal
        ones takes longer is then an even chance, however the machine's speed changes.
        """
        numbers = list(programs)
        drawn = [numbers[n] for n in self._order.permutation(len(numbers))]
        return {number: programs[number].turn(self.values) for number in drawn}

    def compared(self, old: Build, new: Build, rounds: int, seconds: float) -> Whole:
        """Returns how whole calls of two builds compare: the sums of what their kernels take. Where
        kernels take a millisecond in all, the time of a call outside of them is not small; it is
        the same in both.
        """
        timed = [self.timed({}) if b is self.base else Timed(b, self.values) for b in (old, new)]
        first, second = (whole_turn(one, self.values) for one in timed)
        return compared(first, second, rounds, seconds)

    def outputs(self, choices: Choices) -> list[Any]:
        """Returns the outputs of the program with these choices, for the first set of inputs."""
        return list(self.build(choices).program(self.values[0]))

    # --- builds ---

    def build(self, choices: Choices) -> Build:
        """Returns a build of the model with these choices."""
        options = replace(
            self.options, passes=(ApplyHistory(Told(choices)),), required=("ApplyHistory",)
        )
        return build_at(self._fused, options, self.cache, shared_pool(options.threads), {})

    def timed(self, choices: Choices, *, keep: bool = True) -> Timed:
        """Returns the timed program with these choices. With `keep`, only the last is kept."""
        key = tuple(sorted(choices.items()))
        found = self._built.get(key)
        if found is None:
            found = Timed(self.build(choices), self.values)
            if keep:
                self._built = {key: found}
        return found

    @property
    def tolerance(self) -> float:
        """The error that rounding may cause in the model's outputs."""
        passes = self.compiled.options.passes
        narrowed = [p.dtype for p in passes if isinstance(p, ConvertPrecision)]
        return whole_tolerance(self.base.stages[0].module, narrowed)

    @property
    def functions(self) -> Mapping[str, Function]:
        """The primitive functions by structural hash."""
        return self._functions


def neighbors_of(subjects: Sequence[str]) -> Mapping[str, set[str]]:
    """Returns, for each kernel of a program, those that run directly before or after one of its
    uses, and itself.
    """
    found: dict[str, set[str]] = {subject: {subject} for subject in subjects}
    for one, other in pairwise(subjects):
        found[one].add(other)
        found[other].add(one)
    return found


class Timed:
    """A program whose kernels are timed inside whole calls, each on an undisturbed core."""

    def __init__(self, build: Build, values: Sequence[Sequence[Array]]) -> None:
        self.build = build
        places = [(use.segment, use.step) for use in build.uses]
        self._pieces = Pieces(build.program, build.segments, places, quiet())
        took_ns = min(_call(build.program, v) for v in values)
        self.calls = int(np.clip(_TURN_S * 1e9 / took_ns, 1, _MOST_CALLS))
        self._is_short = took_ns < _TURN_S * 1e9
        self.first_ns, _ = self._pieces.run(values[0])
        self._pieces.divide(self.first_ns)

    def turn(self, values: Sequence[Sequence[Array]], *, waits: bool = True) -> tuple[Array, Array]:
        """Returns f64[uses] twice: nanoseconds of each kernel use in a call, the median of some
        calls; and the same of the calls that nothing else disturbed, NaN if something disturbed
        all.

        The first call of a short program, which loads caches that the other one has used, does not
        count. A long one finds caches in the same state in every call.
        """
        if self._is_short:
            _call(self.build.program, values[0])
        rows, clean = [], []
        for number in range(self.calls):
            taken, undisturbed = self._pieces.run(values[number % len(values)], waits=waits)
            rows.append(taken)
            clean.append(np.where(undisturbed, taken, np.nan))
        return quantiles(rows), quantiles(clean)


def whole_turn(timed: Timed, values: Sequence[Sequence[Array]]) -> Turn:
    """Returns the function that runs a program for the times of its kernels: 0 for those that do
    not run.
    """
    absent = np.isnan(timed.first_ns)

    def turn(waits: bool) -> tuple[Array, Array]:
        taken, undisturbed = timed.turn(values, waits=waits)
        return np.where(absent, 0.0, taken), np.where(absent, 0.0, undisturbed)

    return turn


def _call(program: Program, values: Sequence[Array]) -> int:
    began = time.perf_counter_ns()
    program(values)
    return time.perf_counter_ns() - began


def _code(source: KernelSource) -> str:
    """Returns the hash of a kernel's code without its name, which differs with its choices."""
    text = source.emitted.llvm.replace(source.symbol, "")
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _failed(subject: str, choices: str, error: ClewError) -> Outcome:
    return Outcome(subject, choices, "failed", f"{error.code} {error.message}")


def repeated(first: Outcome, second: Outcome, demand: Demand) -> Outcome:
    """Returns the outcome of a candidate that won, with the times of the turns that followed."""
    if second.ratio is None:
        return first
    wins = second.ratio < 1.0 - demand.margin / 2
    return replace(
        second,
        state="won" if wins else "undecided",
        reason="" if wins else "it won, and was not faster when measured again",
        pairs=first.pairs + second.pairs,
    )


def _is_open(comparison: Comparison, until_decided: bool) -> bool:
    """Whether more turns are wanted: up to the answer, or up to the largest number."""
    if until_decided:
        return comparison.verdict is None
    return comparison.turns < comparison.demand.most


def _outcome(subject: str, choices: str, found: Comparison, uses: int) -> Outcome:
    """Returns the outcome of a comparison of single uses of a kernel, of which a call has some."""
    if not found.turns:
        return Outcome(subject, choices, "undecided", "something disturbed every turn")
    return Outcome(
        subject,
        choices,
        found.verdict or "undecided",
        ns=uses * quantile(found.new_ns, 0.5),
        q1_ns=uses * quantile(found.new_ns, 0.25),
        q3_ns=uses * quantile(found.new_ns, 0.75),
        against_ns=uses * quantile(found.old_ns, 0.5),
        pairs=found.turns,
        ratio=found.ratio,
    )


def facts_of(build: Build, threads: int) -> list[dict[str, float]]:
    """Returns the numbers of each kernel use in a build, as in the table of `clew dataset`."""
    rows = describe_uses(build.uses, [segment.plan for segment in build.segments], threads)
    return [{name: float(row[name]) for name in NUMBERS} for row in rows]
