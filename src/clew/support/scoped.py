"""Context variables that are set inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def scoped(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Sets a variable, which has a default, inside the block. Ctrl-C cannot leave it set: it is set
    inside `try`, and the first call of `finally` restores it.
    """
    before = variable.get()
    try:
        variable.set(value)
        yield
    finally:
        variable.set(before)
