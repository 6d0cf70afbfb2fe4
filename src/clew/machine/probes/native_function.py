"""Small kernels in LLVM text that measure the machine, and functions to run them on several
threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm

from clew.machine.target import host, initialize_llvm


class NativeFunction:
    """A function in LLVM text, compiled for this machine and callable. Releases the GIL."""

    def __init__(self, text: str, name: str, *arguments: Any) -> None:
        """Compiles `text` and finds the function `name` in it; `arguments` are ctypes types."""
        initialize_llvm()
        here = host()
        machine = llvm.Target.from_triple(here.triple).create_target_machine(
            cpu=here.cpu, features=here.features, opt=3
        )
        module = llvm.parse_assembly(text)
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, machine)  # it owns the code
        self._engine.finalize_object()
        address = self._engine.get_function_address(name)
        self._call = ctypes.CFUNCTYPE(None, *arguments)(address)

    def __call__(self, *arguments: Any) -> None:
        """Runs it."""
        self._call(*arguments)


def _stay_on(number: int) -> None:
    """Pins the calling thread to one of the CPUs it may use."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[number % len(allowed)]})


def seconds_together(jobs: Sequence[Callable[[], None]]) -> float:
    """Returns the seconds from the first start to the last end of jobs, each on its own thread.

    Each thread is pinned to its own CPU if the system allows it: for jobs of a millisecond, the
    scheduler may leave two on one CPU.
    """
    start = threading.Barrier(len(jobs))
    spans: list[tuple[float, float]] = []

    def work(job: Callable[[], None], number: int) -> None:
        _stay_on(number)
        start.wait()
        began = time.perf_counter()
        job()
        spans.append((began, time.perf_counter()))

    workers = [threading.Thread(target=work, args=(job, n)) for n, job in enumerate(jobs)]
    try:
        for worker in workers:
            worker.start()
    except BaseException:
        start.abort()  # those that have started end
        raise
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(begin for begin, _ in spans)
