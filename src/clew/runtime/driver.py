"""The loaded native driver; `codegen.driver.driver` describes its functions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from clew.codegen.artifact import ObjectCode
from clew.codegen.driver import call as native_call
from clew.codegen.driver import driver as native
from clew.codegen.driver.call import call_text
from clew.codegen.driver.driver import EXPORTS, driver_text, supports_threads
from clew.machine.needs import has_steady_counter, process_triple
from clew.runtime.cache import NATIVE, Cache, default_cache
from clew.runtime.interpreter import python_functions
from clew.runtime.library import Library
from clew.support.addresses import address_of
from clew.support.dataclass import dataclass
from clew.support.installed import versions
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.locks import once

# The oldest CPU of an architecture that can run the driver, so that one object suits every machine.
_BASELINE_CPUS = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}

# The clock and the counter are read some nanoseconds apart: a millionth of this duration.
_BASELINE_NS = 20_000_000
_ROUGH_BASELINE_NS = 1_000_000
_EMPTY_STEPS, _EMPTY_RUNS = 2000, 20


class Driver:
    """The driver's functions, called with addresses."""

    def __init__(self, code: ObjectCode, library: Library, threads: bool):
        self.object = code
        self.address = library.address  # keeps the code in memory as well
        self.supports_threads = threads
        self.worker_address = self.address("clew_worker")
        self.call_address = self.address("clew_call") if "clew_call" in library else None
        pointer, count = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, result: type | None, *arguments: type) -> Callable[..., int]:
            return ctypes.CFUNCTYPE(result, *arguments)(library.address(name))

        status = ctypes.c_int32
        self.run_steps = function("clew_run_steps", status, pointer, count, pointer, pointer)
        self.run_segment = function("clew_run_segment", status, pointer, pointer, pointer, pointer)
        self.go_on = ctypes.CFUNCTYPE(count, pointer, count)(library.address("clew_go_on"))
        self.patch_loop = function("clew_patch_loop", None, pointer, pointer)
        self.pool_lock = function("clew_pool_lock", status, pointer)
        self.pool_stop = function("clew_pool_stop", None, pointer)
        self._clock = function("clew_clock", None, pointer)
        self._began = self._now()

    def _now(self) -> tuple[int, int]:
        """Returns the clock's nanoseconds, and the ticks at the same moment."""
        now = np.zeros(2, np.int64)
        self._clock(address_of(now))
        return int(now[0]), int(now[1])

    def ns_per_tick(self, baseline_ns: int = _BASELINE_NS) -> float:
        """Returns the duration of a watch's tick, by the clock since the driver was loaded, which
        the call makes at least `baseline_ns` ago by waiting.

        It is accurate to a millionth at the default.
        """
        while True:
            (began_ns, began), (now_ns, now) = self._began, self._now()
            if now_ns - began_ns >= baseline_ns and now > began:
                return (now_ns - began_ns) / (now - began)
            time.sleep(baseline_ns / 5e9)

    def ticks_of(self, duration_ns: float) -> int:
        """Returns the ticks of a duration, to a few percent."""
        return max(1, round(duration_ns / self._rough_ns_per_tick))

    @functools.cached_property
    def _rough_ns_per_tick(self) -> float:
        return self.ns_per_tick(_ROUGH_BASELINE_NS)

    @functools.cached_property
    def stamp_ns(self) -> float:
        """The time that a stamp adds to a step, measured with empty steps."""
        steps = np.zeros((_EMPTY_STEPS, native.STEP_BYTES // 8), np.int64)
        ticks = np.zeros(_EMPTY_STEPS, np.int64)
        counts = np.zeros(_EMPTY_STEPS, np.int64)
        watch = np.array([address_of(ticks), 0, _EMPTY_STEPS, 0, 0, address_of(counts)], np.int64)
        table, count = address_of(steps), _EMPTY_STEPS
        taken: dict[int | None, float] = {}
        for _ in range(_EMPTY_RUNS):
            for given in (None, address_of(watch)):
                start = time.perf_counter_ns()
                self.run_steps(table, count, None, given)
                took = (time.perf_counter_ns() - start) / count
                taken[given] = min(taken.get(given, took), took)
        return max(0.0, taken[address_of(watch)] - taken[None])


@dataclass(frozen=True)
class Baseline:
    """A target with the instructions that all supported CPUs of a platform have, so that its
    objects run on each of them.
    """

    triple: str
    cpu: str
    features: str = ""


Submit: TypeAlias = Callable[[str, Baseline], Callable[[], bytes]]
"""Has another process compile LLVM IR to an object; returns a function that waits for it."""
# Objects that other processes are compiling, by key.
_begun: Final[dict[str, Callable[[], bytes]]] = {}
_asked: Final[list[bool]] = []  # not empty once the driver's objects have been requested


def _baseline() -> Baseline:
    triple = process_triple()
    return Baseline(triple, _BASELINE_CPUS.get(triple.split("-")[0], ""))


def _key(text: str, pipeline: str, target: Baseline | None = None) -> str:
    more = [] if pipeline == "quick" else [pipeline]
    more += [] if target is None else [target.triple, target.cpu, target.features]
    parts = (*versions(("llvmlite",)), process_triple(), text, *more)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() + NATIVE


def _driver_text() -> str:
    return driver_text(process_triple(), has_steady_counter())


def begin_driver(submit: Submit) -> None:
    """Submits the driver's modules that the cache lacks; `driver` waits for their objects. Does
    nothing in a second call, or if the driver has already been requested.
    """
    if _asked:
        return
    _asked.append(True)
    for text in (_driver_text(), call_text()):
        key = _key(text, "quick")
        if default_cache().get(key) is None:
            _begun[key] = submit(text, _baseline())


def driver_object(cache: Cache) -> ObjectCode:
    """Returns the driver's object for this platform, from the cache if possible."""
    return native_object(_driver_text(), EXPORTS, cache)


def native_object(
    text: str,
    exports: tuple[str, ...],
    cache: Cache,
    pipeline: str = "quick",
    target: Baseline | None = None,
) -> ObjectCode:
    """Returns the object of a module of the runtime itself, from the cache if possible. It runs on
    all supported CPUs of this platform, or on those with the instructions of `target`.
    """
    key = _key(text, pipeline, target)
    data = cache.get(key)
    if data is None:
        begun = _begun.pop(key, None)
        data = _emitted(text, pipeline, target or _baseline()) if begun is None else begun()
        cache.put(key, data)
    return ObjectCode(key, data, exports)


def _emitted(text: str, pipeline: str, target: Baseline) -> bytes:
    with LOADING, held_interrupts():
        from clew.codegen.worker import emit_object  # noqa: PLC0415

    return emit_object(text, target.triple, target.cpu, target.features, pipeline)


@once
def driver() -> Driver:
    """Returns this process's driver, of which there is one, because its code is never unloaded."""
    _asked.append(True)
    imports = addresses_of("syscall", "clock_gettime", "memmove", "sched_getcpu")
    code = driver_object(default_cache())
    objects, python = [code], python_functions()
    if python is not None:
        objects.append(native_object(call_text(), native_call.EXPORTS, default_cache()))
        imports |= python
    return Driver(code, Library(objects, imports), supports_threads(process_triple()))


def addresses_of(*names: str) -> dict[str, int]:
    """Returns the addresses of functions of the C library."""
    process, found = ctypes.CDLL(None), dict[str, int]()
    for name in names:
        address = ctypes.cast(getattr(process, name), ctypes.c_void_p).value
        assert address is not None
        found[name] = address
    return found
