"""Compiles LLVM modules to objects in worker processes.

llvmlite serializes its calls with one lock, so modules compile in parallel only in separate
processes. Processes also isolate the user's process from LLVM's fatal errors. The callers of
`submit` and `result` drive all communication; there is no thread.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import selectors
import struct
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

import llvmlite
import llvmlite.binding as llvm

import clew.codegen.llvm_locks  # noqa: F401  (before the first call of LLVM)
from clew.codegen import worker as worker_module
from clew.support.errors import ClewWarning, CompileError, warn
from clew.support.folders import is_ours, make_private, scratch_file, temporary_folder, why_not_ours
from clew.support.locks import Lock, once
from clew.support.settings import settings
from clew.support.writing import write_text

_LENGTH = struct.Struct("<I")
# With LLVM's whole pass pipeline, a worker leaks about 80 KB per module.
_MODULES_PER_WORKER = 500
_ATTEMPTS = 2
_ATTEMPTS_TO_START = 3
# The longest time that a worker takes to start, on a busy machine; then it is given up.
_START_PATIENCE_S = 120.0
# After a worker could not be started, the others do its work for this time.
_RETRY_S = 60.0
_CHUNK_BYTES = 1 << 18
# One thread at a time polls the workers; this is the longest that another waits for it.
_WAIT_S = 0.02


class CodeTarget(Protocol):
    """The target of native code. The CPU name must be known to LLVM."""

    @property
    def triple(self) -> str:
        """LLVM's target triple."""
        ...

    @property
    def cpu(self) -> str:
        """LLVM's name of the CPU."""
        ...

    @property
    def features(self) -> str:
        """LLVM's feature string, such as `+avx2,+fma`."""
        ...


class PendingObject:
    """A module in a worker; `result` waits for it."""

    def __init__(self, compiler: ObjectCompiler, text: str, target: CodeTarget, pipeline: str):
        self.text = text
        self.attempts = 0
        self.object: bytes | None = None
        self.error = ""
        self._compiler = compiler
        self._fields = (target.triple, target.cpu, target.features, pipeline)

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return self.object is not None or bool(self.error)

    @property
    def request(self) -> bytes:
        """The message to a worker."""
        body = "\0".join((*self._fields, self.text)).encode()
        return _LENGTH.pack(len(body)) + body

    def compile_here(self) -> PendingObject:
        """Compiles in this process, if no other can be started, and returns the module itself."""
        _configure_here()
        triple, cpu, features, pipeline = self._fields
        try:
            self.object = worker_module.emit_object(self.text, triple, cpu, features, pipeline)
        except RuntimeError as error:
            self.error = str(error)
        return self

    def result(self) -> bytes:
        """Returns the object.

        Errors: C001 if LLVM rejects the module or crashes on it; the module's text is saved.
        """
        self._compiler.wait_for(self)
        if self.object is None:
            raise CompileError(
                "C001",
                f"LLVM could not compile a generated module: {self.error}",
                hint=f"this is a bug in clew; the module is kept in {_keep(self.text)}",
            )
        return self.object


@once
def _configure_here() -> bool:
    worker_module.configure_llvm()
    return True


def toolchain(pipeline: str = "quick") -> str:
    """Returns all that determines an object's bytes besides module and target; for cache keys."""
    version = ".".join(map(str, llvm.llvm_version_info))
    options = f"{pipeline}, misched off, unknown lines, pic, small"
    return f"llvm {version}, llvmlite {llvmlite.__version__}, {options}"


def _keep(text: str) -> Path:
    """Saves a module for a bug report, and returns its path."""
    name = f"failed-{hashlib.sha256(text.encode()).hexdigest()[:16]}.ll"
    for place in (_cache_folder, lambda: temporary_folder("clew-failed-")):
        try:
            path = place() / name
            write_text(path, text, mode=0o600)
        except OSError:
            continue
        return path
    return Path(os.devnull)


def _cache_folder() -> Path:
    """Returns the folder of the cache. Errors: OSError if others may write to it."""
    folder = settings().cache_dir
    make_private(folder)
    if why_not_ours(folder) or not is_ours(folder.stat()):
        raise OSError("others may write to it")
    return folder


def _python_command() -> list[str]:
    """Returns the command of a worker: Python without site packages, except llvmlite."""
    places = [str(Path(worker_module.__file__).parent), str(Path(llvmlite.__file__).parents[1])]
    program = f"import sys; sys.path += {places!r}; import worker; worker.serve()"
    return [sys.executable, "-I", "-S", "-c", program]


class _Worker:
    """One worker process, and the bytes in transit to and from it."""

    def __init__(self) -> None:
        self.log = _scratch()  # closed in `stop`
        self.process = subprocess.Popen(
            _python_command(),
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
        self.compiled = 0
        self.jobs: deque[PendingObject] = deque()  # the first is being compiled
        self._outgoing = bytearray()
        self._incoming = bytearray()

    def send(self, job: PendingObject) -> None:
        """Queues a module behind those in transit."""
        self.jobs.append(job)
        self._outgoing += job.request
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


class ObjectCompiler:
    """A pool of worker processes. Safe to use from several threads and after a fork.

    Ctrl-C may come at any time. No module is lost, since `_unfinished` has all of them; workers
    whose state an interrupted exchange has left unknown are replaced in the next one.
    """

    def __init__(self, jobs: int):
        self._count = jobs
        self._started_in = os.getpid()
        self._reset()
        _compilers.add(self)

    def _reset(self) -> None:
        self._lock = Lock()
        self._workers: list[_Worker] = []
        self._queue: deque[PendingObject] = deque()
        # All modules to be compiled, in their order: those of the queue and of the workers.
        self._unfinished: dict[PendingObject, None] = {}
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

    def warm_up(self) -> None:
        """Starts the workers ahead of the first module."""
        with self._lock:
            if self._exchanging:
                self._restart()
            while len(self._workers) < self._count and time.monotonic() >= self._start_after_s:
                self._start_worker()

    def submit(self, text: str, target: CodeTarget, pipeline: str = "quick") -> PendingObject:
        """Passes a module to the workers and returns at once."""
        job = PendingObject(self, text, target, pipeline)
        with self._lock:
            self._unfinished[job] = None
            self._queue.append(job)
            self.warm_up()
            self._exchange(0.0, depth=2)
        return job

    def wait_for(self, *jobs: PendingObject) -> None:
        """Returns when at least one of `jobs` is done."""
        while not any(job.done for job in jobs):
            with self._lock:
                if not any(job.done for job in jobs):
                    self.warm_up()
                    self._exchange(_WAIT_S, depth=1)

    def compile(
        self,
        texts: Sequence[str],
        target: CodeTarget,
        on_done: Callable[[int, bytes], None] | None = None,
        pipeline: str = "quick",
    ) -> list[bytes]:
        """Returns the objects of modules, in their order.

        `on_done(index, object)` is called as soon as an object is ready, in any order.

        Errors: C001 for the first module that fails; the workers still finish the others.
        """
        jobs = [self.submit(text, target, pipeline) for text in texts]
        waiting = dict(enumerate(jobs))
        while waiting:
            ready = [index for index, job in waiting.items() if job.done]
            if not ready:
                self.wait_for(*waiting.values())
            for index in ready:
                data = waiting.pop(index).result()
                if on_done is not None:
                    on_done(index, data)
        return [job.result() for job in jobs]

    def close(self) -> None:
        """Stops all workers. A later `submit` starts new ones."""
        if self._started_in != os.getpid():
            return
        with self._lock:
            self._restart()

    def _start_worker(self) -> None:
        try:
            self._workers.append(_Worker())
        except OSError as error:  # processes, descriptors or memory are forbidden or exhausted
            self._go_on_without(error.strerror or str(error))

    def _go_on_without(self, why: str) -> None:
        """Does without further workers for a while, after one could not be started."""
        self._start_after_s = time.monotonic() + _RETRY_S
        count = len(self._workers)
        others = f"{count} of {self._count} processes" if count else "this process alone"
        _warn_once(why, others)

    def _exchange(self, timeout_s: float, depth: int) -> None:
        """Feeds the workers up to `depth` modules each, and collects finished ones.

        A caller that will not return soon feeds two modules, so that no worker idles meanwhile. A
        caller that waits here feeds one, so that no module queues behind another while a worker is
        free.
        """
        if self._exchanging:
            self._restart()
        self._exchanging = True
        self._feed(depth)
        while self._queue and not self._workers:
            self._finish(self._queue[0].compile_here())
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

    def _finish(self, job: PendingObject) -> None:
        self._unfinished.pop(job, None)

    def _feed(self, depth: int) -> None:
        for level in range(1, depth + 1):
            for worker in self._workers:
                if self._queue and len(worker.jobs) < level:
                    worker.send(self._queue.popleft())

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
            worker.compiled += 1
            if reply[:1] == b"+":
                job.object = reply[1:]
            else:
                job.error = reply[1:].decode()
            worker.jobs.popleft()
            self._finish(job)
        if worker.compiled >= _MODULES_PER_WORKER and not worker.jobs:
            self._remove(worker)
            self._start_worker()

    def _bury(self, worker: _Worker) -> None:
        """Replaces a dead worker; the module that it was compiling is retried once."""
        words = worker.last_words()
        code = worker.process.wait()
        self._remove(worker)
        self._failed_starts += not worker.ready
        for place, job in enumerate(worker.jobs):
            job.attempts += worker.ready and place == 0
            if job.attempts >= _ATTEMPTS:
                job.error = f"the compiler process died (exit code {code}): {words}"
                self._finish(job)
        self._queue.extendleft(job for job in reversed(worker.jobs) if not job.done)
        if worker.ready or self._failed_starts < _ATTEMPTS_TO_START:
            self._start_worker()
            return
        if not self._workers and (code < 0 or _MEMORY.search(words)):
            # Compiling in this process would end it in the same way.
            raise CompileError(
                "C002",
                f"a compile worker did not start (exit code {code}): {words}",
                hint="give the process more memory (ulimit -v, the container's limit)",
            )
        self._go_on_without(": ".join([f"exit code {code}", *words.splitlines()[-1:]]))

    def _restart(self) -> None:
        """Stops all workers; their modules wait for new ones."""
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


@once
def shared_compiler() -> ObjectCompiler:
    """Returns this process's compiler, with the number of workers from the settings."""
    made = ObjectCompiler(settings().compile_jobs)
    atexit.register(made.close)
    return made


def _after_fork_in_child() -> None:
    for compiler in list(_compilers):
        compiler.after_fork()


_compilers: Final[weakref.WeakSet[ObjectCompiler]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)


def warm_up() -> None:
    """Starts the shared workers in the background."""
    shared_compiler().warm_up()


def submit(text: str, target: CodeTarget, pipeline: str = "quick") -> PendingObject:
    """Passes a module to the shared workers and returns at once."""
    return shared_compiler().submit(text, target, pipeline)


def compile_modules(
    texts: Sequence[str],
    target: CodeTarget,
    on_done: Callable[[int, bytes], None] | None = None,
    pipeline: str = "quick",
) -> list[bytes]:
    """Returns the objects of modules, in their order, compiled by the shared workers.

    Errors: C001 if LLVM rejects a module; C002 if no worker starts.
    """
    return shared_compiler().compile(texts, target, on_done, pipeline)
