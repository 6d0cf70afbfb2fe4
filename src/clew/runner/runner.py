"""The interface of runners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Failed:
    """Takes the place of a result if the process that worked on an item died."""

    reason: str


class Runner(Protocol):
    """Applies a function to items; one at a time on each machine if it measures."""

    @property
    def is_remote(self) -> bool:
        """Whether functions and items go to other processes."""
        ...

    @property
    def places(self) -> int:
        """The number of items that are worked on at once."""
        ...

    @property
    def sharing(self) -> int:
        """The largest number of items that one machine works on at once."""
        ...

    def run(
        self, work: Callable[[Item], Result], items: Iterator[Item]
    ) -> Iterator[tuple[Item, Result | Failed]]:
        """Yields items and their results as they are ready.

        The next item is taken from `items` when a machine is free, so it may depend on the results
        so far. An exception of `work` is raised here.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Returns the common facts of the machines (`runner.machine`)."""
        ...

    def close(self) -> None:
        """Ends the connection to other machines."""
        ...
