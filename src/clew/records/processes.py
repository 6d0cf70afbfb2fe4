"""Names processes so that others can tell whether they still run."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path
from typing import Final

from clew.support.system import system_text

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_STARTED: Final = 19  # the field after the name and the state: ticks from boot to start


def this_process() -> str:
    """Returns the name of this process: host, boot, number, and the time of its start."""
    return f"{_host()}|{os.getpid()}|{_started(os.getpid())}"


def is_running(process: str) -> bool:
    """Whether a process may still be running. A process of another host counts as running."""
    host, _, rest = process.rpartition("|")
    host, _, number = host.rpartition("|")
    if host.partition("|")[0] != _host().partition("|")[0]:
        return bool(process)
    if host != _host() or not number.isdecimal():
        return False  # of an earlier boot
    return _started(int(number)) == rest != ""


@functools.cache
def _host() -> str:
    try:
        boot = system_text(_BOOT).strip()
    except (OSError, ValueError):
        boot = ""
    return f"{socket.gethostname()}|{boot}"


def _started(number: int) -> str:
    try:
        text = system_text(Path(f"/proc/{number}/stat"))
    except (OSError, ValueError):
        return ""
    fields = text.rpartition(")")[2].split()  # the name, in parentheses, may hold spaces
    return fields[_STARTED] if len(fields) > _STARTED and fields[0] not in "ZX" else ""
