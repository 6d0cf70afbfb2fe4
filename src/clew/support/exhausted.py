"""Coded errors for exhausted resources: memory, recursion depth, threads, files, disk space."""

from __future__ import annotations

import errno
import functools
import re
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from clew.support.errors import ClewError, CompileError

P = ParamSpec("P")
T = TypeVar("T")

_REFUSED: Final = {
    getattr(errno, name)
    for name in ("EAGAIN", "EDQUOT", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EROFS")
    if hasattr(errno, name)
}

# CPython's words where an allocation failed and the code that met this raised no error.
_UNSET: Final = "error return without exception set"

# What the dynamic linker, and llvmlite in its place, say where memory is short.
_UNLOADED: Final = "map segment|allocate memory|Could not find/load shared object"


class OutOfMemory(CompileError, MemoryError):
    """Memory does not suffice. It is also a `MemoryError`."""


class TooDeep(CompileError, RecursionError):
    """A value is nested too deeply. It is also a `RecursionError`."""


def exhausted(error: BaseException) -> ClewError | None:
    """Returns the coded error for an exception about an exhausted resource; None for others."""
    if isinstance(error, ClewError):
        return None
    lost = isinstance(error, SystemError) and str(error) == _UNSET
    # "can't allocate memory": torch's words
    if lost or isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        more = f": {error}" if str(error) else ""
        return OutOfMemory(
            "C160",
            f"this needs more memory than is available{more}",
            hint="see the limits of the process (ulimit -v, the container's); budgets bound it",
        )
    if isinstance(error, RecursionError):
        return TooDeep(
            "C161",
            "a value is nested too deeply for Python",
            hint="simplify it, or raise sys.setrecursionlimit",
        )
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return CompileError(
            "C162",
            "the system starts no more threads",
            hint="see the limits of the process (ulimit -u, the container's)",
        )
    if isinstance(error, (ImportError, OSError)) and re.search(_UNLOADED, str(error)):
        return OutOfMemory(
            "C160",
            f"a library cannot be loaded: {str(error)[:200]}",
            hint="see the limits of the process (ulimit -v, the container's)",
        )
    if isinstance(error, OSError) and error.errno in _REFUSED:
        place = f" ({error.filename})" if error.filename is not None else ""
        return CompileError(
            "C163",
            f"the system refused: {error.strerror}{place}",
            hint="see the free space of the disk (df) and the limits of the process (ulimit -a)",
        )
    return None


def coded_exhaustion(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for public functions: exhausted resources become coded errors.

    Errors: C160 (memory), C161 (depth), C162 (threads), C163 (files, disk).
    """

    @functools.wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except (MemoryError, RuntimeError, OSError, ImportError, SystemError) as error:
            coded = exhausted(error)
            if coded is None:
                raise
            raise coded from error

    return called
