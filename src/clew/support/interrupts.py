"""Interrupts (Ctrl-C) that are not lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def lasting_interrupts() -> Iterator[Callable[[], None]]:
    """Yields a function that raises KeyboardInterrupt if one was lost in the block.

    Python ignores exceptions in destructors and in the callbacks of weak references: Ctrl-C during
    one of them has no effect. A loop that should end calls the function once a round. Only the main
    thread gets interrupts; a handler of the program itself stays as it is.
    """
    pending = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        pending = True
        raise KeyboardInterrupt

    def check() -> None:
        nonlocal pending
        if pending:
            pending = False
            raise KeyboardInterrupt

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield check
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
