"""The native driver, loaded: see `codegen.native` for what its functions do."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable

import llvmlite
import llvmlite.binding as llvm

from clew.codegen.artifact import ObjectCode
from clew.codegen.native import EXPORTS, driver_text, supports_threads
from clew.codegen.worker import emit_object
from clew.runtime.cache import Cache, default_cache
from clew.runtime.jit import Library

# The oldest CPU of an architecture that can run it: one object then serves every machine.
_BASELINE_CPUS = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}


class Driver:
    """The driver's functions, to be called with addresses."""

    def __init__(self, code: ObjectCode, library: Library, threads: bool):
        self.object = code
        self.address = library.address  # which also keeps the code in memory
        self.supports_threads = threads
        self.worker_address = self.address("clew_worker")
        pointer, count = ctypes.c_void_p, ctypes.c_int64

        def function(name: str, result: type | None, *arguments: type) -> Callable[..., int]:
            return ctypes.CFUNCTYPE(result, *arguments)(library.address(name))

        status = ctypes.c_int32
        self.run_steps = function("clew_run_steps", status, pointer, count, pointer, pointer)
        self.run_segment = function("clew_run_segment", status, pointer, pointer, pointer, pointer)
        self.pool_lock = function("clew_pool_lock", status, pointer)
        self.pool_stop = function("clew_pool_stop", None, pointer)
        self.pause = function("clew_pause", None, count)


def driver_object(cache: Cache) -> ObjectCode:
    """Returns the driver's object for this platform, from the cache where it is there."""
    return native_object(driver_text(llvm.get_process_triple()), EXPORTS, cache)


def native_object(text: str, exports: tuple[str, ...], cache: Cache) -> ObjectCode:
    """Returns the object of a module of the run time's own, from the cache where it is there."""
    triple: str = llvm.get_process_triple()
    parts = (llvmlite.__version__, triple, text)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    data = cache.get(key)
    if data is None:
        cpu = _BASELINE_CPUS.get(triple.split("-")[0], "")
        data = emit_object(text, triple, cpu, "")
        cache.put(key, data)
    return ObjectCode(key, data, exports)


@functools.cache
def driver() -> Driver:
    """Returns this process's driver."""
    imports = addresses_of("syscall", "clock_gettime")
    code = driver_object(default_cache())
    return Driver(code, Library([code], imports), supports_threads(llvm.get_process_triple()))


def addresses_of(*names: str) -> dict[str, int]:
    """Returns where functions of the C library are."""
    process, found = ctypes.CDLL(None), dict[str, int]()
    for name in names:
        address = ctypes.cast(getattr(process, name), ctypes.c_void_p).value
        assert address is not None
        found[name] = address
    return found
