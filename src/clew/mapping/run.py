"""Runs a model over Parquet files, part by part, here or on the workers of a Dask scheduler."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from clew.backends.compile_options import CompileOptions
from clew.mapping.part import Job, run_part
from clew.mapping.plan import Part, Plan, digest_of, held, plan_of
from clew.runner import Failed, runner_at
from clew.runtime.batches import check_count
from clew.support.errors import InputError

PART_ROWS: Final = 8192
BATCH: Final = 32
_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class MapReport:
    """What `map_files` did. `parts` and `rows` count all of the run, `new_rows` those of this
    call, which took `seconds`.
    """

    output: Path
    parts: int
    rows: int
    new_rows: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """The rows that this call finished in a second; 0 if all were there."""
        return self.new_rows / self.seconds if self.new_rows else 0.0


def map_files(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] = _NONE,
    text: str | None = None,
    outputs: str | Sequence[str] = (),
    keep: str | Sequence[str] | None = None,
    batch: int = BATCH,
    part_rows: int = PART_ROWS,
    scheduler: str | None = None,
    options: CompileOptions | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> MapReport:
    """Runs a model on each row of Parquet files, and writes the results as Parquet files.

    The rows of each input come from the column of its name, or from the one that `columns` names.
    The first axis of all inputs must count rows. Rows of equal shape run together: `batch` of them
    if that axis is free, as many as the model takes otherwise. `output` receives one file for each
    `part_rows` rows of a file, in the order of rows: the columns that `keep` names (by default,
    those that are no inputs), and a column for each output, or those in `outputs`.

    `text` names a column of texts: the tokenizer in the model's folder or file makes `input_ids`,
    `attention_mask`, `token_type_ids` and `position_ids` of them.

    A result appears only when it is complete. A run that was stopped, or whose workers died,
    continues with the missing parts when it is started again.

    With `scheduler`, the address of a Dask scheduler, its workers run the parts: model, data and
    output must be at the same paths for all of them.

    Errors: I387 (workers), I450 (pyarrow is not installed), I451 (the folder has results of another
    run), I452 (it cannot be written), I453, I454 and I457 (the tables), I455, I456 and I462 (the
    model), I458 (a part ended its workers), I459 (`outputs`), I460 (`batch` or `part_rows`), I485
    (no tokenizer), and those of compilation and of calls.
    """
    begin = time.perf_counter()
    check_count("batch", batch)
    check_count("part_rows", part_rows)
    path, folder = Path(model), Path(output)
    outputs = [outputs] if isinstance(outputs, str) else list(outputs)
    keep = [keep] if isinstance(keep, str) else keep
    record = (options or CompileOptions()).record()
    subject = {
        "model": digest_of(path),
        "options": {name: v for name, v in record.items() if name not in ("threads", "cache")},
        "columns": dict(columns),
        "text": text,
        "outputs": outputs,
        "keep": None if keep is None else list(keep),
    }
    files = [Path(file) for file in ([data] if isinstance(data, (str, os.PathLike)) else data)]
    if not files:
        raise InputError("I453", "there are no files to run the model on")
    plan = plan_of(files, part_rows, subject)
    job = Job(
        os.path.abspath(path),
        json.dumps(record),
        os.path.abspath(folder),
        batch,
        tuple(sorted(columns.items())),
        text or "",
        tuple(outputs),
        None if keep is None else tuple(keep),
    )
    with held(folder):
        plan.begin(folder)
        new_rows = _run(job, plan, folder, scheduler, say)
    seconds = time.perf_counter() - begin
    return MapReport(folder, len(plan.parts), plan.rows, new_rows, seconds)


def _run(
    job: Job, plan: Plan, folder: Path, scheduler: str | None, say: Callable[[str], None]
) -> int:
    """Runs the missing parts, and returns the number of their rows."""
    missing = list(plan.missing(folder))
    total = sum(part.rows for part in missing)
    if not missing:
        return 0
    count = _Count(plan.rows, plan.rows - total, say)
    lost: list[tuple[Part, str]] = []
    with runner_at(scheduler, measures=False) as runner:
        work = partial(run_part, replace(job, sharing=runner.sharing))
        if not runner.is_remote:
            work = partial(work, done=count.add)
        for part, found in runner.run(work, iter(missing)):
            if isinstance(found, Failed):
                lost.append((part, found.reason))
            elif runner.is_remote:
                count.add(found)
    if lost:
        part, reason = lost[0]
        raise InputError(
            "I458",
            f"{len(lost)} of {len(missing)} parts have no result: rows {part.first} to "
            f"{part.first + part.rows - 1} of {part.file!r}: {reason}",
            hint="the other parts are complete; the same command tries again",
        )
    return total


class _Count:
    """Counts rows, and reports progress with the time left."""

    def __init__(self, total: int, before: int, say: Callable[[str], None]) -> None:
        self._total, self._before, self._say = total, before, say
        self._new, self._begin = 0, time.perf_counter()
        if before:
            say(f"{before} of {total} rows were done before")

    def add(self, rows: int) -> None:
        """Counts finished rows."""
        self._new += rows
        seconds = time.perf_counter() - self._begin
        left = self._total - self._before - self._new
        speed = self._new / seconds
        self._say(
            f"{self._before + self._new} of {self._total} rows, {speed:.0f} rows/s, "
            f"{_time(left / speed)} left"
        )


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
