"""The addresses that LLVM text computes, as sums of loop counters times constants.

The text that clew writes computes every address from loop counters by additions, multiplications by
constants, and divisions of counters (of loops that the grid has joined to one).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

_VALUE: Final = re.compile(r"  (%\w+) = (mul|add|sub|udiv|urem|phi) i64 (.*)")
_POINTER: Final = re.compile(r"  (%\w+) = getelementptr ([^,]+), ptr (%\w+), i64 (\S+)")
_LOADED: Final = re.compile(r"  (%\w+) = load ptr, ptr (%\w+)")
ELEMENT_BITS: Final = {"i1": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16,
                       "bfloat": 16, "float": 32, "double": 64, "ptr": 64}  # fmt: skip
"""The bits that an element takes in memory, by LLVM's name of its type."""
SCRATCH: Final = -1
"""The number of the argument that stands for a kernel's own temporary memory."""


@dataclass(frozen=True)
class Counter:
    """A loop's counter, divided by `divisor`, and then the remainder by `modulus` (0: none)."""

    loop: int
    divisor: int = 1
    modulus: int = 0


Sum: TypeAlias = "dict[Counter | None, int]"
"""Factors of counters; that of None is the constant."""


@dataclass(frozen=True)
class Address:
    """An address in an argument's buffer, in bytes."""

    argument: int
    terms: tuple[tuple[Counter, int], ...]
    offset: int


class Addresses:
    """The values of one function's text, line by line."""

    def __init__(self) -> None:
        self._values: dict[str, Sum] = {}
        # The argument, and the bytes from its beginning.
        self._pointers: dict[str, tuple[int, Sum]] = {"%scratch": (SCRATCH, {})}
        self._arguments: dict[str, int] = {}

    def counts(self, name: str, start: str, loop: int, step: int) -> None:
        """Records the counter of a loop."""
        self._values[name] = _plus(self._value(start), {Counter(loop): step})

    def read(self, line: str) -> None:
        """Reads a line, unless it defines a loop's counter."""
        if found := _POINTER.match(line):
            name, element, base, index = found.groups()
            if base == "%args":
                self._arguments[name] = int(index) if index.isdigit() else SCRATCH
            elif base in self._pointers:
                argument, before = self._pointers[base]
                moved = _times(self._value(index), _element_bytes(element))
                self._pointers[name] = argument, _plus(before, moved)
        elif found := _VALUE.match(line):
            name, op, rest = found.groups()
            if op != "phi":
                left, right = rest.split(", ", 1)
                self._values[name] = _computed(op, self._value(left), self._value(right))
        elif (found := _LOADED.match(line)) and found[2] in self._arguments:
            self._pointers[found[1]] = self._arguments[found[2]], {}

    def of(self, pointer: str) -> Address:
        """Returns the address that a pointer holds."""
        argument, value = self._pointers.get(pointer, (SCRATCH, {}))
        terms = tuple((c, f) for c, f in value.items() if c is not None and f)
        return Address(argument, terms, value.get(None, 0))

    def _value(self, text: str) -> Sum:
        if text.lstrip("-").isdigit():
            return {None: int(text)}
        return self._values.get(text, {})


def _element_bytes(element: str) -> int:
    lanes = 1
    if element.startswith("<"):
        count, element = element[1:-1].split(" x ")
        lanes = int(count)
    return max(1, lanes * ELEMENT_BITS.get(element, 32) // 8)


def _plus(a: Sum, b: Sum) -> Sum:
    found = dict(a)
    for counter, factor in b.items():
        found[counter] = found.get(counter, 0) + factor
    return found


def _times(a: Sum, factor: int) -> Sum:
    return {counter: factor * own for counter, own in a.items()}


def _constant(a: Sum) -> int | None:
    return a.get(None, 0) if all(c is None or not f for c, f in a.items()) and a else None


def _computed(op: str, a: Sum, b: Sum) -> Sum:
    match op:
        case "add":
            return _plus(a, b)
        case "sub":
            return _plus(a, _times(b, -1))
        case "mul":
            if (factor := _constant(b)) is not None:
                return _times(a, factor)
            if (factor := _constant(a)) is not None:
                return _times(b, factor)
            return {}
    size = _constant(b)
    if not size or size < 0:
        return {}
    if (value := _constant(a)) is not None:
        return {None: value // size if op == "udiv" else value % size}
    counters = [c for c, f in a.items() if c is not None and f]
    if len(counters) != 1 or a[counters[0]] != 1:
        return {}
    (held,) = counters
    if op == "urem":
        return {Counter(held.loop, held.divisor, size): 1}
    return {Counter(held.loop, held.divisor * size, held.modulus // size): 1}
