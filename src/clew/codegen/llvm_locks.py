"""Makes llvmlite's lock and strings safe for Ctrl-C and forks. Whatever calls LLVM imports it."""

from __future__ import annotations

import os
from typing import Any

from llvmlite.binding import ffi

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
