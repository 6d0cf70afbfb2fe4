"""Permission to use matrix tiles (Intel AMX): Linux grants their registers on request."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Final

_ARCH_PRCTL: Final = 158  # the system call's number on x86-64
_REQUEST_FEATURE: Final = 0x1023
_TILE_DATA: Final = 18


@cache
def matrix_tiles_permitted() -> bool:
    """Whether this process may use matrix tiles; requests permission on the first call.

    The permission holds for all threads, including running ones, and survives `fork`. Source:
    Linux, Documentation/arch/x86/xstate.rst.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    call.restype = ctypes.c_long
    asked = [ctypes.c_long(n) for n in (_ARCH_PRCTL, _REQUEST_FEATURE, _TILE_DATA)]
    return bool(call(*asked) == 0)
