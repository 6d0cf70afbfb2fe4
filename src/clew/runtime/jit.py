"""Linking of objects into this process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from clew.codegen.artifact import ObjectCode
from clew.support.errors import CompileError
from clew.support.locks import Lock

_numbers = itertools.count()
_initialized = False
_init_lock = Lock()


_llvm_lock: Any = ffi.lib._lock


class _UninterruptedLock(type(_llvm_lock)):  # type: ignore[misc]
    """llvmlite's lock. Its `__enter__` and `__exit__` are written in Python: Ctrl-C may come after
    one has acquired or before the other has released, and no other thread could then use LLVM.
    `with` looks both up before it enters, and here finds those of the lock inside, written in C.
    """

    @property
    def __enter__(self) -> Any:
        return super().__enter__ if self._cblist else self._lock.__enter__

    @property
    def __exit__(self) -> Any:
        return super().__exit__ if self._cblist else self._lock.__exit__


def _close(self: Any) -> None:
    """Frees a string of LLVM. llvmlite's method forgets it after freeing it, so that the destructor
    frees it again after an interrupt in between.
    """
    pointer, self._ptr = self._ptr, None
    if pointer is not None:
        if self._owned:
            ffi.lib.LLVMPY_DisposeString(pointer)
        del self._as_parameter_


if {"_lock", "_cblist"} <= set(vars(_llvm_lock)):  # llvmlite's own form
    _llvm_lock.__class__ = _UninterruptedLock
_example: Any = ffi.OutputString()  # once it is released, it has no parameter
if {"_ptr", "_owned", "_as_parameter_"} == set(vars(_example)):
    ffi.OutputString.close = _close
# llvmlite admits one thread at a time to LLVM. A fork waits until no thread is in LLVM: otherwise
# the child would inherit a locked lock and an inconsistent LLVM.
os.register_at_fork(
    before=_llvm_lock.__enter__,
    after_in_parent=lambda: _llvm_lock.__exit__(None, None, None),
    after_in_child=lambda: _llvm_lock.__exit__(None, None, None),
)


def _initialize() -> None:
    global _initialized
    with _init_lock:
        if not _initialized:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            _initialized = True


class Library:
    """Linked objects. Addresses are valid while the library is alive.

    Undefined symbols are looked up in `imports` (name to address), then in this process (the C
    library's memory and math functions).

    Errors: C003 if an object is damaged, or a symbol is missing or defined twice.
    """

    def __init__(self, objects: Sequence[ObjectCode], imports: Mapping[str, int] | None = None):
        _initialize()
        name = f"clew-{next(_numbers)}"  # LLVM never reuses a name
        self._addresses: dict[str, int] = {}
        if not objects:
            return
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code.data)
            for symbol in code.symbols:
                builder.export_symbol(symbol)
        for symbol, address in (imports or {}).items():
            builder.import_symbol(symbol, address)
        builder.add_current_process()
        # One engine per library: a shared one keeps some memory of every library it ever held.
        # JITLink maps an object's sections side by side. The default linker maps them one by one:
        # in a process with gigabytes mapped, they can lie further apart than a 32-bit displacement
        # reaches, and LLVM aborts the process.
        engine = llvm.create_lljit_compiler(suppress_errors=True, use_jit_link=True)
        try:
            self._tracker: Any = builder.link(engine, name)
        except RuntimeError as error:
            raise CompileError(
                "C003",
                f"compiled code could not be linked: {error}",
                hint="clear the disk cache with `clew cache clear`; if that does not help, "
                "this is a bug in clew",
            ) from error
        # After the tracker, so that it is also released after the tracker.
        self._engine: Any = engine
        self._addresses = {
            symbol: self._tracker[symbol] for code in objects for symbol in code.symbols
        }

    def address(self, symbol: str) -> int:
        """Returns the address of a function."""
        return self._addresses[symbol]

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._addresses

    @property
    def symbols(self) -> tuple[str, ...]:
        """The functions that the library defines."""
        return tuple(self._addresses)
