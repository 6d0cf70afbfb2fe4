"""Profiles a build's runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from clew.explorer.actions.params import number
from clew.explorer.inputs import drawn
from clew.explorer.schema import Profiled
from clew.explorer.session import Session
from clew.profile import modes
from clew.profile.report import Profile

_SECONDS: Final = 1.6
_SAMPLE: Final = 0.8
_MOST_SECONDS: Final = 60.0

_OF: Final = re.compile(r"(\d+) of (\d+)")
# Profiling's progress messages, with the fractions done at the start and end of each.
_PARTS: Final = (("run ", 0.05, 0.45), ("measuring", 0.45, 0.6), ("sampling", 0.6, 1.0))


def profile(
    session: Session,
    params: Mapping[str, Any],
    say: Callable[[str, float | None], None],
) -> Profiled:
    """Profiles runs with random inputs, and stores the result as `session.measured["profile"]`.

    `seconds` is the time for runs with and without timers, `sample` the time for sampling
    instructions; 0 disables sampling.

    Errors: I235 (parameters), I061 (inputs without random values).
    """
    seconds = number(params, "seconds", _SECONDS, 0.01, _MOST_SECONDS)
    sample = number(params, "sample", _SAMPLE, 0.0, _MOST_SECONDS)
    say("drawing inputs", 0.0)
    found = modes.profile(
        session.compiled,
        drawn(session),
        warmup=2,
        seconds=seconds,
        sample=sample if sample else False,
        every=True,
        on_progress=lambda text: say(text, _done(text)),
    )
    session.measured["profile"] = found
    return profiled(found)


def profiled(found: Profile) -> Profiled:
    """Returns a summary of a profile."""
    return Profiled(
        wall_ns=found.wall.ns,
        kernels_ns=found.kernels_ns,
        outside_ns=found.outside_ns,
        rounds=found.rounds,
        threads=found.threads,
        notes=list(found.notes),
    )


def _done(text: str) -> float | None:
    """Returns the fraction done for a progress message of profiling; None if the message has
    none.
    """
    for begins, start, end in _PARTS:
        if text.startswith(begins):
            counted = _OF.search(text)
            part = int(counted[1]) / int(counted[2]) if counted else 0.0
            return start + (end - start) * part
    return None
