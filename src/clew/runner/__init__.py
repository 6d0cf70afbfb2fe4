"""Runs measurements: here, or on the workers of a Dask scheduler; one at a time on each machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clew.runner.dask import DaskRunner
from clew.runner.local import LocalRunner
from clew.runner.runner import Failed, Runner

__all__ = ["DaskRunner", "Failed", "LocalRunner", "Runner", "runner_at"]


@contextmanager
def runner_at(scheduler: str | None) -> Iterator[Runner]:
    """Yields the runner on the workers of a scheduler, by its address; None: in this process.

    Errors: I387 (see `DaskRunner`).
    """
    runner: Runner = LocalRunner() if scheduler is None else DaskRunner(scheduler)
    try:
        yield runner
    finally:
        runner.close()
