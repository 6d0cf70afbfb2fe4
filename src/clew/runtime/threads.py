"""Pools of native threads that run the chunks of a kernel's grid.

The workers are plain pthreads that never run Python. They start when a pool is first used, end when
it is collected or the process exits, and start again in a forked child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
import warnings
import weakref
from collections.abc import Iterator

import numpy as np

from clew.codegen.driver import call as native_call
from clew.codegen.driver import driver as native
from clew.runtime.driver import driver
from clew.runtime.memory import aligned_bytes
from clew.support.addresses import address_of
from clew.support.errors import InputError
from clew.support.locks import Lock
from clew.support.settings import settings, usable_cpus

# The time that a waiting thread spins before it sleeps: longer than most serial steps of a model,
# and too short to be noticed as load. Waking a sleeping thread costs 20 to 60 µs.
_SPIN_NS = 200_000
_SPIN_OVERSUBSCRIBED_NS = 5_000
# In company (`codegen.driver.pool`), the time that a caller spins beyond that of two of its chunks,
# and the time after which workers give way. Linux stops a thread that shares its core after a slice
# of 0.7 to 3 ms, at the next tick (1 to 10 ms).
_COMPANY_SPIN_NS = 20_000
_STINT_NS = 1_500_000
# A spinning thread that has not looked for this time was off its core. Interrupts take less.
_GAP_NS = 50_000
_STOP_PATIENCE_S = 5.0
_START_PATIENCE_S = 5.0
_MOST_THREADS = 1024

# The only signal that workers do not block: the sampler's (`runtime.sampler`).
SAMPLING_SIGNAL: int | None = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else None


_Cell = ctypes.c_int64 * (native_call.POOL_CELL_BYTES // 8)


class _Workers:
    """The running threads of a pool and their shared memory."""

    def __init__(self, count: int, cell: ctypes.Array[ctypes.c_int64]):
        self._cell = cell
        self.block = aligned_bytes(native.POOL_BYTES + count * native.RECORD_BYTES, zero=True)
        self.block[:] = 0
        self.address = address_of(self.block)
        self.entry: int | None = self.address  # None once the workers must end
        self.process = os.getpid()
        self._handles = (ctypes.c_ulong * count)()  # written by pthread_create: none is lost
        words = self.block.view(np.int64)
        spin_ns = _SPIN_NS if count < usable_cpus() else _SPIN_OVERSUBSCRIBED_NS
        for word, ns in (
            (native.POOL_WORKER_SPIN, spin_ns),
            (native.POOL_CALLER_SPIN, spin_ns),
            (native.POOL_COMPANY_SPIN, min(spin_ns, _COMPANY_SPIN_NS)),
            (native.POOL_STINT, _STINT_NS),
            (native.POOL_GAP, _GAP_NS),
        ):
            words[word // 8] = driver().ticks_of(ns)
        words[native.POOL_SHARES // 8] = 2 * (count + 1)
        words[native.POOL_WORKERS // 8] = count
        _in_use[self.address] = self.block
        try:
            self._start(count)
        except BaseException:
            self.stop()
            cell[:] = [0, 0]
            raise

    def _start(self, count: int) -> None:
        words = self.block.view(np.int64)
        create = ctypes.CDLL(None).pthread_create
        with _signals_blocked():
            for number in range(1, count + 1):
                record = native.POOL_BYTES + (number - 1) * native.RECORD_BYTES
                words[(record + native.RECORD_POOL) // 8] = self.address
                words[(record + native.RECORD_THREAD) // 8] = number
                place = (number - 1) * ctypes.sizeof(ctypes.c_ulong)
                code = create(
                    ctypes.byref(self._handles, place),
                    None,
                    ctypes.c_void_p(driver().worker_address),
                    ctypes.c_void_p(self.address + record),
                )
                if code != 0:
                    self._handles[number - 1] = 0
                    warnings.warn(
                        f"clew runs with {number} of {count + 1} threads: {os.strerror(code)}",
                        stacklevel=2,
                    )
                    break

    @property
    def handles(self) -> list[int]:
        """The threads that were started, for pthread_join."""
        return [handle for handle in self._handles if handle]

    def thread_ids(self) -> list[int]:
        """Returns the operating system's ids of the threads, after all have started."""
        first = (native.POOL_BYTES + native.RECORD_ID) // 8
        started = len(self.handles)
        words = self.block.view(np.int64)[first :: native.RECORD_BYTES // 8][:started]
        deadline = time.monotonic() + _START_PATIENCE_S
        while not words.all() and time.monotonic() < deadline:
            time.sleep(0.0001)
        return [int(word) for word in words if word]

    def stop(self) -> None:
        """Ends the threads after any call in progress; the pool stays locked."""
        self.entry = None
        self._cell[:] = [0, 1]
        if self.process != os.getpid():
            return
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while not driver().pool_lock(self.address):
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        driver().pool_stop(self.address)
        join = ctypes.CDLL(None).pthread_join
        for handle in self.handles:
            join(ctypes.c_ulong(handle), None)
        _in_use.pop(self.address, None)


# The memory of threads that have not ended, by address.
_in_use: dict[int, np.ndarray] = {}


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Blocks signals except the sampler's. New threads inherit the mask; Python's threads get
    signals.
    """
    blocked = signal.valid_signals() - {SAMPLING_SIGNAL}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ThreadPool:
    """`threads` threads, including the caller's; one call at a time owns the workers.

    Other calls run on their own thread alone, with the same result.
    """

    def __init__(self, threads: int):
        assert threads >= 1, "a pool has at least the caller's thread"
        self.threads = threads if driver().supports_threads else 1
        self._lock = Lock()
        self._workers: _Workers | None = None
        # What native calls read instead of `address`: see `codegen.driver.call`.
        self.cell = _Cell()
        self._finalizer: weakref.finalize[[], ThreadPool] | None = None
        self._closed = False
        _pools.add(self)

    @property
    def address(self) -> int | None:
        """The pool argument of the driver's functions; None without workers. Starts them if
        necessary.
        """
        workers = self._workers
        if workers is not None:
            return workers.entry
        if self.threads == 1 or self._closed:
            return None
        with self._lock:
            if self._workers is None:
                made = _Workers(self.threads - 1, self.cell)
                # Also runs at exit: a thread must not outlive its code.
                self._finalizer = weakref.finalize(self, made.stop)
                self._workers = made
                self.cell[:] = [self._workers.entry or 0, 1]
            return self._workers.entry

    @property
    def worker_ids(self) -> list[int]:
        """The operating system's ids of the workers, which are started if necessary."""
        if self.address is None or self._workers is None:
            return []
        return self._workers.thread_ids()

    def close(self) -> None:
        """Ends the workers. Later calls run on their own thread only."""
        self._closed = True
        self.cell[:] = [0, 1]
        if self._finalizer is not None:
            self._finalizer()

    def after_fork(self) -> None:
        """Discards the parent's threads, which a forked child does not have."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._workers = None
        self._finalizer = None
        self.cell[:] = [0, 0]


_pools: weakref.WeakSet[ThreadPool] = weakref.WeakSet()
_shared: dict[int, ThreadPool] = {}


def shared_pool(threads: int) -> ThreadPool:
    """Returns the process's pool of that size, whose workers several models share."""
    return _shared.setdefault(threads, _shared.get(threads) or ThreadPool(threads))


def thread_count(threads: int | None) -> int:
    """Returns the number of threads for a model that requests `threads`, or the default.

    Errors: I012 if it is not a positive number.
    """
    count = settings().threads if threads is None else threads
    if not isinstance(count, int) or not 1 <= count <= _MOST_THREADS:
        raise InputError("I012", f"threads is {count!r}", hint="use a positive number of threads")
    return count


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
