"""The result of `clew.advise`: advice with its measured effects, as a page and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from clew.advice.applied import Applied
from clew.advice.candidate import Candidate, Where, changed, conflicts
from clew.advice.ceiling import Ceiling
from clew.advice.subject import Subject
from clew.advice.trial import Bench, Effect
from clew.support.errors import InputError
from clew.support.shown import Shown, counted

SCHEMA: Final = "clew.advice/1"
_WHERE_SHOWN: Final = 3
_TRIED_SHOWN: Final = 12
_EFFORTS: Final = {
    "option": "an option of clew.compile",
    "exporter": "an option of the exporter",
    "attribute": "a line of the model's source",
    "graph": "none: --apply rewrites the graph",
    "retraining": "train the model again",
}
_LICENCES: Final = {
    "exact": "none: the same values",
    "rounding": "sums are rounded differently",
    "approximation": "an approximation",
    "interface": "the same values; the model is called differently, or returns less",
    "retraining": "another function, which must be trained",
}


@dataclass(frozen=True)
class Advised:
    """A candidate with the share of the time that it was predicted to save, and its effect."""

    candidate: Candidate
    predicted: float
    effect: Effect
    where: tuple[Where, ...] = ()

    @property
    def is_advice(self) -> bool:
        """Whether it is faster."""
        return self.effect.state == "advice"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        candidate = self.candidate
        return {
            "key": candidate.key,
            "rule": candidate.rule,
            "what": candidate.what,
            "why": candidate.why,
            "how": candidate.how,
            "effort": candidate.effort,
            "licence": candidate.licence,
            "layers": list(candidate.layers),
            "where": [one.to_json() for one in self.where],
            "options": {k: str(v) for k, v in candidate.change.options.items()},
            "predicted": self.predicted,
            "effect": self.effect.to_json(),
        }

    def lines(self, number: int) -> list[str]:
        """Returns the advice as text."""
        candidate, effect = self.candidate, self.effect
        assert effect.gain is not None
        assert effect.low is not None
        assert effect.high is not None
        old, new = (effect.old_ns or 0.0) / 1e6, (effect.new_ns or 0.0) / 1e6
        found = [
            f"{number}. {candidate.what}",
            f"   gain    {100 * effect.gain:.1f} % of a call ({100 * effect.low:.1f} to "
            f"{100 * effect.high:.1f}): {old:.3f} → {new:.3f} ms",
            f"   why     {candidate.why}",
            f"   effort  {_EFFORTS[candidate.effort]}: {candidate.how}",
            f"   risk    {_risk(candidate, effect)}",
        ]
        shown = self.where[:_WHERE_SHOWN]
        found += [f"   {'where' if n == 0 else '':7} {one}" for n, one in enumerate(shown)]
        if len(self.where) > len(shown):
            found.append(f"{'':11}and {len(self.where) - len(shown)} more layers")
        return found


def _risk(candidate: Candidate, effect: Effect) -> str:
    text = _LICENCES[candidate.licence]
    if effect.error is None or candidate.licence == "retraining":
        return text
    if effect.error == 0.0:
        return f"{text}; outputs were equal"
    return f"{text}; outputs moved by {effect.error:.1g} of their largest value"


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """Changes that make a model faster (`items`, in descending order of their gain), all other
    candidates (`others`), and the ceiling.

    Pieces of advice are numbered from 1, in the order of `items`.
    """

    subject: Subject = field(repr=False)
    items: tuple[Advised, ...]
    others: tuple[Advised, ...]
    ceiling: Ceiling
    bench: Bench = field(repr=False)
    seconds: float = 0.0
    stopped: bool = False
    notes: tuple[str, ...] = ()

    def _about(self) -> str:
        return f"{counted(len(self.items), 'change')} of {self.subject.name}"

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Advised:
        return self.items[number]

    def apply(self, numbers: Sequence[int]) -> Applied:
        """Returns the model with some pieces of advice, by their numbers from 1.

        Errors: I514 for a number that does not exist, or two that change the same value.
        """
        for number in numbers:
            if not 1 <= number <= len(self.items):
                raise InputError(
                    "I514",
                    f"there is no advice {number}",
                    hint=f"there are {counted(len(self.items), 'piece')} of advice, from 1",
                )
        chosen = [self.items[n - 1].candidate for n in dict.fromkeys(numbers)]
        return applied(self.subject, chosen)

    def measured(self, numbers: Sequence[int], seconds: float = 10.0) -> Effect:
        """Measures and returns the effect of several pieces of advice together.

        Errors: I514 (see `apply`).
        """
        self.apply(numbers)
        chosen = [self.items[n - 1].candidate for n in dict.fromkeys(numbers)]
        return self.bench.effect(chosen, seconds)

    def to_json(self) -> dict[str, Any]:
        """Returns the advice as JSON values (docs/advise.md)."""
        subject = self.subject
        return {
            "schema": SCHEMA,
            "model": subject.name,
            "target": str(subject.target),
            "threads": subject.threads,
            "options": subject.options.record(),
            "samples": "given" if subject.given else "drawn",
            "call_ns": subject.call_ns,
            "memory": asdict(self.bench.memory),
            "seconds": self.seconds,
            "stopped": self.stopped,
            "notes": list(self.notes),
            "advice": [{"number": n, **a.to_json()} for n, a in enumerate(self.items, 1)],
            "others": [a.to_json() for a in self.others],
            "ceiling": self.ceiling.to_json(),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Returns the page as lines of text."""
        subject = self.subject
        where = f"{counted(subject.threads, 'thread')} of {subject.target}"
        found = [f"{subject.name}: {subject.call_ns / 1e6:.3f} ms a call on {where}", ""]
        for number, one in enumerate(self.items, 1):
            found += [*one.lines(number), ""]
        if not self.items:
            found += ["no advice: no change was measurably faster", ""]
        found += ["ceiling", *(f"   {line}" for line in self.ceiling.lines())]
        tried = [a for a in self.others if a.effect.state != "not tried"]
        if tried:
            found += ["", f"tried without a gain ({len(tried)})"]
            found += [f"   {a.candidate.what}: {_why_not(a.effect)}" for a in tried[:_TRIED_SHOWN]]
        left = len(self.others) - len(tried)
        if left:
            found += ["", f"{counted(left, 'candidate')} not tried: give more --minutes"]
        return found


def _why_not(effect: Effect) -> str:
    if effect.gain is None:
        return effect.reason
    change = 100 * effect.gain
    return f"{effect.reason} ({abs(change):.1f} % {'less' if change >= 0 else 'more'} time)"


def applied(subject: Subject, chosen: Sequence[Candidate]) -> Applied:
    """Returns the subject's model with candidates.

    Errors: I514 for two that change the same value.
    """
    for n, one in enumerate(chosen):
        for other in chosen[:n]:
            if conflicts(one.change, other.change):
                raise InputError(
                    "I514",
                    f"two pieces of advice change the same value: {one.what}; {other.what}",
                    hint="apply one, and ask for advice on the result",
                )
    module, options = changed(subject.module, subject.options, [c.change for c in chosen])
    return Applied(module, options, tuple(c.what for c in chosen))
