"""Tries a candidate: builds the changed model, compares its outputs, and measures it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from clew.advice.candidate import COMPARED, Array, Candidate, changed
from clew.advice.race import Outcome, Race, Runner
from clew.advice.subject import Subject
from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.bisection.numbers import error_of, whole_tolerance
from clew.build.result import Build
from clew.runtime.threads import thread_count
from clew.support.collection import rare_collections
from clew.support.errors import ClewError

State = Literal["advice", "no gain", "differs", "failed", "not tried"]


@dataclass(frozen=True)
class Memory:
    """The bytes of a build's weights, and of the intermediate values of its kernels."""

    weights_bytes: int
    arena_bytes: int


@dataclass(frozen=True)
class Effect:
    """The effect of a candidate.

    `state` is `advice` if the change has won and its outputs are as its licence says; `reason`
    tells otherwise. `gain` is the share of the time of a call that it saves, between `low` and
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


class Bench:
    """Tries candidates for one subject."""

    def __init__(self, subject: Subject, runner: Runner | None = None) -> None:
        self._subject = subject
        self._runner = runner or Race()
        self._base = subject.compiled.build_for(subject.samples[0])
        self._reference: list[dict[str, Array]] = []

    @property
    def memory(self) -> Memory:
        """The memory of the unchanged model."""
        return memory_of(self._base)

    def effect(self, candidates: Sequence[Candidate], seconds: float) -> Effect:
        """Returns the effect of candidates, together if there are several, measured for about some
        seconds.
        """
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
        values = [made.checked(list(self._inputs(made, candidates, n).values()))
                  for n in range(len(subject.samples))]  # fmt: skip
        build = made.build_for(values[0])
        error, problem = self._difference(made, candidates, values)
        if problem:
            return Effect("differs", problem, error=error)
        with rare_collections():
            threads = subject.threads, thread_count(options.threads)
            outcome = self._runner.race(
                (self._base, subject.samples), (build, values), calls, seconds, threads
            )
        return _judged(outcome, error, memory_of(build))

    def _inputs(
        self, made: CompiledModel, candidates: Sequence[Candidate], number: int
    ) -> Mapping[str, Array]:
        """Returns the inputs of the changed model that correspond to a sample, in order."""
        found: Mapping[str, Array] = self._subject.inputs_of(number)
        for candidate in candidates:
            if candidate.change.inputs is not None:
                found = candidate.change.inputs(found)
        return {name: found[name] for name in made.input_names}

    def _difference(
        self, made: CompiledModel, candidates: Sequence[Candidate], values: Sequence[Any]
    ) -> tuple[float | None, str]:
        """Returns the error of the changed model's outputs, and what is wrong with them, if
        anything. A model that must be trained again has no error.
        """
        if any(c.licence == "retraining" for c in candidates):
            return None, ""
        subject = self._subject
        worst, name_of_worst = 0.0, ""
        for number, inputs in enumerate(values):
            while len(self._reference) <= number:
                sample = subject.samples[len(self._reference)]
                self._reference.append(
                    dict(zip(subject.compiled.output_names,
                             subject.compiled.run_in_order(sample), strict=True))
                )  # fmt: skip
            outputs: Mapping[str, Any] = dict(
                zip(made.output_names, made.run_in_order(inputs), strict=True)
            )
            for candidate in candidates:
                if candidate.change.outputs is not None:
                    outputs = candidate.change.outputs(outputs)
            for name, value in outputs.items():
                error = error_of(self._reference[number][name], value)
                if not error <= worst:
                    worst, name_of_worst = error, name
        if not math.isfinite(worst):
            return worst, f"output {name_of_worst} has another shape, NaN or infinities"
        due = whole_tolerance(subject.module)
        if all(c.licence in COMPARED for c in candidates) and worst > due:
            return worst, f"output {name_of_worst} differs by {worst:.2g}, allowed {due:.2g}"
        return worst, ""


def _judged(outcome: Outcome, error: float | None, memory: Memory) -> Effect:
    """Returns the effect that a race shows. Only a gain whose interval is above 0 is advice."""
    wins = outcome.verdict == "won" and outcome.high is not None and outcome.high < 1.0
    reason = ""
    if not wins:
        reason = "it is not faster" if outcome.verdict == "lost" else "a gain could not be shown"
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


def stacked(arrays: Sequence[Array]) -> Array:
    """Returns arrays joined along their first axis."""
    return np.concatenate(list(arrays))
