"""Has passes apply the records of tuning that fit the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clew.backends.cpu.history import RecordedHistory
from clew.machine.target import Target
from clew.passes.apply_history import ApplyHistory
from clew.passes.base import Pass
from clew.records import Store, default_path
from clew.runtime.cache import Cache
from clew.runtime.threads import thread_count

AUTO = "auto"


def with_records(
    passes: Sequence[Pass],
    tuned: str | Path | None,
    target: Target,
    threads: int | None,
    cache: Cache,
    bounds: str,
) -> list[Pass]:
    """Returns the passes, followed by one that applies the best records in a file: `tuned`, or the
    default file if that is `auto` and the file exists. The passes are unchanged without records.

    Errors: I380 to I382 (see `Store`).
    """
    if tuned is None:
        return list(passes)
    path = Path(tuned)
    if str(tuned) == AUTO:
        path = default_path()
        if not path.exists():
            return list(passes)
    with Store(path, write=False) as store:
        best = store.best(target.identity, thread_count(threads))
    if not best:
        return list(passes)
    return [*passes, ApplyHistory(RecordedHistory(best, target, cache, bounds))]
