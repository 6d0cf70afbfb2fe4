"""Threads that work in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(
    work: Callable[[], object], name: str, *, daemon: bool = True
) -> threading.Thread | None:
    """Starts a thread and returns it; None if the system starts no more threads. The end of the
    program does not wait for a daemon.
    """
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError:  # "can't start new thread": a limit of processes or of memory
        return None
    return thread
