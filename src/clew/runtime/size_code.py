"""Dimensions as instructions for the native driver (`codegen.driver.sizes`).

Sizes that data decide are known one after the other in a run. A *stage* of the code computes what
follows from the counts that are known by then: stage 0 needs none, stage 1 the first counts, and so
on. Intervals bound the value of each register, so that no instruction overflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from clew.codegen.driver import sizes as native
from clew.ir.dims import Atom, Dim, SymDim

Interval: TypeAlias = "tuple[int, int]"
_LARGEST: Final = (1 << 63) - 1
_OPERATIONS: Final = {
    "//": native.DIVIDE,
    "%": native.REMAINDER,
    "min": native.LEAST,
    "max": native.MOST,
}


class TooLarge(Exception):
    """Some value may not fit in 64 bits, or some divisor may not be positive."""


class Instruction(NamedTuple):
    """An operation on registers."""

    operation: int
    result: int
    left: int
    right: int


class SizeCode:
    """Code that is written dimension by dimension. Registers hold sizes, numbers and results.

    `known` has the values of sizes that are known before the run, and `limits`, for each stage, the
    largest value of each count that is known from then on; none is negative.
    """

    def __init__(self, known: Mapping[str, int], limits: Sequence[Mapping[str, int]]) -> None:
        self.initial: list[int] = []
        self.intervals: list[Interval] = []
        self.stage_of: list[int] = []
        self.stages: list[list[Instruction]] = [[] for _ in range(len(limits) + 1)]
        # The first register of the counts of each stage.
        self.first: list[int] = []
        self._names: dict[str, int] = {}
        self._numbers: dict[int, int] = {}
        self._registers: dict[Atom | SymDim | tuple[int, int, int], int] = {}
        for stage, counts in enumerate(limits, 1):
            self.first.append(len(self.initial))
            for name, limit in counts.items():
                self._names[name] = self._new(0, (0, limit), stage)
        self._known = known

    def register(self, dim: Dim) -> int:
        """Returns the register of a dimension.

        Errors: TooLarge, and KeyError for a name without value.
        """
        if isinstance(dim, int):
            return self._number(int(dim))
        found = self._registers.get(dim)
        if found is None:
            total = -1
            for monomial, coefficient in dim.terms:
                term = self._number(coefficient) if coefficient != 1 or not monomial else -1
                for atom, power in monomial:
                    for _ in range(power):
                        factor = self._atom(atom)
                        term = factor if term < 0 else self.binary(native.MULTIPLY, term, factor)
                total = term if total < 0 else self.binary(native.ADD, total, term)
            found = self._registers[dim] = self._number(0) if total < 0 else total
        return found

    def _atom(self, atom: Atom) -> int:
        if not atom.op:
            if atom.name in self._names:
                return self._names[atom.name]
            return self._number(self._known[atom.name])
        found = self._registers.get(atom)
        if found is None:
            left, right = map(self.register, atom.args)
            found = self._registers[atom] = self.binary(_OPERATIONS[atom.op], left, right)
        return found

    def binary(self, operation: int, left: int, right: int) -> int:
        """Returns the register of an operation's result. Errors: TooLarge."""
        key = (operation, left, right)
        if key in self._registers:
            return self._registers[key]
        interval = _result(operation, self.intervals[left], self.intervals[right])
        stage = max(self.stage_of[left], self.stage_of[right])
        if not stage:
            found = self._number(interval[0])
        else:
            found = self._new(0, interval, stage)
            self.stages[stage].append(Instruction(operation, found, left, right))
        self._registers[key] = found
        return found

    def _number(self, value: int) -> int:
        if value not in self._numbers:
            self._numbers[value] = self._new(value, (value, value), 0)
        return self._numbers[value]

    def _new(self, value: int, interval: Interval, stage: int) -> int:
        if max(-interval[0], interval[1]) > _LARGEST:
            raise TooLarge
        self.initial.append(value)
        self.intervals.append(interval)
        self.stage_of.append(stage)
        return len(self.initial) - 1


def _result(operation: int, left: Interval, right: Interval) -> Interval:
    """Returns an interval that contains all results. Errors: TooLarge."""
    (a, b), (c, d) = left, right
    if operation == native.ADD:
        return a + c, b + d
    if operation == native.MULTIPLY:
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    if operation == native.LEAST:
        return min(a, c), min(b, d)
    if operation == native.MOST:
        return max(a, c), max(b, d)
    if c <= 0:
        raise TooLarge
    if operation == native.DIVIDE:
        ends = (a // c, a // d, b // c, b // d)
        return min(ends), max(ends)
    assert operation == native.REMAINDER
    if a == b and c == d:
        return a % c, a % c
    if a >= 0 and b < c:
        return a, b
    return 0, d - 1
