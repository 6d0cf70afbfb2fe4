"""Runs cases in separate processes, which a case may crash."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from onnx_suite.cases import Case
from onnx_suite.running import Outcome

Work = Callable[[Case], Outcome]


def run_all(cases: Sequence[Case], work: Work, jobs: int) -> Iterator[tuple[Case, Outcome]]:
    """Yields each case with its outcome, as they come, from `jobs` processes.

    A process that dies leaves the case it was at with the signal as its reason; another goes on.
    """
    shares = [list(cases[n::jobs]) for n in range(jobs)]
    workers = [_Worker(share, work) for share in shares if share]
    while workers:
        ready = wait([w.receiver for w in workers])
        for worker in [w for w in workers if w.receiver in ready]:
            case, result = worker.next()
            if case is not None:
                assert result is not None
                yield case, result
            if not worker.left:
                worker.process.join()
                workers.remove(worker)


class _Worker:
    """A process at a list of cases. Cases are known to it by fork: nothing of them is sent."""

    def __init__(self, cases: list[Case], work: Work) -> None:
        self.left = cases
        self._work = work
        self._start()

    def _start(self) -> None:
        self.receiver, sender = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        args = (list(self.left), self._work, sender)
        self.process: Any = context.Process(target=_run, args=args)
        self.process.start()
        sender.close()

    def next(self) -> tuple[Case | None, Outcome | None]:
        """Returns the next case and its outcome."""
        try:
            result = self.receiver.recv()
        except EOFError:
            self.process.join()
            result = Outcome(False, reason=f"the process ended with {self.process.exitcode}")
            case = self.left.pop(0)
            if self.left:
                self._start()
            return case, result
        return self.left.pop(0), result


def _run(cases: list[Case], work: Work, sender: Connection) -> None:
    for case in cases:
        sender.send(work(case))
    sender.close()
    os._exit(0)
