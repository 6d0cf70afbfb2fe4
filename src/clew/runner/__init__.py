"""Runs work here, or on the workers of a Dask scheduler; one measurement at a time on a machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clew.runner.dask import DaskRunner
from clew.runner.local import LocalRunner
from clew.runner.runner import Failed, Runner

__all__ = ["DaskRunner", "Failed", "LocalRunner", "Runner", "runner_at"]


@contextmanager
def runner_at(scheduler: str | None, *, measures: bool = True) -> Iterator[Runner]:
    """Yields the runner on the workers of a scheduler, by its address; None: in this process. If
    the work `measures`, each machine does one item at a time.

    Errors: I387 (see `DaskRunner`).
    """
    runner: Runner = (
        LocalRunner(measures) if scheduler is None else DaskRunner(scheduler, measures=measures)
    )
    try:
        yield runner
    finally:
        runner.close()
