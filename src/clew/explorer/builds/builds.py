"""The builds of a server. Each runs in a worker process, which answers its questions.

A process may end: it crashes, is killed because an action does not stop, or is ended to make room
for another. The next question then compiles its build again, from the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Final

from clew.explorer.builds.jobs import Job, Jobs, forget
from clew.explorer.builds.lanes import Lanes
from clew.explorer.builds.processes import Answer, Died, WorkerProcess
from clew.explorer.builds.protocol import Head
from clew.explorer.failures import Cancelled, Failure
from clew.explorer.models import Model, Models
from clew.explorer.own import Own, check_extensions
from clew.explorer.schema import BuildInfo, Options
from clew.explorer.wire import to_json
from clew.support.errors import InputError
from clew.support.system import system_text

if TYPE_CHECKING:
    from clew.explorer.builds.local import LocalWorker
    from clew.explorer.session import Session

# Limits of a session: its builds, and those that have a process at the same time.
_MOST_BUILDS: Final = 16
_MOST_ALIVE: Final = 5
# A build is given up after this many crashes of its process.
_MOST_CRASHES: Final = 3
# The time that an action has to react to its cancellation.
_GRACE_S: Final = 2.0
_ANSWER_S: Final = 120.0
_MEMORY_SHARE: Final = 0.8
_MEMORY_QUOTA: Final = Path("/sys/fs/cgroup/memory.max")
_KEPT_ANSWERS_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of work: `seconds` of a job, memory of a process (0: no limit), and the number of
    concurrent compilations.
    """

    seconds: float = 600.0
    memory_bytes: int = 0
    compile_at_once: int = 2


class Build:
    """A model compiled in one way. A build that this process compiled has a `session`."""

    def __init__(
        self, id: str, model: Model, options: Options, own: Own, session: Session | None = None
    ) -> None:
        self.id: Final = id
        self.session: Final = session
        self._own = own
        self.model: Final = model
        self.options: Final = options
        self.worker: WorkerProcess | LocalWorker | None = None
        self.job: Job | None = None
        self.used = 0
        self.crashes = 0
        self.acting = 0
        self.measured = 0
        self._answers: dict[str, Answer] = {}

    @property
    def info(self) -> BuildInfo:
        """The build's description for the page."""
        outcome = self.job.outcome if self.job is not None else None
        state: Any = {None: "compiling", "done": "ready"}.get(outcome, outcome)
        return BuildInfo(
            id=self.id,
            model=self.model.name,
            options=self.options,
            state=state,
            job=self.job.id if self.job is not None else "",
            error=self.job.error if self.job is not None else None,
        )

    @property
    def head(self) -> Head:
        """The build's description for a worker."""
        return {
            "id": self.id,
            "path": str(self.model.path),
            "model": self.model.name,
            "options": asdict(self.options),
            "own": asdict(self._own),
            "local": self.session is not None,
        }

    @property
    def is_alive(self) -> bool:
        """Whether it has a process."""
        return self.worker is not None and self.worker.alive

    def kept(self, route: str) -> Answer | None:
        """Returns a cached answer."""
        return self._answers.get(route)

    def keep(self, route: str, answer: Answer) -> None:
        """Caches an answer if there is room. Values are not cached: those of a loop's iterations
        would fill the cache.
        """
        if route.startswith("values/"):
            return
        used = sum(len(a.body) for a in self._answers.values())
        if used + len(answer.body) <= _KEPT_ANSWERS_BYTES:
            self._answers[route] = answer

    def forget_answers(self) -> None:
        """Drops answers that may have changed, including those being computed."""
        self.measured += 1
        self._answers.clear()

    def end(self) -> None:
        """Ends its process, at once."""
        if self.worker is not None:
            self.worker.kill()
            self.worker = None


class Builds:
    """All builds by their names a, b, c ...; `own` applies to each."""

    def __init__(self, models: Models, jobs: Jobs, limits: Limits, own: Own | None = None) -> None:
        self.models: Final = models
        self.own: Final = own or Own()
        self.jobs: Final = jobs
        self.limits: Final = limits
        self._lanes = Lanes(limits.compile_at_once)
        self._builds: dict[str, Build] = {}
        self._made = 0
        self._clock = 0
        self._workers: set[WorkerProcess] = set()
        self._diffs: dict[tuple[str, str], tuple[Job, Head]] = {}
        self._last_diff: Job | None = None

    # --- which there are ---

    @property
    def infos(self) -> list[BuildInfo]:
        """All builds."""
        return [build.info for build in self._builds.values()]

    @property
    def has_diff(self) -> bool:
        """Whether two builds were compared, or are being compared."""
        return self._last_diff is not None

    def get(self, id: str) -> Build:
        """Returns a build.

        Raises `Failure` (404) with I211.
        """
        build = self._builds.get(id)
        if build is None:
            known = ", ".join(self._builds) or "none"
            raise Failure(InputError("I211", f"no build {id[:20]!r}", hint=f"builds: {known}"), 404)
        return build

    def open(self, model: Model, options: Options) -> Build:
        """Starts a build.

        Raises `Failure` (429) with I215 if there are too many builds or jobs.

        Errors: I342 for an extension file that the command line did not give.
        """
        check_extensions(options, self.own)
        if len(self._builds) >= _MOST_BUILDS:
            raise Failure(
                InputError(
                    "I215", f"the limit of {_MOST_BUILDS} builds is reached", hint="close one"
                ),
                429,
            )
        return self._opened(Build(build_name(self._made), model, options, self.own))

    def open_local(self, session: Session) -> Build:
        """Starts the build that a session of this process represents. Other builds of its model use
        a file that is written for the first of them.
        """
        model = self.models.add_local(session.model)
        return self._opened(
            Build(build_name(self._made), model, session.options, self.own, session)
        )

    def _opened(self, build: Build) -> Build:
        self._start(build)
        self._builds[build.id] = build
        self._made += 1
        return build

    def close(self, id: str) -> None:
        """Ends a build, and drops its model if it was uploaded only for this build."""
        build = self.get(id)
        if build.job is not None:
            build.job.cancel_asked.set()
        build.end()
        del self._builds[id]
        if all(other.model is not build.model for other in self._builds.values()):
            self.models.drop(build.model)

    async def end_all(self) -> None:
        """Ends all jobs and processes at once; returns when they have ended."""
        await self.jobs.cancel_all()
        for build in self._builds.values():
            if build.session is not None:
                build.end()
        workers = list(self._workers)
        for worker in workers:
            worker.kill()
        await asyncio.gather(*(worker.closed() for worker in workers))

    # --- compiling ---

    def _start(self, build: Build) -> Job:
        build.job = self.jobs.start(f"build {build.id}", lambda job: self._compile(build, job))
        return build.job

    async def _compile(self, build: Build, job: Job) -> Answer:
        async with self._lanes.compiling(job):
            self._make_room(build)
            worker = build.worker = await self._worker_of(build)
            try:
                head = {**build.head, "do": "compile"}
                await job.race(worker.ask(head, job.say), self.limits.seconds)
            except BaseException:
                worker.kill()
                raise
        self._note_use(build)  # a new build is no older than those asked meanwhile
        return Answer(to_json(replace(build.info, state="ready")))

    def _note_use(self, build: Build) -> None:
        self._clock += 1
        build.used = self._clock

    def _make_room(self, build: Build) -> None:
        """Ends the least recently used process if there are too many."""
        alive = [b for b in self._builds.values() if b.is_alive and b is not build]
        idle = [b for b in alive if b.info.state == "ready" and not b.acting]
        if len(alive) >= _MOST_ALIVE and idle:
            min(idle, key=lambda b: b.used).end()

    async def _worker_of(self, build: Build) -> WorkerProcess | LocalWorker:
        if build.session is not None:
            from clew.explorer.builds.local import LocalWorker  # noqa: PLC0415 - loads the compiler

            return LocalWorker(build.session)
        await self._written(build)
        return await self._new_worker()

    async def _written(self, build: Build) -> None:
        """Writes the file of a model that this process compiled, if it does not exist."""
        sessions = [b.session for b in self._builds.values() if b.model is build.model]
        session = next((s for s in sessions if s is not None), None)
        if session is not None and not os.path.exists(build.model.path):
            from clew.explorer.builds.local import write_model  # noqa: PLC0415 - loads the compiler

            await asyncio.to_thread(write_model, session, build.model.path)

    async def _new_worker(self) -> WorkerProcess:
        worker = await WorkerProcess.start(self.limits.memory_bytes, self.models.folder)
        self._workers.add(worker)
        ended = asyncio.create_task(worker.closed())
        ended.add_done_callback(lambda _: self._workers.discard(worker))
        return worker

    async def ready(self, build: Build) -> WorkerProcess | LocalWorker:
        """Returns a build's process when it is compiled; compiles it again if the process ended.

        Raises `Failure` with the error of a build that has failed or was cancelled.
        """
        while True:
            job = build.job
            assert job is not None
            await job.ended()
            if job is not build.job:
                continue
            if job.outcome == "cancelled":
                raise Failure(InputError("I220", f"build {build.id} was cancelled"), 409)
            if job.error is not None:
                raise Failure(job.error)
            if build.worker is not None and build.worker.alive:
                self._note_use(build)
                return build.worker
            if build.crashes >= _MOST_CRASHES:
                raise Failure(
                    InputError(
                        "I217",
                        f"the worker process of build {build.id} ended {build.crashes} times",
                        hint="the terminal of clew explore may show why",
                    ),
                    500,
                )
            build.forget_answers()
            self._start(build)

    # --- asking ---

    async def ask(self, id: str, route: str) -> Answer:
        """Returns a build's answer.

        Raises `Failure`: I211, errors of the build, errors of the view; I217, I219.
        """
        build = self.get(id)
        worker = await self.ready(build)
        kept = build.kept(route)
        if kept is not None:
            return kept
        measured = build.measured
        work = worker.ask({"do": "answer", "route": route})
        try:
            answer = await asyncio.wait_for(work, _ANSWER_S)
        except TimeoutError:
            worker.kill()
            build.crashes += 1
            raise Failure(InputError("I219", f"no answer after {_ANSWER_S:g} s"), 500) from None
        except Died:
            build.crashes += 1
            raise
        except Cancelled:
            raise Failure(InputError("I220", f"build {id} was stopped"), 409) from None
        if measured == build.measured:
            build.keep(route, answer)
        return answer

    def act(self, id: str, name: str, params: dict[str, Any]) -> Job:
        """Starts an action of a build; its name and parameters have been checked."""
        build = self.get(id)
        head = {"do": "act", "name": name, "params": params}
        return self.jobs.start(name, lambda job: self._act(build, head, job))

    async def _act(self, build: Build, head: Head, job: Job) -> Answer:
        worker = await self._unless_cancelled(job, self.ready(build))
        build.acting += 1
        try:
            async with self._lanes.measuring(job):
                return await self._stoppable(worker, head, job)
        except Died:
            build.crashes += 1
            raise
        finally:
            build.acting -= 1
            build.forget_answers()

    async def _stoppable(self, worker: WorkerProcess | LocalWorker, head: Head, job: Job) -> Answer:
        """Runs an action. If it is cancelled, it gets some time to stop before its process is
        ended.
        """
        work = asyncio.ensure_future(worker.ask(head, job.say))
        work.add_done_callback(forget)
        try:
            return await job.race(_awaited(work), self.limits.seconds)
        except (Cancelled, Failure):
            if not work.done():
                worker.cancel()
                await asyncio.wait({work}, timeout=_GRACE_S)
            if not work.done():
                worker.kill()
            raise
        except BaseException:
            worker.kill()
            raise

    async def _unless_cancelled(
        self, job: Job, work: Coroutine[Any, Any, WorkerProcess | LocalWorker]
    ) -> WorkerProcess | LocalWorker:
        task = asyncio.ensure_future(work)
        task.add_done_callback(forget)
        stop = asyncio.ensure_future(job.cancel_asked.wait())
        await asyncio.wait({task, stop}, return_when="FIRST_COMPLETED")
        stop.cancel()
        if not task.done():
            task.cancel()
            raise Cancelled
        return task.result()

    # --- comparing ---

    def compare(self, a: str, b: str, time: bool, numerics: bool) -> Job:
        """Returns the job that compares two builds: an earlier one with the same options, if it did
        not fail.

        Raises `Failure`: I211, I215.
        """
        pair = self.get(a), self.get(b)
        head = {"do": "diff", "time": time, "numerics": numerics}
        known, asked = self._diffs.get((a, b), (None, {}))
        if known is None or asked != head or known.outcome in ("failed", "cancelled"):
            known = self.jobs.start(f"{a} and {b}", lambda job: self._compare(pair, head, job))
            self._diffs[a, b] = known, head
        self._last_diff = known
        return known

    async def compared(self, a: str = "", b: str = "") -> Answer:
        """Returns the comparison of two builds when it is done; by default, of the last one
        started.

        Raises `Failure` with its error; I211 if there is none.
        """
        job = self._diffs.get((a, b), (None, {}))[0] if a else self._last_diff
        if job is None:
            what = f"builds {a[:20]!r} and {b[:20]!r} were" if a else "no builds were"
            hint = "POST api/diff starts a comparison"
            raise Failure(InputError("I211", f"{what} not compared", hint=hint), 404)
        return await result_of(job, wait=True)

    async def _compare(self, pair: tuple[Build, Build], head: Head, job: Job) -> Answer:
        job.say("waiting for both builds", None)
        for build in pair:
            await self._unless_cancelled(job, self.ready(build))
        async with self._lanes.measuring(job):
            for build in pair:
                await self._written(build)
            local = next((build for build in pair if build.session is not None), None)
            worker = await (self._new_worker() if local is None else self._worker_of(local))
            try:
                head = {**head, "a": pair[0].head, "b": pair[1].head}
                return await job.race(worker.ask(head, job.say), self.limits.seconds)
            finally:
                worker.kill()


async def _awaited(work: asyncio.Future[Answer]) -> Answer:
    return await asyncio.shield(work)


async def result_of(job: Job, *, wait: bool = False) -> Answer:
    """Returns a job's result.

    Raises `Failure` with its error, I220 (cancelled), I224 (not yet done).
    """
    if wait:
        await job.ended()
    if job.outcome is None:
        raise Failure(InputError("I224", f"job {job.id} is not done"), 409)
    if job.outcome == "cancelled":
        raise Failure(InputError("I220", f"job {job.id} was cancelled"), 409)
    if job.error is not None:
        raise Failure(job.error)
    assert job.result is not None
    return job.result


def default_memory_bytes() -> int:
    """Returns the default limit of a process's mapped memory: most of the memory of the machine or,
    if less, of its container (cgroup v2).
    """
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # none, or "max"
        most = min(most, int(system_text(_MEMORY_QUOTA)))
    return int(_MEMORY_SHARE * most)


def build_name(place: int) -> str:
    """Returns the name of the build with this number: a, b, ..., z, ba, bb, ..."""
    name = ""
    while True:
        place, letter = divmod(place, len(ascii_lowercase))
        name = ascii_lowercase[letter] + name
        if not place:
            return name
