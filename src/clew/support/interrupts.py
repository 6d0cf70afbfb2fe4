"""Interrupts (Ctrl-C) that are not lost."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_AGAIN_AFTER_S: Final = 0.01
_arrived = 0


def _handle(number: int, frame: FrameType | None) -> None:
    global _arrived
    _arrived += 1
    raise KeyboardInterrupt


@contextmanager
def lasting_interrupts() -> Iterator[Callable[[], None]]:
    """Yields a function that raises KeyboardInterrupt if one has come in the block since its last
    call.

    Python ignores exceptions in destructors and in the callbacks of weak references: Ctrl-C during
    one of them has no effect. Libraries make other exceptions of it, such as an ImportError. A loop
    that should end calls the function once a round. Only the main thread gets interrupts; a handler
    of the program itself stays unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _nothing
        return
    before = signal.getsignal(signal.SIGINT)
    if before not in (signal.default_int_handler, _handle):
        yield _nothing
        return
    seen = _arrived

    def check() -> None:
        nonlocal seen
        if _arrived != seen:
            seen = _arrived
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, _handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Holds an interrupt that comes in the block until it ends.

    An import that an interrupt ends leaves half a module behind: another attempt would define again
    what the first one has defined. Only the main thread gets interrupts.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *args: came.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[-1])


@contextmanager
def repeated_interrupts() -> Iterator[None]:
    """Repeats, in the block, an interrupt that Python ignored, instead of printing it."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            again = threading.Timer(_AGAIN_AFTER_S, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _nothing() -> None:
    """Checks nothing."""
