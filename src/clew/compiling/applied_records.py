"""Finds the tuning file of a compilation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from clew.backends.compile_options import AUTO
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.runtime.cache import Cache
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.settings import settings


def with_records(
    passes: Sequence[Pass],
    tuned: str | Path | None,
    target: Target,
    threads: int | None,
    cache: Cache,
    bounds: str,
    schedules: Sequence[ScheduleFor] = (),
) -> list[Pass]:
    """Returns the passes, followed by one that applies the best records in a file: `tuned`, or the
    default file if that is `auto` and the file exists. The passes are unchanged without records.
    `schedules` are the user's.

    Errors: I380 to I382 (see `Store`).
    """
    if tuned is None:
        return list(passes)
    path = Path(tuned)
    if str(tuned) == AUTO:
        path = settings().tuning
        if not os.path.exists(path):
            return list(passes)
    with LOADING, held_interrupts():
        from clew.compiling.recorded_choices import applying  # noqa: PLC0415 - it needs SQLite

    return applying(passes, path, target, threads, cache, bounds, schedules)
