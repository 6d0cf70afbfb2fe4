"""Samples the instruction pointers of threads that run kernels; see `codegen.driver.sampler` for
the native part.

Each thread has a timer of the operating system (`timer_create`, `SIGEV_THREAD_ID`) that signals
only this thread. The clock is `CLOCK_MONOTONIC`: its timers are exact, while those of a thread's
CPU time fire with the scheduler's tick, 250 times a second. A thread that waits for a CPU takes one
late signal, however many were due. The machine's load therefore affects the number of samples, but
not their positions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.codegen.artifact import ObjectCode
from clew.codegen.driver import sampler as native
from clew.machine.needs import process_triple
from clew.runtime.cache import default_cache
from clew.runtime.driver import addresses_of, driver, native_object
from clew.runtime.library import Library
from clew.runtime.threads import SAMPLING_SIGNAL, ThreadPool
from clew.support.addresses import address_of
from clew.support.errors import InputError
from clew.support.locks import Turn, once

INTERVAL_NS: Final = 50_000
"""Mean time between two samples of a thread. A signal costs 2 to 20 µs: a shorter interval would
mostly sample the handler.
"""

_MOST_INTERVAL_NS: Final = 500_000_000
_RING: Final = 1 << 16  # samples of a thread that fit until they are taken
_CLOCK_MONOTONIC, _SIGEV_THREAD_ID = 1, 4
_SA_SIGINFO, _SA_RESTART = 4, 0x10000000
_SIG_DFL, _SIG_IGN = 0, 1


@dataclass(frozen=True)
class Samples:
    """Samples in no particular order: the addresses of instructions (u64), the number of the
    running step (-1 for none), and the thread (0 for the caller's).

    `lost` counts samples that were overwritten before they were taken.
    """

    addresses: np.ndarray
    steps: np.ndarray
    threads: np.ndarray
    lost: int

    def __len__(self) -> int:
        return len(self.addresses)


@dataclass(frozen=True)
class Row:
    """Driver steps from `begin` to before `end`, run `repeats` times.

    `restore` is the address and size of memory that they both overwrite and read; before each
    repetition, it gets its initial contents.
    """

    begin: int
    end: int
    repeats: int = 1
    restore: tuple[int, int] = (0, 0)


def sampling_supported() -> bool:
    """Whether the platform is supported: Linux on x86-64 or AArch64."""
    return SAMPLING_SIGNAL is not None and native.platform_of(_triple()) is not None


class Sampler:
    """Samples the calling thread and the workers of a pool, within a `with` block.

    Only one can be active in a process, and one thread must enter and use it. A child forked
    meanwhile is not sampled.

    Errors: I117 if the platform is not supported or the system refuses timers; I118 if another
    sampler is active, or if the process itself uses the signal.
    """

    def __init__(self, pool: ThreadPool, interval_ns: int = INTERVAL_NS) -> None:
        assert 0 < interval_ns <= _MOST_INTERVAL_NS, "an interval of up to half a second"
        self._pool = pool
        self._interval_ns = interval_ns
        self._records: list[_Record] = []
        self._blocked = False
        self._mark = object()

    def __enter__(self) -> Sampler:
        if not sampling_supported():
            raise InputError(
                "I117",
                f"sampling is not supported on {_triple()}",
                hint="it needs Linux on x86-64 or AArch64; estimates by FLOPs and bytes do not",
            )
        functions = sampling_functions()
        try:
            if not _turn.begin(self._mark):
                raise InputError(
                    "I118",
                    "another sampler is active in this process",
                    hint="sample one model after the other",
                )
            _install(functions.handler)
            assert SAMPLING_SIGNAL is not None
            before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {SAMPLING_SIGNAL})
            self._blocked = SAMPLING_SIGNAL in before
            for thread in (threading.get_native_id(), *self._pool.worker_ids):
                self._records.append(_record(len(self._records)))
                self._records[-1].create_timer(thread, self._interval_ns)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __del__(self) -> None:
        self._end()  # if Ctrl-C came between the block and its beginning or end

    def _end(self) -> None:
        if _turn.holder is not self._mark:
            return  # it is not active; a forked child has no timers and has restored everything
        for record in self._records:
            record.delete_timer()
        self._records.clear()
        _uninstall()
        if self._blocked and SAMPLING_SIGNAL is not None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {SAMPLING_SIGNAL})
        del _turn.held[0]

    def run(self, steps_address: int, rows: Sequence[Row]) -> int:
        """Runs rows of driver steps of a table under sampling. Returns the number of steps that ran
        without the workers because another call held them.
        """
        kept = max((row.restore[1] for row in rows), default=0)
        room = np.empty(kept, np.uint8)
        table = np.array(
            [
                (r.begin, r.end, r.repeats, r.restore[0], address_of(room), r.restore[1])
                for r in rows
            ]
            or [(0,) * 6],
            np.int64,
        )
        assert table.itemsize * table.shape[1] == native.ROW_BYTES
        with self.ticking():
            alone: int = sampling_functions().run(
                driver().address("clew_run_steps"),
                driver().address("clew_go_on"),
                steps_address,
                address_of(table),
                len(rows),
                self._pool.address,
                _shared.step_address,
            )
        return alone

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """Samples while the block runs."""
        _shared.going[0] = 1
        try:
            for record in self._records:
                # A random delay after the start of the call.
                record.set_timer(random.randint(self._interval_ns // 2, self._interval_ns))
            yield
        finally:
            _shared.going[0] = 0  # an active handler may set its timer once more: one late sample
            for record in self._records:
                record.set_timer(0)

    def take(self) -> Samples:
        """Returns the samples since the last call."""
        parts = [record.take() for record in self._records]
        rows = np.concatenate([part for part, _ in parts])
        threads = np.repeat(np.arange(len(parts), dtype=np.int32), [len(p) for p, _ in parts])
        addresses = np.ascontiguousarray(rows[:, 0]).view(np.uint64)
        return Samples(addresses, rows[:, 1].copy(), threads, sum(lost for _, lost in parts))


class _Record:
    """The handler's data of one thread. Records are reused and never freed: a handler that the
    scheduler has interrupted may write long after its timer is gone.
    """

    def __init__(self, number: int) -> None:
        self._ring = np.zeros((_RING, native.SAMPLE_BYTES // 8), np.int64)
        self._words = np.zeros(native.RECORD_BYTES // 8, np.int64)
        self._read = 0
        self._timer: int | None = None
        self._words[native.RECORD_MASK // 8] = _RING - 1
        self._words[native.RECORD_RING // 8] = address_of(self._ring)
        self._words[native.RECORD_RANDOM // 8] = 0x2545F4914F6CDD1D + number
        self._words[native.RECORD_GOING // 8] = address_of(_shared.going)
        self._words[native.RECORD_STEP // 8] = _shared.step_address

    def create_timer(self, thread: int, interval_ns: int) -> None:
        self._words[native.RECORD_INTERVAL // 8] = interval_ns
        self._read = int(self._words[native.RECORD_TAKEN // 8])
        value = address_of(self._words)
        event = struct.pack("Qiii44x", value, SAMPLING_SIGNAL, _SIGEV_THREAD_ID, thread)
        made = ctypes.c_int()
        code = _system_call(_calls().timer_create, _CLOCK_MONOTONIC, event, ctypes.byref(made))
        if code != 0:
            reason = os.strerror(ctypes.get_errno())
            raise InputError(
                "I117",
                f"the system provides no timer for sampling: {reason}",
                hint="see the limit of pending signals: ulimit -i",
            )
        self._timer = made.value
        self._words[native.RECORD_TIMER // 8] = made.value

    def set_timer(self, wait_ns: int) -> None:
        spec = struct.pack("qqqq", 0, 0, 0, wait_ns)
        _system_call(_calls().timer_settime, self._timer, 0, spec, None)

    def delete_timer(self) -> None:
        if self._timer is not None:
            _system_call(_calls().timer_delete, self._timer)
        self._timer = None

    def take(self) -> tuple[np.ndarray, int]:
        """Returns the samples since the last call, and the number of lost ones."""
        taken = int(self._words[native.RECORD_TAKEN // 8])
        begin = max(self._read, taken - _RING)
        lost = begin - self._read
        self._read = taken
        return self._ring[np.arange(begin, taken) & (_RING - 1)], lost


class _Shared:
    """Words that every thread's handler reads, each on a separate cache line."""

    def __init__(self) -> None:
        self._words = np.zeros(24, np.int64)
        self.going = self._words[8:9]
        self._step = self._words[16:17]
        self._step[0] = native.NO_STEP
        self.step_address = address_of(self._step)


_shared = _Shared()
_records: list[_Record] = []
_turn: Final = Turn()


def _record(number: int) -> _Record:
    while len(_records) <= number:
        _records.append(_Record(len(_records)))
    return _records[number]


# --- the signal's action ---


class _Action(ctypes.Structure):
    """`struct sigaction` of the C library."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


# The action that the active sampler has replaced.
_before: list[_Action] = []


def _install(handler: int) -> None:
    before = _Action()
    _sigaction(None, before)
    if before.handler not in (None, _SIG_DFL):
        raise InputError(
            "I118",
            f"the process uses signal {SAMPLING_SIGNAL} itself, which sampling needs",
            hint="restore its default action while kernels are sampled",
        )
    # Uses the thread's own stack: an alternate one may be too small for the state of matrix units.
    _sigaction(_Action(handler=handler, flags=_SA_SIGINFO | _SA_RESTART), None)
    _before.append(before)


def _uninstall() -> None:
    """Restores the action. Ignoring the signal first discards a pending one, which would end the
    process by default.
    """
    while _before:
        _sigaction(_Action(handler=_SIG_IGN), None)
        _sigaction(_before.pop(), None)


def _sigaction(new: _Action | None, old: _Action | None) -> None:
    code = ctypes.CDLL(None).sigaction(
        SAMPLING_SIGNAL,
        None if new is None else ctypes.byref(new),
        None if old is None else ctypes.byref(old),
    )
    assert code == 0, "sigaction takes a real-time signal"


def _after_fork_in_child() -> None:
    _shared.going[0] = 0
    _uninstall()


os.register_at_fork(after_in_child=_after_fork_in_child)


# --- native code ---


@dataclass(frozen=True)
class Functions:
    """The sampler's native code, which is never unloaded, because a signal may come late."""

    code: ObjectCode
    library: Library
    handler: int
    run: Callable[..., int]
    divide: Callable[..., None]


@once
def sampling_functions() -> Functions:
    """Returns this process's sampler. The platform must be supported."""
    platform = native.platform_of(_triple())
    assert platform is not None, "asked for where there is none"
    text = native.sampler_text(platform)
    code = native_object(text, native.EXPORTS, default_cache())
    library = Library([code], addresses_of(*native.IMPORTS))
    pointer, count, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    run = ctypes.CFUNCTYPE(count, *[pointer] * 4, count, pointer, pointer)
    divide = ctypes.CFUNCTYPE(None, pointer, real, count)
    return Functions(
        code,
        library,
        library.address("clew_on_sample"),
        run(library.address("clew_run_sampled")),
        divide(library.address("clew_divide")),
    )


def _triple() -> str:
    triple = process_triple()
    return triple


def _calls() -> native.SystemCalls:
    platform = native.platform_of(_triple())
    assert platform is not None
    return platform.calls


def _system_call(number: int, *arguments: Any) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = call(ctypes.c_long(number), *plain)
    return result
