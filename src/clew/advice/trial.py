"""Tries a candidate: builds the changed model, compares its outputs, and measures it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from clew.advice.candidate import COMPARED, Array, Arrays, Candidate, Change, changed
from clew.advice.race import Outcome, Race, Runner
from clew.advice.subject import Subject
from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.bisection.numbers import error_of, whole_tolerance
from clew.build.result import Build
from clew.runtime.threads import thread_count
from clew.support.collection import rare_collections
from clew.support.errors import ClewError
from clew.support.shown import Shown

_MOST_MOVED: Final = 0.1  # of an output's largest value, by an approximation
_FREE: Final = 0.02  # of a call, that wider layers may take

State = Literal["advice", "no gain", "differs", "failed", "not tried"]


@dataclass(frozen=True)
class Memory:
    """The bytes of a build's weights, and of the intermediate values of its kernels."""

    weights_bytes: int
    arena_bytes: int


@dataclass(frozen=True)
class Effect:
    """The effect of a candidate.

    `state` is `advice` if the change has won and its outputs are as its licence says; otherwise,
    `reason` says why not. `gain` is the share of a call's time that it saves, between `low` and
    `high` with a probability of 95 %. `error` is the largest difference of an output relative to
    the largest value of that output, over the samples; None if outputs do not correspond.
    """

    state: State
    reason: str = ""
    old_ns: float | None = None
    new_ns: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    error: float | None = None
    memory: Memory | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return asdict(self)


class Bench(Shown):
    """Tries candidates for one subject."""

    def __init__(self, subject: Subject, runner: Runner | None = None) -> None:
        self._subject = subject
        self._runner = runner or Race()
        self._base = subject.compiled.build_for(subject.samples[0])
        self._reference: list[dict[str, Any]] = []

    def _about(self) -> str:
        return f"of {self._subject.name}"

    @property
    def memory(self) -> Memory:
        """The memory of the unchanged model."""
        return memory_of(self._base)

    def effect(self, candidates: Sequence[Candidate], seconds: float) -> Effect:
        """Returns the effect of candidates, all applied together, measured for about `seconds`."""
        began = time.perf_counter()
        try:
            found = self._effect(candidates, seconds)
        except ClewError as error:
            found = Effect("failed", f"{error.code} {error.message}")
        took = time.perf_counter() - began
        return Effect(**{**found.__dict__, "seconds": took})

    def _effect(self, candidates: Sequence[Candidate], seconds: float) -> Effect:
        subject = self._subject
        changes = [c.change for c in candidates]
        module, options = changed(subject.module, subject.options, changes)
        made = compile(module, **options.values())
        calls = math.prod(c.calls for c in changes)
        given = self._given(changes)
        values = [made.checked([one[name] for name in made.input_names])
                  for one in self._inputs(changes, given)]  # fmt: skip
        build = made.build_for(values[0])
        error, problem = self._difference(made, candidates, given, values)
        if problem:
            return Effect("differs", problem, error=error)
        with rare_collections():
            threads = subject.threads, thread_count(options.threads)
            outcome = self._runner.race(
                (self._base, given), (build, values), calls, seconds, threads,
                to_win=not any(c.capacity for c in candidates),
            )  # fmt: skip
        wider = any(c.capacity for c in candidates)
        return _judged(outcome, error, memory_of(build), wider=wider)

    def _given(self, changes: Sequence[Change]) -> list[list[Array]]:
        """Returns the inputs of the unchanged model, in order: the samples, with what the changes
        fix.
        """
        subject = self._subject
        if all(change.given is None for change in changes):
            return subject.samples
        found = []
        for number in range(len(subject.samples)):
            inputs: Arrays = subject.inputs_of(number)
            for change in changes:
                inputs = inputs if change.given is None else change.given(inputs)
            found.append(subject.compiled.checked([*inputs.values()]))
        return found

    def _inputs(
        self, changes: Sequence[Change], given: Sequence[Sequence[Array]]
    ) -> Iterator[Arrays]:
        """Yields the inputs of the changed model by name."""
        for one in given:
            inputs: Arrays = dict(zip(self._subject.compiled.input_names, one, strict=True))
            for change in changes:
                inputs = inputs if change.inputs is None else change.inputs(inputs)
            yield inputs

    def _difference(
        self,
        made: CompiledModel,
        candidates: Sequence[Candidate],
        given: Sequence[Sequence[Array]],
        values: Sequence[Sequence[Array]],
    ) -> tuple[float | None, str]:
        """Returns the error of the changed model's outputs, and why they are rejected ("" if they
        are not). A model that must be trained again has no error.
        """
        if any(c.licence == "retraining" for c in candidates):
            return None, ""
        worst, name_of_worst = 0.0, ""
        for number, inputs in enumerate(values):
            expected = self._expected(given, number)
            outputs: Mapping[str, Any] = _run(made, inputs)
            for candidate in candidates:
                if candidate.change.outputs is not None:
                    outputs = candidate.change.outputs(outputs)
            if not outputs:
                return None, "no output corresponds to one of the unchanged model"
            for name, value in outputs.items():
                error = error_of(expected[name], value)
                if not error <= worst:
                    worst, name_of_worst = error, name
        if not math.isfinite(worst):
            return worst, f"output {name_of_worst} has another shape, NaN or infinities"
        due = whole_tolerance(self._subject.module)
        if all(c.licence in COMPARED for c in candidates) and worst > due:
            return worst, f"output {name_of_worst} differs by {worst:.2g}, allowed {due:.2g}"
        if worst > _MOST_MOVED:
            return worst, f"output {name_of_worst} moves by {worst:.2g} of its largest value"
        return worst, ""

    def _expected(self, given: Sequence[Sequence[Array]], number: int) -> Mapping[str, Any]:
        """Returns the outputs of the unchanged model, which are kept for the samples."""
        compiled = self._subject.compiled
        if given is not self._subject.samples:
            return _run(compiled, given[number])
        while len(self._reference) <= number:
            self._reference.append(_run(compiled, given[len(self._reference)]))
        return self._reference[number]


def _run(model: CompiledModel, inputs: Sequence[Array]) -> dict[str, Any]:
    outputs = model.run_in_order(inputs)
    return dict(zip(model.output_names, outputs, strict=True))


def _judged(
    outcome: Outcome, error: float | None, memory: Memory, *, wider: bool = False
) -> Effect:
    """Returns the effect that a race shows. A change is advice only if the interval of its gain is
    above 0, or, for a wider model, above a loss of 2 %.
    """
    wins = outcome.verdict == "won" and outcome.high is not None and outcome.high < 1.0
    if wider:
        wins = outcome.high is not None and outcome.high < 1.0 + _FREE
    reason = ""
    if wider and not wins:
        reason = "it takes more time"
    elif not wins:
        reason = "it is not faster" if outcome.verdict == "lost" else "no significant gain"
    return Effect(
        "advice" if wins else "no gain",
        reason,
        outcome.old_ns,
        outcome.new_ns,
        outcome.gain,
        None if outcome.high is None else 1.0 - outcome.high,
        None if outcome.low is None else 1.0 - outcome.low,
        outcome.rounds,
        error,
        memory,
    )


def memory_of(build: Build) -> Memory:
    """Returns the memory of a build."""
    arena = sum(segment.plan.arena_bytes for segment in build.segments)
    return Memory(build.constant_bytes, arena)
