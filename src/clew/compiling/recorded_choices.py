"""Passes that apply the records of a tuning file. Only compilations with such a file import this
module, because it imports SQLite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from clew.backends.cpu.history import RecordedHistory, named, told
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.machine.target import Target
from clew.passes.apply_history import ApplyHistory
from clew.passes.base import Pass
from clew.passes.decisions import Decision, Decisions
from clew.records import Store, Trial
from clew.records.trial import KERNEL
from clew.runtime.cache import Cache
from clew.runtime.threads import thread_count


def applying(
    passes: Sequence[Pass],
    path: Path,
    target: Target,
    threads: int | None,
    cache: Cache,
    bounds: str,
    schedules: Sequence[ScheduleFor],
) -> list[Pass]:
    """Returns the passes, followed by one that applies the best records in a file. They are
    unchanged without records for this machine. `schedules` are the user's.

    Errors: I380 to I382 (see `Store`).
    """
    with Store(path, write=False) as store:
        best = store.best(target.identity, thread_count(threads))
    if not best:
        return list(passes)
    decided = deciding(passes, RecordedDecisions(best))
    return [*decided, ApplyHistory(RecordedHistory(best, target, cache, bounds, schedules))]


def deciding(passes: Sequence[Pass], decisions: Decisions) -> list[Pass]:
    """Returns the passes; those that make decisions use `decisions`."""
    return [
        replace(p, decisions=decisions)  # type: ignore[call-arg]
        if any(one.name == "decisions" for one in fields(p))
        else p
        for p in passes
    ]


class RecordedDecisions:
    """The best records of the graph's decisions, read once."""

    def __init__(self, best: Mapping[tuple[str, str], Sequence[Trial]]) -> None:
        self._best = {key: list(trials) for key, trials in best.items() if key[0] != KERNEL}
        text = "|".join(t.uid + t.choices for ts in self._best.values() for t in ts)
        self._digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def __repr__(self) -> str:
        return f"<{len(self._best)} decisions, {self._digest}>" if self._best else "defaults"

    def choose(self, decision: Decision) -> tuple[str, str]:
        """Returns the option of the best record that is still one, with a remark; the default if
        there is none.
        """
        skipped = ""
        for trial in self._best.get((decision.kind, decision.subject), ()):
            if trial.choices in decision.options:
                return trial.choices, told(trial, f"{decision.kind}: ")
            skipped = f"{named(trial)} is skipped: {trial.choices!r} is no longer an option"
        return decision.default, skipped
