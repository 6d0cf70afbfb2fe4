"""Compiles LLVM modules to objects in worker processes.

llvmlite serializes its calls with one lock, so modules compile in parallel only in separate
processes. Processes also isolate the user's process from LLVM's fatal errors. The callers of
`submit` and `result` drive all communication; there is no thread.
"""

from __future__ import annotations

import atexit
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import llvmlite
import llvmlite.binding as llvm

import clew.codegen.llvm_locks  # noqa: F401  (before the first call of LLVM)
from clew.codegen import worker as worker_module
from clew.codegen.workers import Job, WorkerPool, python_command
from clew.support.errors import CompileError
from clew.support.folders import is_ours, make_private, temporary_folder, why_not_ours
from clew.support.locks import once
from clew.support.settings import settings
from clew.support.writing import write_text


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


class PendingObject(Job):
    """A module in a worker; `result` waits for it."""

    def __init__(self, compiler: ObjectCompiler, text: str, target: CodeTarget, pipeline: str):
        super().__init__()
        self.text = text
        self._compiler = compiler
        self._fields = (target.triple, target.cpu, target.features, pipeline)

    @property
    def request(self) -> bytes:
        return "\0".join((*self._fields, self.text)).encode()

    def do_here(self) -> None:
        """Compiles in this process."""
        _configure_here()
        triple, cpu, features, pipeline = self._fields
        try:
            self.answer = worker_module.emit_object(self.text, triple, cpu, features, pipeline)
        except RuntimeError as error:
            self.error = str(error)

    def result(self) -> bytes:
        """Returns the object.

        Errors: C001 if LLVM rejects the module or crashes on it; the module's text is saved. C002
        if the system or a user killed its workers.
        """
        self._compiler.wait_for(self)
        if self.is_killed:
            raise CompileError(
                "C002",
                f"{self.attempts} compile workers were killed one after the other",
                hint="give the process more memory (ulimit -v, the container's limit)",
            )
        if self.answer is None:
            raise CompileError(
                "C001",
                f"LLVM could not compile a generated module: {self.error}",
                hint=f"this is a bug in clew; the module is kept in {_keep(self.text)}",
            )
        return self.answer


@once
def _configure_here() -> bool:
    worker_module.configure_llvm()
    return True


def assembly_of(text: str, target: CodeTarget) -> str:
    """Returns the assembly of a module, compiled in this process; see `worker.emit_assembly`."""
    _configure_here()
    return worker_module.emit_assembly(text, target.triple, target.cpu, target.features)


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
    return python_command(places, "import worker; worker.serve()")


class ObjectCompiler(WorkerPool):
    """A pool of workers that compile modules."""

    def __init__(self, count: int) -> None:
        super().__init__(count, _python_command)

    def submit(self, text: str, target: CodeTarget, pipeline: str = "quick") -> PendingObject:
        """Passes a module to the workers and returns at once."""
        job = PendingObject(self, text, target, pipeline)
        self.add(job)
        return job

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


@once
def shared_compiler() -> ObjectCompiler:
    """Returns this process's compiler, with the number of workers from the settings."""
    made = ObjectCompiler(settings().compile_jobs)
    atexit.register(made.close)
    return made


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
