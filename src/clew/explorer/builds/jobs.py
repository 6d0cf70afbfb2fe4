"""Long-running work: each job has events, which followers read live or later, and a result."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, Literal

from clew.explorer.builds.processes import Answer
from clew.explorer.failures import Cancelled, Failure, error_info
from clew.explorer.schema import ErrorInfo, JobEvent
from clew.support.errors import InputError

# Events kept for late followers; older ones are dropped.
_KEPT_EVENTS: Final = 300
_MOST_UNFINISHED: Final = 16
_MOST_KEPT: Final = 200

Outcome = Literal["done", "failed", "cancelled"]


class Job:
    """Work in progress or finished. `id` is its name in the page."""

    def __init__(self, id: str, about: str) -> None:
        self.id: Final = id
        self.about: Final = about
        self.result: Answer | None = None
        self.outcome: Outcome | None = None
        self.error: ErrorInfo | None = None
        self.cancel_asked: Final = asyncio.Event()
        self._events: deque[tuple[int, JobEvent]] = deque(maxlen=_KEPT_EVENTS)
        self._start = time.monotonic()
        self._count = 0
        self._changed = asyncio.Event()

    @property
    def last(self) -> int:
        """The number of its last event, 0 before the first."""
        return self._count

    def say(self, text: str, fraction: float | None = None) -> None:
        """Reports progress to followers."""
        if self.outcome is None:
            self._add(JobEvent("progress", text, fraction, None, self._seconds()))

    def finish(
        self, outcome: Outcome, *, result: Answer | None = None, error: ErrorInfo | None = None
    ) -> None:
        """Ends the job, once."""
        if self.outcome is not None:
            return
        self.outcome, self.result, self.error = outcome, result, error
        text = error.message if error is not None else self.about
        fraction = 1.0 if outcome == "done" else None
        self._add(JobEvent(outcome, text, fraction, error, self._seconds()))

    async def follow(
        self, after: int = 0, heartbeat_s: float = 15.0
    ) -> AsyncIterator[tuple[int, JobEvent] | None]:
        """Yields events with their numbers, past ones first, until the job has ended; yields None
        from time to time if nothing happens.
        """
        while True:
            changed = self._changed
            for number, event in list(self._events):
                if number > after:
                    after = number
                    yield number, event
            if self.outcome is not None and after >= self._count:
                return
            if changed is self._changed:
                try:
                    await asyncio.wait_for(changed.wait(), heartbeat_s)
                except TimeoutError:
                    yield None

    async def ended(self) -> None:
        """Returns when the job has ended."""
        while self.outcome is None:
            await self._changed.wait()

    async def race(self, work: Coroutine[Any, Any, Answer], limit_s: float) -> Answer:
        """Returns the result of `work`, unless the job is cancelled or takes too long.

        Raises `Cancelled`, or `Failure` with I219; the caller must then stop the work itself.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(forget)
        stop = asyncio.ensure_future(self.cancel_asked.wait())
        try:
            await asyncio.wait({task, stop}, timeout=limit_s, return_when="FIRST_COMPLETED")
        finally:
            stop.cancel()
        if task.done():
            return task.result()
        if self.cancel_asked.is_set():
            raise Cancelled
        raise Failure(too_long(limit_s))

    def _add(self, event: JobEvent) -> None:
        self._count += 1
        self._events.append((self._count, event))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _seconds(self) -> float:
        return time.monotonic() - self._start


def forget(task: asyncio.Future[Any]) -> None:
    """Retrieves the outcome of abandoned work, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def too_long(limit_s: float) -> ErrorInfo:
    """Returns the error for work that was stopped at its time limit."""
    return error_info(
        InputError(
            "I219",
            f"stopped after {limit_s:g} s",
            hint="raise the limit with clew explore --time-limit SECONDS",
        )
    )


class Jobs:
    """The jobs of a server, and their tasks."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._count = 0

    def start(self, about: str, work: Any) -> Job:
        """Starts `work(job)`, a coroutine function that returns the result.

        Raises `Failure` (429) with I215 if too many jobs are running.
        """
        if len(self._tasks) >= _MOST_UNFINISHED:
            raise Failure(
                InputError(
                    "I215",
                    f"{len(self._tasks)} jobs are running, which is the limit",
                    hint="wait for one, or cancel one",
                ),
                429,
            )
        self._count += 1
        job = Job(f"j{self._count}", about)
        self._jobs[job.id] = job
        self._drop_old()
        task = asyncio.create_task(self._run(job, work))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return job

    def get(self, id: str) -> Job:
        """Returns a job.

        Raises `Failure` (404) with I211.
        """
        if id not in self._jobs:
            raise Failure(InputError("I211", f"no job {id[:20]!r}"), 404)
        return self._jobs[id]

    async def cancel_all(self) -> None:
        """Cancels all running jobs, and returns when they have ended."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, job: Job, work: Any) -> None:
        try:
            job.finish("done", result=await work(job))
        except (Cancelled, asyncio.CancelledError):
            job.finish("cancelled")
        except Failure as failure:
            job.finish("failed", error=failure.info)
        except Exception as error:
            job.finish("failed", error=error_info(error))

    def _drop_old(self) -> None:
        ended = [id for id, job in self._jobs.items() if job.outcome is not None]
        for id in ended[: max(0, len(self._jobs) - _MOST_KEPT)]:
            del self._jobs[id]
