"""Deterministic automata of patterns, with limits on their size and on the work to build them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any, Final

import numpy as np

from clew.ops.data.regex.classes import Bytes, byte_ranges
from clew.ops.data.regex.syntax import (
    Characters,
    Choice,
    Edge,
    Node,
    Repeat,
    Sequence,
    Unsupported,
)
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]

_MOST_PLACES: Final = 4000
_MOST_STATES: Final = 1024
_MOST_WORK: Final = 200_000  # steps


@dataclass
class _Places:
    """A nondeterministic automaton: for each place, moves by ranges of bytes, and moves without a
    byte: always, at the beginning of the text, and at its end.
    """

    moves: list[list[tuple[int, int, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    at_begin: list[list[int]] = field(default_factory=list)
    at_end: list[list[int]] = field(default_factory=list)
    entered: int = 0

    def new(self) -> int:
        """Returns a new place."""
        if len(self.moves) >= _MOST_PLACES:
            raise Unsupported
        for table in (self.moves, self.free, self.at_begin, self.at_end):
            table.append([])
        return len(self.moves) - 1

    def enter(self, node: Node, begin: int) -> int:
        """Enters a node from a place on, and returns the place behind it."""
        self.entered += 1  # nodes without a place of their own, too, take time
        if self.entered > _MOST_PLACES:
            raise Unsupported
        match node:
            case Sequence(parts):
                for part in parts:
                    begin = self.enter(part, begin)
                return begin
            case Choice(parts):
                end = self.new()
                for part in parts:
                    first = self.new()
                    self.free[begin].append(first)
                    self.free[self.enter(part, first)].append(end)
                return end
            case Edge(at_end):
                end = self.new()
                (self.at_end if at_end else self.at_begin)[begin].append(end)
                return end
            case Repeat():
                return self._repeat(node, begin)
            case Characters(ranges):
                end = self.new()
                self._bytes(byte_ranges(ranges), begin, end, {})
                return end
        raise AssertionError

    def _repeat(self, node: Repeat, begin: int) -> int:
        for _ in range(node.least):
            begin = self.enter(node.part, begin)
        if node.most is None:
            first, end = self.new(), self.new()
            self.free[begin].append(first)
            self.free[first].append(end)
            self.free[self.enter(node.part, first)].append(first)
            return end
        end = self.new()
        self.free[begin].append(end)
        for _ in range(node.most - node.least):
            first = self.new()
            self.free[begin].append(first)
            begin = self.enter(node.part, first)
            self.free[begin].append(end)
        return end

    def _bytes(
        self, some: list[Bytes], begin: int, end: int, known: dict[tuple[Bytes, ...], int]
    ) -> None:
        """Enters ranges of bytes; places with the same rest before them are one."""
        rests: dict[tuple[int, int], list[Bytes]] = {}
        for ranges in some:
            rests.setdefault(ranges[0], []).append(ranges[1:])
        for (low, high), rest in rests.items():
            if rest == [()]:
                self.moves[begin].append((low, high, end))
                continue
            key = tuple(rest)
            if key not in known:
                known[key] = self.new()
                self._bytes(rest, known[key], end, known)
            self.moves[begin].append((low, high, known[key]))

    def closed(self, places: Iterable[int], begin: bool, end: bool) -> frozenset[int]:
        """Returns places and those that they lead to without a byte."""
        found = set(places)
        stack = list(found)
        while stack:
            place = stack.pop()
            for table in (self.free, *[self.at_begin] * begin, *[self.at_end] * end):
                for to in table[place]:
                    if to not in found:
                        found.add(to)
                        stack.append(to)
        return frozenset(found)


def automaton(tree: Node) -> tuple[Array, int, int]:
    """Returns the automaton of a tree: the next state by state and byte (`u16[n, 256]`), the first
    state, and the number from which on states accept. State 0 accepts nothing, and all bytes lead
    back to it.

    Errors: Unsupported for more than the bounds.
    """
    places = _Places()
    start = places.new()
    last = places.enter(tree, start)
    columns, bounds = _columns(places)
    work = 0
    # The first state is apart: only there the text begins.
    sets = [places.closed([start], begin=True, end=False)]
    accepts = [last in places.closed([start], begin=True, end=True)]
    numbers: dict[frozenset[int], int] = {}
    nexts: list[list[int]] = []
    while len(nexts) < len(sets):
        to: list[set[int]] = [set() for _ in bounds]
        for place in sets[len(nexts)]:
            for low, high, target in places.moves[place]:
                for column in range(columns[low], columns[high] + 1):
                    to[column].add(target)
                work += 1 + columns[high] - columns[low]
        row = []
        for targets in to:
            key = frozenset(targets)
            if key not in numbers:
                closed = places.closed(key, begin=False, end=False)
                work += len(closed)
                numbers[key] = len(sets)
                sets.append(closed)
                accepts.append(last in places.closed(key, begin=False, end=True))
            row.append(numbers[key])
        nexts.append(row)
        if len(sets) > _MOST_STATES or work > _MOST_WORK:
            raise Unsupported
    return _numbered(np.array(nexts), np.array(accepts), columns)


def _columns(places: _Places) -> tuple[list[int], list[int]]:
    """Returns the column of each byte, so that bytes in one column lead to the same places, and the
    first byte of each column.
    """
    begins = {0}
    for moves in places.moves:
        for low, high, _ in moves:
            begins |= {low, high + 1}
    bounds = sorted(begins - {256})
    columns: list[int] = []
    for byte in range(256):
        columns.append(columns[-1] + (byte in begins) if columns else 0)
    return columns, bounds


def _numbered(nexts: Array, accepts: Array, columns: list[int]) -> tuple[Array, int, int]:
    """Returns an automaton with its states in order: one for all that accept nothing, then those
    that do not accept yet, then those that accept.
    """
    alive = accepts.copy()
    while True:
        more = alive | alive[nexts].any(1)
        if (more == alive).all():
            break
        alive = more
    numbers = np.zeros(len(nexts), np.int64)
    waiting, accepting = (alive & ~accepts).nonzero()[0], accepts.nonzero()[0]
    numbers[waiting] = 1 + np.arange(len(waiting))
    numbers[accepting] = 1 + len(waiting) + np.arange(len(accepting))
    rows = np.zeros((1 + len(waiting) + len(accepting), 256), np.uint16)
    for state in (*waiting, *accepting):
        rows[numbers[state]] = numbers[nexts[state]][columns]
    return rows, int(numbers[0]), 1 + len(waiting)
