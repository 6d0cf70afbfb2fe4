"""Runs tasks in forked processes, which a sample may crash or hold up."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from opinfo.entries import Samples, Task, samples_of
from opinfo.outcomes import Outcome, outcome


@dataclass(frozen=True)
class Options:
    """How tasks run: at most so many samples of each, so many in one module, and for how many
    seconds a module may take.
    """

    samples: int | None = None
    together: int = 8
    seconds: float = 120.0


@dataclass(frozen=True)
class _Start:
    """Where a process begins: at a task's sample; up to `alone`, each sample runs by itself."""

    task: Task
    sample: int = 0
    alone: int = 0


def run_task(
    task: Task, options: Options, first: int = 0, alone: int = 0
) -> Iterator[tuple[int, int, list[Outcome] | None]]:
    """Yields the number of a sample and of how many the next step is, without outcomes before the
    step and with them behind it. Samples run together, and one by one if not all of them agree.
    """
    samples = samples_of(task, options.samples)
    place = first
    while place < len(samples):
        count = 1 if place < alone else min(options.together, len(samples) - place)
        part = samples[place : place + count]
        yield place, count, None
        found = outcome(part[0] if count == 1 else Samples(part), task.entry)
        if count == 1:
            yield place, count, [found]
        elif found.kind == "agrees":
            yield place, count, [found] * count
        else:
            alone = place + count
            continue
        place += count


def check(task: Task, options: Options) -> list[Outcome]:
    """Returns the outcomes of a task's samples, run in this process."""
    return [o for _, _, found in run_task(task, options) if found for o in found]


def run_all(
    tasks: Iterable[Task], options: Options, jobs: int
) -> Iterator[tuple[Task, list[Outcome]]]:
    """Yields each task with the outcomes of its samples, as they come, from `jobs` processes."""
    queue = deque(_Start(task) for task in tasks)
    workers = [_Worker(options) for _ in range(min(jobs, len(queue)))]
    for worker in workers:
        worker.give(queue.popleft())
    while busy := [w for w in workers if w.start is not None]:
        wait([w.pipe for w in busy], timeout=1.0)
        for worker in busy:
            done = worker.advance()
            if done is not None:
                yield done
                if queue:
                    worker.give(queue.popleft())
    for worker in workers:
        worker.stop()


class _Worker:
    """A process that lives until a sample kills it; then another one goes on behind the sample."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.start: _Start | None = None
        self._found: list[Outcome] = []
        self._open()

    def _open(self) -> None:
        self.pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process: Any = context.Process(target=_serve, args=(other, self.options), daemon=False)
        self.process.start()
        other.close()
        self._step: tuple[int, int] = (0, 1)
        self._since = time.monotonic()

    def give(self, start: _Start) -> None:
        """Sends a task to the process."""
        self.start = start
        self._step = (start.sample, 1)
        self._since = time.monotonic()
        self.pipe.send(start)

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def advance(self) -> tuple[Task, list[Outcome]] | None:
        """Takes what the process has sent; returns a task that it has ended."""
        assert self.start is not None
        try:
            while self.pipe.poll():
                step, found = self.pipe.recv()
                self._since = time.monotonic()
                if step is None:
                    return self._ended(found)
                self._step = step
                self._found += found or []
        except (EOFError, OSError):
            self.process.join()
            self._resume(Outcome("crash", f"the process ended with {self.process.exitcode}"))
        else:
            if time.monotonic() - self._since > self.options.seconds:
                self._resume(Outcome("slow", f"more than {self.options.seconds:.0f} s"))
        return None

    def _ended(self, error: str) -> tuple[Task, list[Outcome]]:
        assert self.start is not None
        if error:
            self._found.append(Outcome("no eager", error))
        done = (self.start.task, self._found)
        self.start, self._found = None, []
        return done

    def _resume(self, outcome: Outcome) -> None:
        """Starts a process behind the step that ended the last one, or at the first of its samples,
        now one by one.
        """
        assert self.start is not None
        task, (place, count) = self.start.task, self._step
        self.stop()
        self._open()
        if count == 1:
            self._found.append(outcome)
            self.give(_Start(task, place + 1, self.start.alone))
        else:
            self.give(_Start(task, place, place + count))


def _serve(pipe: Connection, options: Options) -> None:
    while True:
        start = pipe.recv()
        error = ""
        try:
            for place, count, found in run_task(
                start.task, options, first=start.sample, alone=start.alone
            ):
                pipe.send(((place, count), found))
        except Exception as problem:  # of samples that torch cannot make
            error = f"{type(problem).__name__}: {problem}"
        pipe.send((None, error))
