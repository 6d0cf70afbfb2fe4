"""Measures decisions about a model's graph: how convolutions are computed, panels of weights, and
fusion.

A graph with other decisions runs in turns with the default one. A decision concerns some layers;
the kernels of these layers are compared, those of all others are the same. Decisions that concern
different kernels are measured together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from clew.api.compiled_model import CompiledModel
from clew.bisection.numbers import error_of
from clew.build.result import Build
from clew.compiling.recorded_choices import deciding
from clew.ir.expr import Function
from clew.ir.structural import structural_hash
from clew.passes.decisions import Decision, Decisions
from clew.records.trial import Outcome
from clew.runtime.cache import Cache
from clew.serving.from_module import model_of
from clew.support.errors import ClewError
from clew.tuning.sequential import Comparison, Demand, quantile
from clew.tuning.verifying import Verifier
from clew.tuning.workbench import AGAIN, Timed, Workbench, repeated

Array = np.ndarray[Any, Any]
Chosen = Mapping[tuple[str, str], str]
"""Options by kind and subject of a decision."""
_MOST_TOGETHER: Final = 24


class Asked:
    """Decides as given, and records each request."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = dict(chosen)
        self.decisions: dict[tuple[str, str], Decision] = {}

    def __repr__(self) -> str:
        return f"<{sorted(self._chosen.items())}>"

    def choose(self, decision: Decision) -> tuple[str, str]:
        """Returns the given option, or the default."""
        key = decision.kind, decision.subject
        held = self.decisions.get(key)
        layers = tuple(dict.fromkeys((*(held.layers if held else ()), *decision.layers)))
        self.decisions[key] = replace(decision, layers=layers)
        chosen = self._chosen.get(key, decision.default)
        return (chosen if chosen in decision.options else decision.default), ""


@dataclass(frozen=True)
class GraphCandidate:
    """One option of one decision."""

    kind: str
    subject: str
    option: str


def decided(compiled: CompiledModel, decisions: Decisions, cache: Cache) -> CompiledModel:
    """Returns a model compiled with other decisions about its graph."""
    options = compiled.options
    changed = replace(options, passes=tuple(deciding(options.passes, decisions)))
    return model_of(CompiledModel, compiled.module, changed, cache, is_stored=False)


class GraphBench:
    """Builds of a model with other decisions about its graph. `chosen` are those that its own graph
    was made with.
    """

    def __init__(self, bench: Workbench, chosen: Chosen = MappingProxyType({})) -> None:
        self._bench = bench
        self._chosen = dict(chosen)
        self._compiled = bench.compiled
        self._base = bench.base
        self._ends = math.inf

    def decisions(self) -> list[Decision]:
        """Returns the decisions that the passes make, with more than one option."""
        asked = Asked(self._chosen)
        self._recompiled(asked)
        return [d for d in asked.decisions.values() if len(d.options) > 1]

    def _recompiled(self, decisions: Asked) -> CompiledModel:
        return decided(self._compiled, decisions, self._bench.cache)

    def run(
        self,
        candidates: Sequence[GraphCandidate],
        decisions: Sequence[Decision],
        demand: Demand,
        seconds: float = 60.0,
    ) -> list[Outcome]:
        """Returns the outcomes of options, one per candidate. Each is verified: every kernel that
        the default graph lacks is compared with the interpreter, and so are the model's outputs
        with those of the default graph. Measurements take about some seconds in all.
        """
        self._ends = time.perf_counter() + seconds
        known = {(d.kind, d.subject): d for d in decisions}
        outcomes: list[Outcome] = []
        waiting = list(candidates)
        while waiting:
            together, waiting = self._apart(waiting, known)
            outcomes += self._measured(together, known, demand)
        return outcomes

    def _apart(
        self, waiting: Sequence[GraphCandidate], known: Mapping[tuple[str, str], Decision]
    ) -> tuple[list[GraphCandidate], list[GraphCandidate]]:
        """Returns candidates whose decisions concern different kernels, and the others."""
        taken: set[str] = set()
        chosen: list[GraphCandidate] = []
        left: list[GraphCandidate] = []
        for candidate in waiting:
            layers = set(known[candidate.kind, candidate.subject].layers)
            kernels = {
                use.name for use in self._base.uses if layers & set(self._base.kernel_layers(use))
            }
            if kernels & taken or len(chosen) == _MOST_TOGETHER:
                left.append(candidate)
            else:
                chosen.append(candidate)
                taken |= kernels
        return chosen, left

    def _measured(
        self,
        candidates: Sequence[GraphCandidate],
        known: Mapping[tuple[str, str], Decision],
        demand: Demand,
    ) -> list[Outcome]:
        try:
            tried = {(c.kind, c.subject): c.option for c in candidates}
            made = self._recompiled(Asked({**self._chosen, **tried}))
            build = made.build_for(self._bench.values[0])
        except ClewError as error:
            if len(candidates) == 1:
                return [_outcome(candidates[0], "failed", f"{error.code} {error.message}")]
            return [o for c in candidates for o in self._measured([c], known, demand)]
        wrong = self._wrong(build)
        if wrong and len(candidates) > 1:
            return [o for c in candidates for o in self._measured([c], known, demand)]
        if wrong:
            return [_outcome(candidates[0], "wrong", wrong)]
        parts = {c: known[c.kind, c.subject].layers for c in candidates}
        old, new = self._bench.timed({}), Timed(build, self._bench.values)
        places = {
            c: (_places(self._base, layers), _places(build, layers)) for c, layers in parts.items()
        }
        found = {c: Comparison(demand) for c in candidates}
        self._take_turns(old, new, found, places)
        outcomes = {c: _measured(c, comparison) for c, comparison in found.items()}
        winners = [c for c, outcome in outcomes.items() if outcome.state == "won"]
        if winners:  # the turns that made them win are too good on average
            fixed = replace(demand, most=AGAIN)
            again = {c: Comparison(fixed) for c in winners}
            self._take_turns(old, new, again, places, until_decided=False)
            outcomes |= {c: repeated(outcomes[c], _measured(c, again[c]), demand) for c in winners}
        return list(outcomes.values())

    def _take_turns(
        self,
        old: Timed,
        new: Timed,
        found: Mapping[GraphCandidate, Comparison],
        places: Mapping[GraphCandidate, tuple[list[int], list[int]]],
        *,
        until_decided: bool = True,
    ) -> None:
        """Adds turns to comparisons of the kernels at some places of both programs."""
        for turn in range(max(comparison.demand.most for comparison in found.values())):
            if turn and time.perf_counter() > self._ends:
                break
            times = self._bench.turn({0: old, 1: new})
            for c, comparison in found.items():
                if comparison.verdict is None or not until_decided:
                    before, after = places[c]
                    comparison.add(*_sums(times[1], after, times[0], before))
            if until_decided and all(c.verdict is not None for c in found.values()):
                break

    def _wrong(self, build: Build) -> str:
        """Returns the fault of a build; "" if there is none."""
        values = self._bench.values[0]
        had = set(self._bench.functions)
        verifier = Verifier(build, values, self._bench.options, self._bench.cache)
        for use in build.uses:
            function = use.call.op
            assert isinstance(function, Function)
            subject = structural_hash(function)
            if subject not in had:
                had.add(subject)
                reason = verifier.wrong(subject, function, "")
                if reason:
                    return f"{use.name}: {reason}"
        pairs = zip(self._bench.outputs({}), build.program(values), strict=True)
        error = max((error_of(a, b) for a, b in pairs), default=0.0)
        due = self._bench.tolerance
        return f"outputs differ by {error:.2g}, allowed {due:.2g}" if error > due else ""


def _sums(
    new: tuple[Array, Array], after: list[int], old: tuple[Array, Array], before: list[int]
) -> tuple[float, float]:
    """Returns the times of the kernels at some places in a turn of two programs: undisturbed ones,
    or if there is not one of each kernel, those of all calls for both.
    """
    which = int(not np.isnan(np.sum(new[1][after]) + np.sum(old[1][before])))
    return float(np.nansum(new[which][after])), float(np.nansum(old[which][before]))


def _places(build: Build, layers: Sequence[str]) -> list[int]:
    """Returns the places of the kernel uses that compute any of some layers."""
    wanted = set(layers)
    return [n for n, use in enumerate(build.uses) if wanted & set(build.kernel_layers(use))]


def _outcome(candidate: GraphCandidate, state: str, reason: str) -> Outcome:
    return Outcome(candidate.subject, candidate.option, state, reason)


def _measured(candidate: GraphCandidate, found: Comparison) -> Outcome:
    return Outcome(
        candidate.subject,
        candidate.option,
        found.verdict or "undecided",
        ns=quantile(found.new_ns, 0.5),
        q1_ns=quantile(found.new_ns, 0.25),
        q3_ns=quantile(found.new_ns, 0.75),
        against_ns=quantile(found.old_ns, 0.5),
        pairs=found.turns,
        ratio=found.ratio,
    )
