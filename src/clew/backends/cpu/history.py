"""Tuning records for kernels: the best one that reproduces its schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from clew.backends.cpu.lowering import KernelSource
from clew.backends.cpu.schedule_choice import ScheduleFor, of_operators
from clew.ir.expr import Function
from clew.ir.structural import structural_hash
from clew.machine.target import Target
from clew.passes.apply_history import TUNED, Advice, untuned
from clew.records.trial import KERNEL, Trial
from clew.runtime.cache import Cache
from clew.support.errors import ClewError

_MOST_TRIED: Final = 4  # records of a kernel; others were slower
_FITS: Final = b"fits"


def with_choices(function: Function, choices: str) -> Function:
    """Returns a primitive function with the text of its choices; "" for the default ones."""
    plain = untuned(function)
    if not choices:
        return plain
    return Function(plain.params, plain.body, plain.attrs.with_(**{TUNED: choices}))


class RecordedHistory:
    """The best records of kernels, read once.

    `best` holds the records by kind and subject, best first. Whether a record still makes its
    schedule is checked once and kept in the cache.
    """

    def __init__(
        self,
        best: Mapping[tuple[str, str], Sequence[Trial]],
        target: Target,
        cache: Cache,
        bounds: str = "check",
        schedules: Sequence[ScheduleFor] = (),
    ) -> None:
        """`schedules` are the user's, which take precedence over records."""
        self._best = {s: list(t) for (kind, s), t in best.items() if kind == KERNEL}
        self._target = target
        self._cache = cache
        self._bounds = bounds
        self._schedules = tuple(schedules)
        text = "|".join(t.uid + t.choices for ts in self._best.values() for t in ts)
        self._digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def __repr__(self) -> str:
        return f"<{len(self._best)} kernels, {self._digest}>"

    def advice(self, function: Function) -> Advice:
        """Returns the choices of the best record that fits, and remarks on it and on the records
        that were skipped.
        """
        plain = untuned(function)
        remarks: list[str] = []
        for trial in self._best.get(structural_hash(plain), ())[:_MOST_TRIED]:
            reason = self._unfit(plain, trial)
            if not reason:
                return Advice(trial.choices, (*remarks, told(trial) + self._unless(plain)))
            remarks.append(f"{named(trial)} is skipped: {reason}")
        return Advice("", tuple(remarks))

    def _unless(self, plain: Function) -> str:
        """Returns which of the user's schedules may take the place of a record, as text. They are
        for kernels by names, which are given later, and may leave a kernel to the rules.
        """
        own = [schedule.name for schedule in self._schedules if schedule.may_fit(plain)]
        return f"; not where the schedule {', '.join(own)} applies" if own else ""

    def _unfit(self, plain: Function, trial: Trial) -> str:
        """Returns why a record cannot be applied; "" if it makes its schedule again."""
        if of_operators(plain, self._target):
            return "an operator of the kernel has its own schedule"
        try:
            source = KernelSource(
                with_choices(plain, trial.choices), self._target, bounds=self._bounds
            )
            key = hashlib.blake2b(
                f"replay {source.key} {trial.schedule}".encode(), digest_size=20
            ).hexdigest()
            found = self._cache.get(key)
            if found is None:
                found = replay(source, trial.schedule).encode() or _FITS
                self._cache.put(key, found)
        except ClewError as error:
            return f"{error.code} {error.message}"
        return "" if found == _FITS else found.decode(errors="replace")


def replay(source: KernelSource, schedule: str) -> str:
    """Returns why a kernel's choices do not make a recorded schedule; "" if they do.

    Errors: those of the rules and of the request.
    """
    steps = source.schedule.text.splitlines()
    wanted = schedule.splitlines()
    if steps == wanted:
        return ""
    place = next((n for n, (a, b) in enumerate(zip(steps, wanted, strict=False)) if a != b), None)
    at = min(len(steps), len(wanted)) if place is None else place
    now = steps[at] if at < len(steps) else "nothing"
    then = wanted[at] if at < len(wanted) else "nothing"
    return f"its choices make another schedule now; step {at + 1} was {then}, and is {now}"


def named(trial: Trial) -> str:
    """Returns the name of a record in remarks."""
    return f"trial {trial.uid} of {trial.day}"


def told(trial: Trial, what: str = "") -> str:
    """Returns a sentence about a record that is applied."""
    took = ""
    if trial.ns is not None and trial.total_ratio:
        default = trial.ns / trial.total_ratio
        took = f", {trial.ns / 1e3:.3g} µs instead of {default / 1e3:.3g}"
    return f"{named(trial)}: {what}{trial.choices}{took} ({100 * trial.gain:.1f} % less time)"
