"""A session of tuning: proposes candidates, has them measured, and keeps the records."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from clew.passes.decisions import Decision
from clew.records import Store, Trial
from clew.records.store import SessionRecord, Use
from clew.records.trial import KERNEL, Outcome, new_uid
from clew.runner import Failed, Runner
from clew.support.errors import InputError
from clew.tuning.bench import (
    Batch,
    Described,
    GraphBatch,
    GraphTrials,
    Program,
    Setup,
    Trials,
    WholeCalls,
    describe,
)
from clew.tuning.graphs import GraphCandidate
from clew.tuning.search import Forecast, Search
from clew.tuning.sequential import Demand
from clew.tuning.tunable import Tunable
from clew.tuning.whole import Whole

DEMAND: Final = Demand()
_SHARE_OF_GRAPH: Final = 0.3  # of the time
_GRAPHS_TOGETHER: Final = 24
_KINDS: Final = ("convolution", "melting", "panel")  # of decisions about the graph, in this order
_FIRST_BATCH: Final = 32  # candidates
_MOST_IN_BATCH: Final = 128
_BATCH_S: Final = 15.0
_CONFIRMING: Final = Demand(margin=0.0, level=0.05, most=40)
_CONFIRMATIONS: Final = 3
_SHARE_TO_CONFIRM: Final = 0.15
# For kernels, and again for whole calls.
_LEAST_TO_CONFIRM_S: Final = 5.0
_MOST_TO_CONFIRM_S: Final = 20.0
_COMPARED: Final = 24  # rounds of whole calls at the end
_ANOTHER_S: Final = 600.0

Say = Callable[[str], None]


@dataclass
class Tally:
    """A summary of a session: trials by state, seconds, and how whole calls with the best records
    compare with those without records, if it came to that. `left` is the number of candidates for
    kernels that were not tried yet, and `expected_gain` the share of the time that another ten
    minutes may save.
    """

    states: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    whole: Whole | None = None
    expected_gain: float | None = None
    left: int | None = None
    stopped: bool = False

    @property
    def trials(self) -> int:
        """The number of trials."""
        return sum(self.states.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        whole = None if self.whole is None else self.whole.to_json()
        return {**asdict(self), "whole": whole}


class Session:
    """Tunes the kernels of one model.

    Every trial is in the store before it begins and after it ends, so that a session may end at any
    time, however it ends, and another continues.
    """

    def __init__(
        self, setup: Setup, store: Store, runner: Runner, version: str, say: Say, seed: int = 0
    ) -> None:
        self._began = time.monotonic()
        self._setup = setup.portable() if runner.is_remote else setup
        self._store = store
        self._runner = runner
        self._version = version
        self._say = say
        self._facts = runner.facts()
        self._machine = str(self._facts["machine"])
        for trial in store.settle_crashed():
            say(f"trial {trial.uid} ended its process: {trial.choices} is not tried again")
        say("compiling and measuring the unchanged model")
        found = self._described()
        self.threads: int = found.threads
        self.decisions: list[Decision] = found.decisions
        self._call_ns = self._first_ns = found.call_ns
        self._seed = seed
        self._take_up(found)
        earlier = store.sessions(setup.name, self._machine, self.threads)
        self._before = sum(one.trials for one in earlier)
        self._record = SessionRecord(
            new_uid(), setup.name, self._machine, self.threads, time.time(), 0.0, 0
        )
        self._begun = 0
        self._trial_s = 0.0
        self._kernel_trials = 0
        self._searching_s = 0.0
        self.forecast = Forecast()
        self.tally = Tally()

    def _described(self) -> Described:
        """Returns the kernels and decisions to tune, from a machine that measures."""
        ((_, found),) = self._runner.run(describe, iter([self._setup]))
        if isinstance(found, Failed):
            raise InputError("I387", f"the model cannot be measured: {found.reason}")
        return found

    def _take_up(self, found: Described) -> None:
        """Begins the search of the kernels of a graph, from their records."""
        self.kernels: list[Tunable] = found.kernels
        self._call_ns = found.call_ns
        known = self._store.trials(self._machine, self.threads, KERNEL)
        self.search = Search(self.kernels, known, self._version, self._seed)
        self._store.note_uses(_uses(self.kernels, self._setup.name))

    # --- progress ---

    @property
    def seconds(self) -> float:
        """The length of the session so far."""
        return time.monotonic() - self._began

    @property
    def gained_ns(self) -> float:
        """The time of a call that the best choices save, from the ratios measured so far."""
        return sum(s.kernel.ns - s.ns for s in self.search.states.values())

    def _expected_gain(self) -> float | None:
        """Returns the share of the time that another ten minutes may be expected to save."""
        left = self.search.left
        if not left or not self._kernel_trials:
            return 0.0 if not left else None
        rate = self._kernel_trials / max(1e-9, self.seconds - self._searching_s)
        return self.forecast.gain(min(left, rate * _ANOTHER_S))

    def _progress(self, ends_s: float, count: int) -> None:
        now = self._call_ns - self.gained_ns
        self._kernel_trials += count
        self.forecast.add(self._before + self._kernel_trials, now)
        gain = self._expected_gain()
        more = "too early to tell" if gain is None else f"about {100 * gain:.1f} % more"
        self._say(
            f"{self.seconds:.0f} of {ends_s:.0f} s, {self.tally.trials} trials: "
            f"{self._first_ns / 1e6:.3f} → {now / 1e6:.3f} ms a call "
            f"({100 * (1 - now / self._first_ns):.1f} % saved); another 10 minutes: {more}"
        )

    # --- the search ---

    def tune(self, seconds: float, most: int | None = None) -> Tally:
        """Runs trials for some seconds, or until there are `most`; then compares the best choices
        with the default ones in the whole program. Ctrl-C ends the session: all trials that have
        ended are kept.
        """
        keep_s = min(2 * _MOST_TO_CONFIRM_S, _SHARE_TO_CONFIRM * seconds)
        running: dict[str, Trial] = {}
        try:
            self._search_graph(_SHARE_OF_GRAPH * seconds, most, running)
            self._search(seconds - keep_s, seconds, most, running)
            self._confirm(seconds)
        except KeyboardInterrupt:
            self.tally.stopped = True
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                self._store.drop(t.uid for t in running.values())
                self._note_session()
        return self.tally

    def _search_graph(self, ends_s: float, most: int | None, running: dict[str, Trial]) -> None:
        """Tries the options of the graph's decisions that were not tried yet, on the default
        choices of all kernels: one kind of decision after another, each in the graph that the best
        options of the earlier ones make. Then continues with the graph that all of them make.
        """
        self._store.note_uses(
            [
                Use(d.kind, d.subject, self._setup.name, d.kind, d.layers, d.default)
                for d in self.decisions
            ]
        )
        tried = {
            (t.kind, t.subject, t.choices)
            for t in self._store.trials(self._machine, self.threads)
            if t.kind != KERNEL and t.version == self._version
        }
        setup = self._setup
        for kind in _KINDS:
            left = [
                GraphCandidate(kind, d.subject, option)
                for d in self.decisions
                for option in d.options
                if d.kind == kind and option != d.default
                if (kind, d.subject, option) not in tried
            ]
            self._try_options(setup, left, ends_s, most, running)
            best = self._best_options(kind)
            setup = replace(
                setup, decided=(*setup.decided, *((t.kind, t.subject, t.choices) for t in best))
            )
        ratio = self._ratio(setup) if setup.decided else None
        if ratio is not None:
            self._setup = setup
            self._take_up(self._described())
            self._call_ns = ratio * self._first_ns  # of turns, unlike the time just measured

    def _best_options(self, kind: str) -> list[Trial]:
        """Returns the records that make decisions of a kind."""
        best = self._store.best(self._machine, self.threads)
        found = [best[kind, d.subject][0] for d in self.decisions if (kind, d.subject) in best]
        options = {d.subject: d.options for d in self.decisions if d.kind == kind}
        return [t for t in found if t.choices in options.get(t.subject, ())]

    def _ratio(self, setup: Setup) -> float | None:
        """Returns the ratio of the time of whole calls with the decisions of a setup to that with
        the default ones; None if it is not less, or not known. If it is not less, the records are
        no longer applied: kernels next to those of a decision have become slower. Each decision has
        won by itself, so the more likely answer counts, also where the interval includes 1.
        """
        whole = self._compared(setup, {}, _MOST_TO_CONFIRM_S)
        reason = "the process ended while whole calls were measured"
        if whole is not None:
            if whole.ratio is None and not whole.problem:
                return None
            if whole.ratio is not None and whole.ratio < 1.0 and not whole.problem:
                return whole.ratio
            reason = whole.problem or "whole calls are not faster with all decisions"
        for kind in _KINDS:
            records = self._best_options(kind)
            self._store.update(*(replace(t, state="lost", reason=reason) for t in records))
        return None

    def _try_options(
        self,
        setup: Setup,
        left: list[GraphCandidate],
        ends_s: float,
        most: int | None,
        running: dict[str, Trial],
    ) -> None:
        """Runs trials of options in the graph of a setup."""
        started: dict[str, dict[tuple[str, str], Trial]] = {}

        def batches() -> Iterator[GraphBatch]:
            while left and self.seconds < ends_s and (most is None or self._begun < most):
                count = _GRAPHS_TOGETHER if most is None else most - self._begun
                chosen = tuple(left[: min(count, _GRAPHS_TOGETHER)])
                del left[: len(chosen)]
                trials = {
                    (c.subject, c.option): self._trial(c.kind, c.subject, c.option) for c in chosen
                }
                running.update({trial.uid: trial for trial in trials.values()})
                self._begun += len(trials)
                left_s = max(2.0, ends_s - self.seconds)
                batch = GraphBatch(new_uid(), chosen, tuple(self.decisions), DEMAND, left_s)
                started[batch.uid] = trials
                for trial in trials.values():
                    self._store.begin(trial)
                yield batch

        for batch, found in self._runner.run(GraphTrials(setup), batches()):
            trials = started.pop(batch.uid)
            if isinstance(found, Failed):
                found = [Outcome(*pair, "crashed", found.reason) for pair in trials]
            for outcome in found:
                self._ended(trials[outcome.subject, outcome.choices], outcome, 1.0)
            for trial in trials.values():
                running.pop(trial.uid)
            self._say(f"{self.seconds:.0f} s, {self.tally.trials} trials of the graph")

    def _search(
        self, ends_s: float, of_s: float, most: int | None, running: dict[str, Trial]
    ) -> None:
        started: dict[str, dict[tuple[str, str], Trial]] = {}
        waiting: list[Batch] = []  # parts of batches that ended their process

        def batches() -> Iterator[Batch]:
            while self.seconds < ends_s and (most is None or self._begun < most):
                batch = waiting.pop() if waiting else self._batch(ends_s, most)
                if batch is None:
                    return
                trials = {pair: self._trial(KERNEL, *pair) for pair in batch.candidates}
                for subject, choices in trials:
                    self.search.states[subject].tried.add(choices)
                started[batch.uid] = trials
                running.update({trial.uid: trial for trial in trials.values()})
                self._begun += len(trials)
                yield batch

        def note(batch: Batch, subject: str, choices: str, state: str) -> None:
            self._store.update(replace(started[batch.uid][subject, choices], state=state))

        work = Trials(self._setup, None if self._runner.is_remote else note)
        self._searching_s = ready = self.seconds
        self.forecast = Forecast()
        self.forecast.add(self._before, self._call_ns - self.gained_ns)
        for batch, found in self._runner.run(work, batches()):
            trials = started.pop(batch.uid)
            count = len(trials)
            self._trial_s = (self.seconds - ready) / max(1, count)
            ready = self.seconds
            if isinstance(found, Failed):
                if len(trials) > 1:  # one of the candidates is to blame
                    waiting += _halves(batch)
                    found = []
                else:
                    found = [Outcome(*pair, "crashed", found.reason) for pair in trials]
            for outcome in found:
                trial = trials.pop((outcome.subject, outcome.choices), None)
                if trial is not None:
                    against = batch.incumbents.get(outcome.subject, "")
                    self._ended(trial, outcome, self.search.ratio_of(outcome.subject, against))
                    running.pop(trial.uid)
            for trial in trials.values():  # others took their turn, or the process ended
                running.pop(trial.uid)
                self.search.states[trial.subject].tried.discard(trial.choices)
            self._begun -= len(trials)
            self._store.drop(trial.uid for trial in trials.values())
            self._note_session()
            self._progress(of_s, count - len(trials))

    def _batch(self, ends_s: float, most: int | None) -> Batch | None:
        """Returns the next batch; None if there is nothing left to try."""
        count = _FIRST_BATCH
        left_s = ends_s - self.seconds
        if self._trial_s:  # of the last batch, per candidate
            count = max(1, min(_MOST_IN_BATCH, int(min(_BATCH_S, left_s) / self._trial_s)))
        if most is not None:
            count = min(count, most - self._begun)
        candidates = self.search.propose(count)
        if not candidates:
            return None
        incumbents = self.search.incumbents
        return Batch(new_uid(), incumbents, tuple(candidates), DEMAND, max(2.0, left_s))

    def _trial(self, kind: str, subject: str, choices: str) -> Trial:
        state = self.search.states.get(subject)
        return Trial(
            subject,
            choices,
            kind=kind,
            machine=self._machine,
            threads=self.threads,
            version=self._version,
            model=self._setup.name,
            against=state.record.uid if state is not None and state.record is not None else "",
        )

    def _ended(self, trial: Trial, outcome: Outcome, against: float) -> None:
        """Keeps the outcome of a trial against choices of a ratio to the default's time."""
        total = None
        if outcome.ratio is not None and math.isfinite(outcome.ratio):
            total = outcome.ratio * against
        done = trial.ended(outcome, total)
        self._store.update(done)
        if done.kind == KERNEL:
            self.search.note(done)
        self.tally.states[done.state] = self.tally.states.get(done.state, 0) + 1

    # --- the end ---

    def _confirm(self, ends_s: float) -> None:
        """Measures the best choices of all kernels against the default ones, in turns, and corrects
        their records, unless there were too few undisturbed turns. A kernel whose best choices are
        not faster gets its next best ones, which are measured then. Whole calls are compared last.
        """
        for number in range(_CONFIRMATIONS):
            best = self._unconfirmed()
            if not best or (number and self.seconds > ends_s):
                break
            self._say("comparing the best choices with the default ones")
            pairs = tuple((subject, trial.choices) for subject, trial in best.items())
            within_s = _limited((ends_s - self.seconds) / 2)
            batch = Batch(new_uid(), {}, pairs, _CONFIRMING, within_s, confirming=True)
            ((_, found),) = self._runner.run(Trials(self._setup), iter([batch]))
            if isinstance(found, Failed):
                return
            told = [o for o in found if o.pairs >= _CONFIRMING.patience]
            self._store.update(*(_confirmed(best[o.subject], o) for o in told))
            if all(outcome.state == "won" for outcome in told):
                break
        chosen = {subject: trial.choices for subject, trial in self._unconfirmed().items()}
        if chosen or self._setup.decided:
            self._say("comparing whole calls")
            within_s = _limited(ends_s - self.seconds)
            self.tally.whole = self._compared(self._setup, chosen, within_s)
            if self.tally.whole is not None:
                self._say(str(self.tally.whole))

    def _compared(self, setup: Setup, choices: Mapping[str, str], seconds: float) -> Whole | None:
        """Returns how whole calls of a setup with choices of its kernels compare with those of the
        default program; None if the process ended.
        """
        program = Program(choices, _COMPARED, seconds)
        ((_, found),) = self._runner.run(WholeCalls(setup), iter([program]))
        return None if isinstance(found, Failed) else found

    def _unconfirmed(self) -> dict[str, Trial]:
        """Returns the best record of each kernel of the model, of this version of the code."""
        best = self._store.best(self._machine, self.threads)
        found: dict[str, Trial] = {}
        for kernel in self.kernels:
            for trial in best.get((KERNEL, kernel.subject), ()):
                if trial.version == self._version and kernel.fits(trial.choices):
                    found.setdefault(kernel.subject, trial)
        return found

    def _note_session(self) -> None:
        self.tally.seconds = self.seconds
        self.tally.expected_gain = self._expected_gain()
        self.tally.left = self.search.left
        whole = self.tally.whole or Whole()
        self._store.note_session(
            replace(
                self._record,
                seconds=self.tally.seconds,
                trials=self.tally.trials,
                before_ns=whole.old_ns,
                after_ns=whole.new_ns,
            )
        )


def _limited(seconds: float) -> float:
    """Returns the time of a comparison at the end of a session that has some seconds left."""
    return min(_MOST_TO_CONFIRM_S, max(_LEAST_TO_CONFIRM_S, seconds))


def _confirmed(record: Trial, outcome: Outcome) -> Trial:
    """Returns a record with its measurement at a session's end."""
    reasons = {
        "lost": "not faster than the default choices at the end of a session",
        "undecided": "not conclusively faster than the default choices at the end of a session",
    }
    return replace(
        record,
        state=outcome.state,
        reason=reasons.get(outcome.state, ""),
        ns=outcome.ns,
        q1_ns=outcome.q1_ns,
        q3_ns=outcome.q3_ns,
        total_ratio=outcome.ratio,
        confirmed=True,
    )


def _halves(batch: Batch) -> list[Batch]:
    """Returns two batches with half of the candidates each."""
    middle = len(batch.candidates) // 2
    parts = batch.candidates[:middle], batch.candidates[middle:]
    return [replace(batch, uid=new_uid(), candidates=part) for part in parts]


def _uses(kernels: Sequence[Tunable], model: str) -> list[Use]:
    return [
        Use(KERNEL, kernel.subject, model, name, layers, kernel.default)
        for kernel in kernels
        for name, layers in zip(kernel.uses, kernel.layers, strict=True)
    ]
