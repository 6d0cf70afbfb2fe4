"""`clew.advise`: finds changes of a model that make it faster, and measures each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clew import frontends
from clew.advice.applied import Applied
from clew.advice.candidate import Candidate, changed
from clew.advice.ceiling import ceiling_of
from clew.advice.estimate import Estimate
from clew.advice.race import Runner
from clew.advice.report import Advice, Advised, applied
from clew.advice.rule import AdviceRule, all_rules
from clew.advice.subject import Subject
from clew.advice.trial import Bench, Effect
from clew.backends.compile_options import CompileOptions
from clew.compiling.loading import loaded
from clew.ir.module import Module
from clew.support.errors import ClewError, InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.near import did_you_mean

_MOST_TRIAL_S: Final = 12.0
_LEAST_TRIAL_S: Final = 1.0
_TRIAL_SHARE: Final = 0.15  # of the time left
_LEAST_PREDICTED: Final = 0.002  # of a call's time, below which a candidate is not tried

Say = Callable[[str], None]


@coded_exhaustion
def advise(
    model: Module | frontends.ModelSource,
    samples: Any = None,
    *,
    minutes: float = 1.0,
    rules: Sequence[str] | None = None,
    on_progress: Say | None = None,
    **options: Any,
) -> Advice:
    """Returns changes to a model that make it faster on this machine, each built and measured
    (docs/advise.md).

    `samples` are inputs of calls, in the forms of `clew.quantize`'s calibration data. Without
    samples, inputs are random, and advice that depends on their values is left out. Candidates are
    tried in the order of their predicted gain, for about `minutes`; Ctrl-C ends the search and
    keeps the results so far. `rules` are the names of rules (default: all,
    `clew.advice.all_rules()`). `options` are those of `clew.compile` for the unchanged model.

    Errors: I511 (`minutes`), I512 (free sizes without samples), I513 (`rules`), and those of
    loading and compiling.
    """
    if not 0 < minutes <= 60 * 24:
        raise InputError("I511", f"minutes is {minutes}", hint="give a positive number")
    began = time.monotonic()
    chosen = chosen_rules(rules)
    say = on_progress or (lambda text: None)
    how = CompileOptions.of(options)
    say("reading and compiling the model")
    module, how = loaded(model, how)
    name = Path(model).name if isinstance(model, (str, Path)) else "model"
    subject = Subject(module, how.loaded, samples, name=name)
    return Session(subject, chosen, say, began=began).advice(60.0 * minutes)


def found_again(
    model: Module | frontends.ModelSource,
    keys: Sequence[str],
    samples: Any = None,
    **options: Any,
) -> Applied:
    """Returns a model with candidates of an earlier search, by their keys, without measuring them.

    Errors: I514 for a candidate that is no longer found, and those of `advise`.
    """
    module, how = loaded(model, CompileOptions.of(options))
    session = Session(Subject(module, how.loaded, samples), all_rules(), lambda text: None)
    known = {candidate.key: candidate for candidate in session.candidates()}
    for key in keys:
        if key not in known:
            raise InputError(
                "I514",
                "the rules no longer find this advice in the model",
                hint="ask for advice again, without --apply",
            )
    return applied(session.subject, [known[key] for key in keys])


def chosen_rules(names: Sequence[str] | None) -> list[AdviceRule]:
    """Returns rules by name; None: all. Errors: I513."""
    known = {rule.name: rule for rule in all_rules()}
    for name in names or ():
        if name not in known:
            raise InputError(
                "I513", f"there is no advice rule {name!r}", hint=did_you_mean(name, known, "rules")
            )
    return list(known.values()) if names is None else [known[name] for name in names]


@dataclass(frozen=True)
class Ranked:
    """A candidate and the share of a call's time that it is predicted to save."""

    candidate: Candidate
    predicted: float


class Session:
    """A search for advice on one model."""

    def __init__(
        self,
        subject: Subject,
        rules: Sequence[AdviceRule],
        say: Say,
        *,
        runner: Runner | None = None,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        self.subject = subject
        self._rules = rules
        self._say = say
        self._clock = clock
        self._began = clock() if began is None else began
        self._bench = Bench(subject, runner)
        self._estimate = Estimate(subject.target)
        self._of_users: set[str] = set()
        self.notes: list[str] = []

    @property
    def _passed(self) -> float:
        return self._clock() - self._began

    def advice(self, seconds: float) -> Advice:
        """Returns the advice after trying candidates for about `seconds`."""
        stopped = False
        tried: list[Advised] = []
        ranked: list[Ranked] = []
        self._say("profiling the model")
        profile = self.subject.profile
        try:
            ranked = self.ranked()
            for number, one in enumerate(ranked):
                if tried and self._passed > seconds:
                    break
                self._say(
                    f"{self._passed:.0f} of {seconds:.0f} s, candidate {number + 1} of "
                    f"{len(ranked)}: {one.candidate.what}"
                )
                tried.append(self._tried(one, self._effect(one.candidate, self._time(seconds))))
        except KeyboardInterrupt:
            stopped = True
        left = ranked[len(tried) :]
        tried += [self._tried(one, Effect("not tried", "there was no time left")) for one in left]
        return Advice(
            self.subject,
            tuple(sorted((a for a in tried if a.is_advice), key=lambda a: -(a.effect.gain or 0.0))),
            tuple(a for a in tried if not a.is_advice),
            ceiling_of(profile, self._bench.memory.weights_bytes),
            self._bench,
            seconds=self._passed,
            stopped=stopped,
            notes=tuple(self.notes),
        )

    def _time(self, seconds: float) -> float:
        """Returns the seconds for measuring the next candidate."""
        left = seconds - self._passed
        return min(_MOST_TRIAL_S, max(_LEAST_TRIAL_S, _TRIAL_SHARE * left))

    def _effect(self, candidate: Candidate, seconds: float) -> Effect:
        """Returns the effect of a candidate. One of a user's rule may fail in any way."""
        try:
            return self._bench.effect([candidate], seconds)
        except Exception as error:
            if candidate.key not in self._of_users:
                raise
            return Effect("failed", f"{type(error).__name__}: {error}")

    def _tried(self, one: Ranked, effect: Effect) -> Advised:
        return Advised(
            one.candidate, one.predicted, effect, self.subject.where(one.candidate.layers)
        )

    # --- candidates ---

    def candidates(self) -> list[Candidate]:
        """Returns the candidates of all rules, each once. An error of a user's rule becomes a
        note.
        """
        found: dict[str, Candidate] = {}
        for rule in self._rules:
            of_user = not type(rule).__module__.startswith("clew.")
            try:
                for one in rule.find(self.subject):
                    if one is found.setdefault(one.key, one) and of_user:
                        self._of_users.add(one.key)
            except Exception as error:
                if not of_user:
                    raise
                self.notes.append(f"the rule {rule.name} failed: {type(error).__name__}: {error}")
        return list(found.values())

    def ranked(self) -> list[Ranked]:
        """Returns the candidates worth trying, in descending order of their predicted gain."""
        self._say("looking for candidates")
        before = self._estimate.of(self.subject.module)
        rows = [Ranked(c, self._predicted(c, before)) for c in self.candidates()]
        rows = [row for row in rows if row.predicted >= _LEAST_PREDICTED]
        return sorted(rows, key=lambda row: -row.predicted)

    def _predicted(self, candidate: Candidate, before: float) -> float:
        """Returns the share of a call's time that a change is predicted to save: the rule's share
        of the measured time of its layers, or the work that the changed graph saves. 0 for a change
        that cannot be made.
        """
        subject = self.subject
        if candidate.share is not None:
            layers = candidate.layers
            ns = subject.ns(layers) if layers else subject.call_ns
            return max(candidate.least, candidate.share * ns / max(subject.call_ns, 1.0))
        try:
            module, _ = changed(subject.module, subject.options, [candidate.change])
        except ClewError as error:
            self.notes.append(f"{candidate.rule}: {candidate.what}: {error.code} {error.message}")
            return 0.0
        except Exception as error:
            if candidate.key not in self._of_users:
                raise
            text = f"{type(error).__name__}: {error}"
            self.notes.append(f"{candidate.rule}: {candidate.what}: {text}")
            return 0.0
        return max(candidate.least, 1.0 - self._estimate.of(module) / max(before, 1e-9))
