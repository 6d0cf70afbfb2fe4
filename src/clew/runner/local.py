"""Runs work in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from clew.runner.machine import machine_facts
from clew.runner.runner import Failed
from clew.support.alone import alone
from clew.support.interrupts import lasting_interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")


class LocalRunner:
    """This process."""

    is_remote = False
    places = 1
    sharing = 1

    def __init__(self, measures: bool = True) -> None:
        """If the work `measures`, processes of this machine take turns."""
        self._turn: Callable[[], AbstractContextManager[None]] = alone if measures else nullcontext

    def run(
        self, work: Callable[[Item], Result], items: Iterator[Item]
    ) -> Iterator[tuple[Item, Result | Failed]]:
        """Yields items and their results, in order."""
        with lasting_interrupts() as check:
            for item in items:
                check()
                with self._turn():
                    result = work(item)
                yield item, result
            check()

    def facts(self) -> dict[str, Any]:
        """Returns the facts of this machine."""
        return machine_facts()

    def close(self) -> None:
        """Does nothing: there is no connection."""
