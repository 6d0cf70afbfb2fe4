"""Time limits for code that may hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from clew.support.background import start_thread

_T = TypeVar("_T")


class Hung(Exception):
    """A function has not returned in time."""


def within(seconds: float, function: Callable[..., _T], *args: Any) -> _T:
    """Returns the result of a function, which runs in a separate thread.

    Raises `Hung` if it has not returned after `seconds`. The thread then continues to run, but does
    not keep the process from ending. Without another thread, the function has no limit. Other
    exceptions are those of the function.
    """
    found: list[_T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(function(*args))
        except BaseException as error:  # raised again in the caller's thread
            failed.append(error)

    thread = start_thread(work, "clew-watched")
    if thread is None:
        return function(*args)
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise Hung
    return found[0]
