"""A pool of worker processes that answer requests in bytes, one by one.

The callers of a pool drive all communication; there is no thread. A worker speaks the protocol of
`codegen.worker`.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Final

from clew.support.errors import ClewWarning, CompileError, warn
from clew.support.folders import scratch_file
from clew.support.locks import Lock

_LENGTH = struct.Struct("<I")
# With LLVM's whole pass pipeline, a worker leaks about 80 KB per module.
_REQUESTS_PER_WORKER = 500
_ATTEMPTS = 2
_ATTEMPTS_TO_START = 3
# The longest time that a worker takes to start, on a busy machine; then it is given up.
_START_PATIENCE_S = 120.0
# After a worker could not be started, the others do its work for this time.
_RETRY_S = 60.0
_CHUNK_BYTES = 1 << 18
# One thread at a time polls the workers; this is the longest that another waits for it.
_WAIT_S = 0.02


class Job:
    """A request to a worker, and its answer."""

    def __init__(self) -> None:
        self.attempts = 0
        self.is_killed = False  # the last attempt ended by SIGKILL, which no compiler sends itself
        self.is_taken_back = False
        self.answer: bytes | None = None
        self.error = ""

    @property
    def done(self) -> bool:
        """Whether there is an answer or an error."""
        return self.answer is not None or bool(self.error)

    @property
    def request(self) -> bytes:
        """The message to a worker."""
        raise NotImplementedError

    def do_here(self) -> None:
        """Finds the answer in this process, if no other can be started."""
        raise NotImplementedError


def python_command(places: Sequence[str], program: str) -> list[str]:
    """Returns the command of a program that finds modules in `places`, not in site packages."""
    places = list(dict.fromkeys(places))
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path += {places!r}; {program}"]


class _Worker:
    """One worker process, and the bytes in transit to and from it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.log = _scratch()  # closed in `stop`
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self.log is None else self.log,
        )
        self.started_s = time.monotonic()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests: int = self.process.stdin.fileno()
        self.replies: int = self.process.stdout.fileno()
        os.set_blocking(self.requests, False)
        os.set_blocking(self.replies, False)
        self.ready = False
        self.answered = 0
        self.jobs: deque[Job] = deque()  # the first is being answered
        self._outgoing = bytearray()
        self._incoming = bytearray()

    def send(self, job: Job) -> None:
        """Queues a request behind those in transit."""
        self.jobs.append(job)
        body = job.request
        self._outgoing += _LENGTH.pack(len(body)) + body
        self.flush()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for room in the pipe."""
        return bool(self._outgoing)

    def flush(self) -> None:
        """Writes as much as the pipe accepts. A dead worker is detected when it is read."""
        try:
            while self._outgoing:
                written = os.write(self.requests, self._outgoing[:_CHUNK_BYTES])
                del self._outgoing[:written]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._outgoing.clear()

    def read(self) -> list[bytes] | None:
        """Returns the complete replies received, or None if the worker is gone."""
        alive = True
        try:
            while alive:
                data = os.read(self.replies, _CHUNK_BYTES)
                self._incoming += data
                alive = bool(data)
        except BlockingIOError:
            pass
        replies = []
        while len(self._incoming) >= _LENGTH.size:
            stop = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
            if len(self._incoming) < stop:
                break
            replies.append(bytes(self._incoming[_LENGTH.size : stop]))
            del self._incoming[:stop]
        return replies if alive or replies else None

    def last_words(self) -> str:
        """Returns the end of the worker's standard error."""
        if self.log is None:
            return ""
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()[-2000:]

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        self.forget()

    def forget(self) -> None:
        """Closes this process's ends of the pipes; their numbers may soon be reused."""
        self._outgoing.clear()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                stream.close()


def _scratch() -> IO[bytes] | None:
    """Returns a file for a worker's standard error; None without room for temporary files."""
    try:
        return scratch_file()
    except OSError:
        return None


class WorkerPool:
    """A pool of at most `count` worker processes, which `command` starts. Safe to use from several
    threads and after a fork.

    Ctrl-C may come at any time. No job is lost, since `_unfinished` has all of them; workers whose
    state an interrupted exchange has left unknown are replaced in the next one.
    """

    # Whether this process cannot do the jobs when there is too little memory for a worker.
    needs_workers = True

    def __init__(self, count: int, command: Callable[[], Sequence[str]]) -> None:
        self.count = count
        self._command = command
        self._started_in = os.getpid()
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._lock = Lock()
        self._workers: list[_Worker] = []
        self._queue: deque[Job] = deque()
        # All jobs without an answer, in their order: those of the queue and of the workers.
        self._unfinished: dict[Job, None] = {}
        self._exchanging = False  # remains true if an exchange was interrupted
        self._failed_starts = 0
        self._start_after_s = 0.0  # when to start workers again, after one could not be started

    def after_fork(self) -> None:
        """Gives a forked child separate workers; the parent keeps its own."""
        for worker in self._workers:
            worker.forget()
            # Not this process's child: there is no need to wait for it.
            worker.process.returncode = 0
        unfinished = self._unfinished
        self._started_in = os.getpid()
        self._reset()
        self._unfinished = unfinished
        self._queue.extend(unfinished)

    def warm_up(self, count: int | None = None) -> None:
        """Starts workers ahead of the first job: `count`, or all."""
        most = self.count if count is None else min(count, self.count)
        with self._lock:
            if self._exchanging:
                self._restart()
            while len(self._workers) < most and time.monotonic() >= self._start_after_s:
                self._start_worker()

    def add(self, *jobs: Job) -> None:
        """Passes jobs to the workers and returns at once. Workers start as they are needed."""
        with self._lock:
            for job in jobs:
                self._unfinished[job] = None
                self._queue.append(job)
            busy = sum(bool(worker.jobs) for worker in self._workers)
            self.warm_up(busy + len(self._queue))
            self._exchange(0.0, depth=2)

    def take_back(self, job: Job) -> bool:
        """Whether no worker has a job yet; the pool then forgets it."""
        with self._lock:
            self._exchange(0.0, depth=2)
            job.is_taken_back = job in self._queue
            self.cancel([job])
            return job.is_taken_back

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Forgets those of some jobs that no worker has."""
        with self._lock:
            for job in jobs:
                if job in self._queue:
                    self._queue.remove(job)
                    self._finish(job)

    def wait_for(self, *jobs: Job) -> None:
        """Returns when at least one of `jobs` is done."""
        while not any(job.done for job in jobs):
            with self._lock:
                if not any(job.done for job in jobs):
                    self.warm_up(len(self._unfinished))
                    self._exchange(_WAIT_S, depth=1)

    def close(self) -> None:
        """Stops all workers. A later `add` starts new ones."""
        if self._started_in != os.getpid():
            return
        with self._lock:
            self._restart()

    def _start_worker(self) -> None:
        try:
            self._workers.append(_Worker(self._command()))
        except OSError as error:  # processes, descriptors or memory are forbidden or exhausted
            self._go_on_without(error.strerror or str(error))

    def _go_on_without(self, why: str) -> None:
        """Does without further workers for a while, after one could not be started."""
        self._start_after_s = time.monotonic() + _RETRY_S
        count = len(self._workers)
        others = f"{count} of {self.count} processes" if count else "this process alone"
        _warn_once(why, others)

    def _exchange(self, timeout_s: float, depth: int) -> None:
        """Feeds the workers up to `depth` jobs each, and collects answers.

        A caller that will not return soon feeds two, so that no worker idles meanwhile. A caller
        that waits here feeds one, so that no job queues behind another while a worker is free.
        """
        if self._exchanging:
            self._restart()
        self._exchanging = True
        self._feed(depth)
        while self._queue and not self._workers:
            self._queue[0].do_here()
            self._finish(self._queue[0])
            self._queue.popleft()
        stuck = [worker for worker in self._workers if worker.wants_write]
        for worker in self._readable(0.001 if stuck and timeout_s else timeout_s):
            self._take(worker)
        for worker in stuck:
            worker.flush()
        self._feed(depth)
        self._exchanging = False

    def _readable(self, timeout_s: float) -> list[_Worker]:
        """Returns the workers that have replied or ended, or take too long to start, after waiting
        for one.
        """
        with _Selector() as selector:  # needs no descriptor, which may be exhausted
            for worker in self._workers:
                selector.register(worker.replies, selectors.EVENT_READ, worker)
            found = [key.data for key, _ in selector.select(timeout_s if self._workers else 0.0)]
        now = time.monotonic()
        for worker in self._workers:
            late = not worker.ready and now - worker.started_s > _START_PATIENCE_S
            if late and worker not in found:
                worker.process.kill()
                worker.process.wait()
                found.append(worker)
        return found

    def _finish(self, job: Job) -> None:
        self._unfinished.pop(job, None)

    def _feed(self, depth: int) -> None:
        """Gives each worker up to `depth` jobs. The first is the next in the queue; one that waits
        behind it is the last, because callers add long jobs first. A worker that ended gets none:
        when several are killed at a time, a job of the first must not count as one of the next.
        """
        for level in range(1, depth + 1):
            for worker in self._workers:
                if self._queue and len(worker.jobs) < level and worker.process.poll() is None:
                    first = not worker.jobs
                    worker.send(self._queue.popleft() if first else self._queue.pop())

    def _take(self, worker: _Worker) -> None:
        replies = worker.read()
        if replies is None:
            self._bury(worker)
            return
        for reply in replies:
            if not worker.ready:
                worker.ready = True
                self._failed_starts = 0
                continue
            job = worker.jobs[0]
            worker.answered += 1
            if reply[:1] == b"+":
                job.answer = reply[1:]
            else:
                job.error = reply[1:].decode()
            worker.jobs.popleft()
            self._finish(job)
        if worker.answered >= _REQUESTS_PER_WORKER and not worker.jobs:
            self._remove(worker)
            self._start_worker()

    def _bury(self, worker: _Worker) -> None:
        """Replaces a dead worker; the job that it was at is retried once."""
        words = worker.last_words()
        code = worker.process.wait()
        self._remove(worker)
        self._failed_starts += not worker.ready
        for place, job in enumerate(worker.jobs):
            job.attempts += worker.ready and place == 0
            if job.attempts >= _ATTEMPTS:
                job.is_killed = code == -signal.SIGKILL
                job.error = f"the compiler process died (exit code {code}): {words}"
                self._finish(job)
        self._queue.extendleft(job for job in reversed(worker.jobs) if not job.done)
        if worker.ready or self._failed_starts < _ATTEMPTS_TO_START:
            self._start_worker()
            return
        out_of_memory = code < 0 or _MEMORY.search(words)
        if self.needs_workers and not self._workers and out_of_memory:
            # Compiling in this process would end it in the same way.
            raise CompileError(
                "C002",
                f"a compile worker did not start (exit code {code}): {words}",
                hint="give the process more memory (ulimit -v, the container's limit)",
            )
        self._go_on_without(": ".join([f"exit code {code}", *words.splitlines()[-1:]]))

    def _restart(self) -> None:
        """Stops all workers; their jobs wait for new ones."""
        self._exchanging = True
        for worker in self._workers:
            worker.stop()
        self._workers.clear()
        self._queue = deque(job for job in self._unfinished if not job.done)
        self._exchanging = False

    def _remove(self, worker: _Worker) -> None:
        worker.stop()
        self._workers.remove(worker)


_MEMORY: Final = re.compile(r"memory|failed to map", re.IGNORECASE)
_Selector: Final = getattr(selectors, "PollSelector", selectors.DefaultSelector)
_warned: Final[set[str]] = set()


def _warn_once(why: str, where: str) -> None:
    if not _warned:
        _warned.add(why)
        warn(
            ClewWarning(
                "C004",
                f"a compile worker could not be started ({why}); clew compiles in {where}",
                hint="see the limits of the process: ulimit -a",
            )
        )


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.after_fork()


_pools: Final[weakref.WeakSet[WorkerPool]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)
