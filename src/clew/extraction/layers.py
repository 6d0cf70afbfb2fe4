"""Layers between others, in graphs of any kind, given the layers that each layer reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from clew.support.errors import InputError

_LISTED: Final = 6


@dataclass(frozen=True)
class LayerGraph:
    """Numbered layers in the order of the graph, with the layers that each reads.

    `fixed` are layers that depend only on parameters: each part that reads them includes them.
    `aliases` are further names of layers. `inside` maps names in a branch, loop or function to the
    enclosing layer; `gone` maps the layers without a node to the reason.
    """

    names: Sequence[str]
    reads: Sequence[frozenset[int]]
    fixed: frozenset[int] = frozenset()
    aliases: Mapping[str, frozenset[int]] = field(default_factory=dict)
    inside: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> frozenset[int]:
        """Returns the layers with a name.

        Errors: I130 if no layer has the name, or it cannot be a boundary.
        """
        found = self._by_name.get(name)
        if found is not None:
            return found
        if name in self.inside:
            whole = self.inside[name]
            raise InputError(
                "I130",
                f"layer {name!r} is inside {whole!r}, which is not divided",
                hint=f"name {whole!r}",
            )
        if name in self.gone:
            raise InputError(
                "I130",
                f"layer {name!r} has no node in the graph: {self.gone[name]}",
                hint="name a layer before or after it",
            )
        close = difflib.get_close_matches(name, self._by_name, 3)
        known = close or list(self._by_name)[:_LISTED]
        raise InputError(
            "I130",
            f"no layer is named {name!r}",
            hint=f"{'near it' if close else 'there'} are {', '.join(known)}",
        )

    @cached_property
    def _by_name(self) -> Mapping[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        for number, name in enumerate(self.names):
            if name:
                found[name] = found.get(name, frozenset()) | {number}
        return {**self.aliases, **found}

    def between(self, start: Sequence[str], end: Sequence[str]) -> frozenset[int]:
        """Returns the layers on all paths from the `start` layers to the `end` layers, inclusive.
        Without a start, paths begin at the model's inputs; without an end, they lead to its
        outputs.

        Errors: I130 (unknown layers), I131 if there is no path, I132 if start and end are in the
        wrong order.
        """
        begins = {name: self.find(name) for name in start}
        ends = {name: self.find(name) for name in end}
        forward = self.after(_union(begins.values())) if start else self._all()
        backward = self.before(_union(ends.values())) if end else self._all()
        found = forward & backward
        for name, numbers in begins.items():
            if not numbers & backward:
                self._no_path(name, ends, _union(ends.values()), first=True)
        for name, numbers in ends.items():
            if not numbers & forward:
                self._no_path(name, begins, _union(begins.values()), first=False)
        if not found - self.fixed and not (start or end):
            raise InputError("I131", "the range is empty", hint="the model has no layers")
        return found

    def _no_path(
        self, name: str, others: Mapping[str, frozenset[int]], numbers: Collection[int], first: bool
    ) -> None:
        """Raises the error for layers without a path: I132 if a path leads the other way, else
        I131.
        """
        own = self.find(name)
        back = self.before(own) if first else self.after(own)
        listed = ", ".join(others)
        start, end = (name, listed) if first else (listed, name)
        if back & frozenset(numbers):
            raise InputError(
                "I132",
                f"the range from {start} to {end} is reversed: {end} comes before",
                hint="exchange them",
            )
        raise InputError(
            "I131",
            f"the range is empty: no path leads from {start} to {end}",
            hint="paths follow values from layer to layer: clew trace shows what a layer feeds",
        )

    def _all(self) -> frozenset[int]:
        return frozenset(range(len(self.names)))

    def after(self, numbers: Iterable[int]) -> frozenset[int]:
        """Returns layers and everything that depends on them."""
        return _reached(numbers, self._users)

    @cached_property
    def _users(self) -> Sequence[Sequence[int]]:
        """For each layer, the layers that read it."""
        users: list[list[int]] = [[] for _ in self.names]
        for number, reads in enumerate(self.reads):
            for read in reads:
                users[read].append(number)
        return users

    def before(self, numbers: Iterable[int]) -> frozenset[int]:
        """Returns layers and everything they depend on."""
        return _reached(numbers, self.reads)

    def between_them(self, numbers: frozenset[int]) -> list[int]:
        """Returns other layers on paths between these layers, in order."""
        return sorted((self.after(numbers) & self.before(numbers)) - numbers - self.fixed)

    def check_convex(self, numbers: frozenset[int]) -> None:
        """Checks that no values leave the layers and return.

        Errors: I133.
        """
        outside = self.between_them(numbers)
        if outside:
            names = [self.names[n] or f"#{n}" for n in outside]
            raise InputError(
                "I133",
                f"values leave these layers and return through {_listing(names)}",
                hint="include those layers, or split the part there",
            )


def _union(sets: Iterable[Collection[int]]) -> frozenset[int]:
    return frozenset(n for numbers in sets for n in numbers)


def _reached(numbers: Iterable[int], edges: Sequence[Collection[int]]) -> frozenset[int]:
    found = set(numbers)
    pending = list(found)
    while pending:
        for other in edges[pending.pop()]:
            if other not in found:
                found.add(other)
                pending.append(other)
    return frozenset(found)


def _listing(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
