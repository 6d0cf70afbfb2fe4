"""Processes that lower kernels, beside this one.

Lowering is Python code, so one process uses one core. A worker is given a primitive function and
returns the kernel in the form of the cache. If it cannot, the caller lowers the kernel and raises
the error in its own context.

This file imports nothing of the compiler, so that the workers start before it is imported.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Final

import llvmlite
import ml_dtypes
import numpy as np

from clew import version
from clew.codegen.objects import shared_compiler
from clew.codegen.workers import Job, WorkerPool, python_command
from clew.runtime.driver import begin_driver
from clew.support.locks import once
from clew.support.settings import settings

_ROOT: Final = Path(version.__file__).parents[1]
# Each worker imports the compiler, and holds it in memory: of more, few have work before the rest
# of a compilation, which one process does, is over.
_MOST_WORKERS: Final = 7
_MOST_AT_START: Final = 3  # before the number of kernels is known


class PendingKernel(Job):
    """A kernel that a worker may lower and compile. `pack` returns the request."""

    def __init__(self, pack: Callable[[], bytes]) -> None:
        super().__init__()
        self._pack = pack

    @property
    def request(self) -> bytes:
        return self._pack()

    def do_here(self) -> None:
        """Leaves the kernel to the caller."""
        self.error = "no worker"


class KernelWorkers(WorkerPool):
    """The pool of this process: a worker for every core but the one of this process, and not more
    than have work.
    """

    needs_workers = False

    def __init__(self) -> None:
        super().__init__(min(settings().compile_jobs - 1, _MOST_WORKERS), _command)

    def answer(self, job: PendingKernel) -> bytes | None:
        """Waits for a kernel; returns None if it must be lowered here."""
        self.wait_for(job)
        return job.answer


def _command() -> list[str]:
    places = [Path(str(package.__file__)).parents[1] for package in (np, ml_dtypes, llvmlite)]
    return python_command(
        [str(place) for place in (_ROOT, *places)],
        "import gc; gc.disable(); from clew.backends.cpu.portable import run; run()",
    )


@once
def shared_workers() -> KernelWorkers:
    """Returns the pool of this process."""
    made = KernelWorkers()
    atexit.register(made.close)
    return made


def warm_up() -> None:
    """Starts the workers that a cold compilation needs, and does not wait for them."""
    shared_workers().warm_up(_MOST_AT_START)
    shared_compiler().warm_up(1)
    begin_driver(lambda text, target: shared_compiler().submit(text, target).result)
