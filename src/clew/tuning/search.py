"""Proposes candidates: which kernels to try next, and with which choices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clew.records import Trial
from clew.tuning.ranking import Ranker
from clew.tuning.tunable import Tunable

_LEAST_SHARE: Final = 0.0005  # of the program's time: kernels below are not tuned
_POOL: Final = 160
_JUMPS: Final = 40
_EXPLORED: Final = 0.25  # share of proposals drawn without the ranking
_LEAST_TRIALS: Final = 60  # that a forecast is made from
_FADING: Final = 0.5
# Of what a kernel would save at the machine's roof, a first trial may be expected to bring this
# share, and a little of a kernel that seems to be at its roof.
_SHARE_OF_HEADROOM: Final = 0.25
_LEAST_HEADROOM: Final = 0.05
_FADE: Final = 0.85
_RETRAIN_AFTER: Final = 40
_TOGETHER: Final = 8  # candidates of a kernel in a batch


@dataclass
class State:
    """The results for a kernel: its best choices, their ratio to the default's time, the record
    of them (None for the default), all choices that were tried, and the ratios of those that won.
    `hints` won with another version of the code. `promise` is the gain that a trial may be expected
    to bring.
    """

    kernel: Tunable
    best: str
    ratio: float = 1.0
    record: Trial | None = None
    tried: set[str] = field(default_factory=set)
    won: dict[str, float] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)
    promise: float = field(init=False)
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.promise = _SHARE_OF_HEADROOM * max(_LEAST_HEADROOM, self.kernel.headroom)

    @property
    def ns(self) -> float:
        """The time of the best choices in a call, from the default's time."""
        return self.kernel.ns * self.ratio


class Search:
    """The state of all kernels of a model."""

    def __init__(
        self, kernels: Sequence[Tunable], trials: Iterable[Trial], version: str, seed: int = 0
    ) -> None:
        """`trials` are the records of kernels on this kind of machine, of any model; `version` is
        that of the code now. Only records of this version are believed to be tried.
        """
        self._random = np.random.default_rng(seed)
        total = sum(kernel.ns for kernel in kernels) or 1.0
        kept = [kernel for kernel in kernels if kernel.ns >= _LEAST_SHARE * total]
        self.states = {k.subject: State(k, k.default, tried={k.default}) for k in kept}
        self.ranker = Ranker(kept)
        self._trained = 0
        for trial in sorted(trials, key=lambda t: t.made):
            state = self.states.get(trial.subject)
            if state is None or not state.kernel.fits(trial.choices):
                continue
            if trial.version == version:
                state.tried.add(trial.choices)
            if trial.total_ratio is not None:
                self.ranker.add(state.kernel, trial.choices, trial.total_ratio)
            if trial.state == "won" and trial.total_ratio is not None:
                if trial.version == version:
                    self._improve(state, trial)
                else:
                    state.hints.append(trial.choices)
        self._train(0)

    @property
    def incumbents(self) -> dict[str, str]:
        """The best choices of each kernel that has better ones than the default."""
        return {s: state.best for s, state in self.states.items() if state.record is not None}

    @property
    def left(self) -> int:
        """The number of candidates that were not tried yet; 0 once the search is at its end."""
        return sum(s.kernel.size - len(s.tried) for s in self.states.values() if not s.exhausted)

    def ratio_of(self, subject: str, choices: str) -> float:
        """Returns the ratio of choices that were best at some time; 1 for the default ones."""
        return self.states[subject].won.get(choices, 1.0)

    def note(self, trial: Trial) -> None:
        """Takes the outcome of a trial into account."""
        state = self.states[trial.subject]
        state.tried.add(trial.choices)
        gained = 0.0
        if trial.total_ratio is not None:
            self.ranker.add(state.kernel, trial.choices, trial.total_ratio)
            if trial.state == "won" and trial.total_ratio < state.ratio:
                gained = 1.0 - trial.total_ratio / state.ratio
                self._improve(state, trial)
        state.promise = _FADE * state.promise + (1.0 - _FADE) * 3.0 * gained

    def _improve(self, state: State, trial: Trial) -> None:
        assert trial.total_ratio is not None
        state.won[trial.choices] = trial.total_ratio
        if trial.total_ratio < state.ratio:
            state.best, state.ratio, state.record = trial.choices, trial.total_ratio, trial
            state.exhausted = False

    def _train(self, after: int) -> None:
        if self.ranker.rows >= self._trained + after:
            self.ranker.train()
            self._trained = self.ranker.rows

    def propose(self, count: int) -> list[tuple[str, str]]:
        """Returns about `count` candidates, kernels and choices: several per kernel, which are then
        timed together. None at all once everything is tried.
        """
        self._train(_RETRAIN_AFTER)
        found: list[tuple[str, str]] = []
        open_ = [s for s in self.states.values() if not s.exhausted]
        weights = np.array([s.ns * s.promise for s in open_])
        # Exponential races: the order of weighted draws without replacement.
        races = self._random.exponential(size=len(open_)) / np.maximum(weights, 1e-9)
        for place in np.argsort(races):
            if len(found) >= count:
                break
            state = open_[int(place)]
            found += [(state.kernel.subject, choices) for choices in self._choose(state, _TOGETHER)]
        return found[:count]

    def _choose(self, state: State, count: int) -> list[str]:
        """Returns choices of a kernel to try next."""
        hints = [hint for hint in dict.fromkeys(state.hints) if hint not in state.tried]
        state.hints.clear()
        if hints:
            return hints
        pool = self._pool(state)
        if not pool:
            state.exhausted = True
            return []
        order = list(self._random.permutation(len(pool)))
        if self.ranker.is_trained:
            predicted = self.ranker.ratios(state.kernel, pool)
            ranked = iter(np.argsort(predicted))
            drawn = iter(order)
            order = []
            while len(order) < min(count, len(pool)):
                source = drawn if self._random.random() < _EXPLORED else ranked
                place = int(next(source))
                if place not in order:
                    order.append(place)
        return [pool[int(place)] for place in order[:count]]

    def _pool(self, state: State) -> list[str]:
        """Returns candidates that were not tried: neighbors of the best choices, some farther away,
        and those of other kernels that gained by them.
        """
        kernel = state.kernel
        pool = dict.fromkeys(kernel.neighbors(state.best))
        if kernel.size <= _POOL:
            pool |= dict.fromkeys(kernel.all())
        now = kernel.values(state.best)
        for _ in range(_JUMPS):
            values = list(now)
            for place in self._random.permutation(len(values))[:2]:
                values[place] = int(self._random.choice(kernel.knobs[place].options))
            pool[kernel.with_values(values)] = None
        for other in self.states.values():
            if other.record is not None and other is not state:
                pool[_carried(other, state)] = None
        return [choices for choices in pool if choices not in state.tried][:_POOL]


def _carried(giver: State, taker: State) -> str:
    """Returns the best choices of a kernel with those values of another's that it gained by, as far
    as it has these options.
    """
    default = {(k.rule, k.name): k.default for k in giver.kernel.knobs}
    best = {
        (k.rule, k.name): value
        for k, value in zip(giver.kernel.knobs, giver.kernel.values(giver.best), strict=True)
    }
    values = taker.kernel.values(taker.best)
    for place, knob in enumerate(taker.kernel.knobs):
        key = knob.rule, knob.name
        if key in best and best[key] != default[key] and best[key] in knob.options:
            values[place] = best[key]
    return taker.kernel.with_values(values)


@dataclass
class Forecast:
    """Times of the whole program in one graph, by the number of trials of its kernels.

    A search finds less and less. The last doubling of the trials gained some share of the time; the
    next one is assumed to gain half of that. Trials of decisions about the graph do not count:
    their gain comes once.
    """

    trials: list[int] = field(default_factory=list)
    ns: list[float] = field(default_factory=list)

    def add(self, trials: int, ns: float) -> None:
        """Adds a point."""
        self.trials.append(trials)
        self.ns.append(ns)

    def gain(self, more: float) -> float | None:
        """Returns the share of the time that a number of further trials may be expected to save;
        None while there were too few trials for an estimate.
        """
        if more <= 0:
            return 0.0
        if not self.trials or self.trials[-1] - self.trials[0] < _LEAST_TRIALS:
            return None
        now = self.trials[-1]
        place = max((n for n, c in enumerate(self.trials) if 2 * c <= now), default=0)
        before = max(1, self.trials[place])
        rate = math.log(self.ns[place] / self.ns[-1]) / math.log(now / before)
        return 1.0 - math.exp(-_FADING * max(0.0, rate) * math.log((now + more) / now))
