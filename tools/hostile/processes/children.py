"""Forked processes that have to end well, and in time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any


def forked(work: Callable[[], Any]) -> int:
    """Returns the number of a process that was forked to do some work, and ends in 0 if it can."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
    return child


def in_child(work: Callable[[], Any], patience_s: float = 30.0) -> None:
    """Runs work in a forked process, which has to succeed in time."""
    assert ended(forked(work), patience_s) == 0, "the child failed"


def ended(child: int, patience_s: float) -> int:
    """Returns how a forked process ended; kills it and fails if it takes too long."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end")
