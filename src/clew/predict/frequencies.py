"""How often each block of a kernel's LLVM text runs.

The text computes all bounds and guards from loop counters and constants. So a sample of iterations,
drawn evenly from the whole grid, gives the trip count of each loop and the share of iterations that
enter each block, such as the block for the interior of a padded image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from clew.codegen.artifact import EntryPoint
from clew.ir.dims import typical

Array = np.ndarray[Any, Any]

_SAMPLES: Final = 256
_UNKNOWN_TRIPS: Final = 8.0
_UNKNOWN_SHARE: Final = 0.5
_LABEL: Final = re.compile(r"^(\w+):")
_VALUE: Final = re.compile(
    r"  (%\w+) = (add|sub|mul|udiv|sdiv|urem|srem|and|or|xor|shl|lshr|ashr)"
    r"(?: nuw| nsw| exact| disjoint)* i(?:64|1) (\S+), (\S+)"
)
_COMPARE: Final = re.compile(r"  (%\w+) = icmp (\w+) i64 (\S+), (\S+)")
_SELECT: Final = re.compile(r"  (%\w+) = select i1 (\S+), i(?:64|1) (\S+), i(?:64|1) (\S+)")
_PHI: Final = re.compile(r"  (%\w+) = phi i64 \[ (\S+), %\w+ \], \[ (%\w+), %\w+ \]")
_BRANCH: Final = re.compile(r"  br i1 (\S+), label %(\w+), label %(\w+)")
_JUMP: Final = re.compile(r"  br label %(\w+)")
_COMPUTED: Final = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "lshr": np.right_shift,
    "ashr": np.right_shift, "udiv": np.floor_divide, "sdiv": np.floor_divide,
    "urem": np.remainder, "srem": np.remainder,
}  # fmt: skip
_COMPARED: Final = {
    "slt": np.less, "ult": np.less, "sgt": np.greater, "ugt": np.greater, "sle": np.less_equal,
    "ule": np.less_equal, "sge": np.greater_equal, "uge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip


@dataclass
class Frequencies:
    """The trip count of each loop by the number of its label; and for each block or loop, by its
    label, the share of iterations of the loop around it that enter it.
    """

    trips: dict[int, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)


def frequencies(text: str, entries: Sequence[EntryPoint]) -> dict[str, Frequencies]:
    """Returns the frequencies of each entry point of a kernel's text, by its symbol."""
    known = {entry.symbol: entry for entry in entries}
    found: dict[str, Frequencies] = {}
    lines: list[str] = []
    symbol = ""
    for line in text.splitlines():
        if line.startswith("define "):
            symbol, lines = line.split("@", 1)[1].split("(", 1)[0].strip('"'), []
        elif line == "}":
            if symbol in known:
                found[symbol] = _Sampled(lines, known[symbol]).read()
            symbol = ""
        elif symbol:
            lines.append(line.split(", !dbg", 1)[0])
    return found


class _Sampled:
    """Runs a function for a sample of iterations."""

    def __init__(self, lines: list[str], entry: EntryPoint) -> None:
        self.lines = lines
        self.rng = np.random.default_rng(0)
        pieces, rows = typical(entry.grid), sum(typical(n) for n, _ in entry.lines) or 1
        self.values: dict[str, Any] = {"%begin": 0, "%end": pieces, "%first": 0, "%last": rows}
        self.bounds: dict[str, tuple[str, str]] = {}
        self.steps: dict[str, int] = {}
        compares: dict[str, tuple[str, str]] = {}
        for line in lines:
            if match := _COMPARE.match(line):
                compares[match[1]] = match[3], match[4]
            elif (match := _VALUE.match(line)) and match[2] == "add" and match[4].isdigit():
                self.steps[match[1]] = int(match[4])
            elif match := _BRANCH.match(line):
                self.bounds[match[2]] = compares.get(match[1], ("", ""))

    def read(self) -> Frequencies:
        """Returns the frequencies."""
        found = Frequencies()
        everywhere = np.ones(_SAMPLES, bool)
        inside: dict[str, Array] = {"entry": everywhere}
        loops: list[tuple[str, Array]] = [("", everywhere)]
        label, mask = "entry", everywhere
        for line in self.lines:
            if at := _LABEL.match(line):
                label = at[1]
                mask = inside.get(label, mask)
                found.shares[label] = _share(mask, loops[-1][1])
                if label.startswith("loop"):
                    loops.append((label, mask))
            elif match := _PHI.match(line):
                self._count(match, label, mask, found)
            elif match := _BRANCH.match(line):
                taken, other = match[2], match[3]
                if any(taken == name for name, _ in loops):  # the end of a loop
                    while loops[-1][0] != taken:
                        loops.pop()
                    inside[other] = loops.pop()[1]
                else:
                    truth = self._truth(match[1])
                    _enter(inside, taken, mask & truth)
                    _enter(inside, other, mask & ~truth)
            elif match := _JUMP.match(line):
                _enter(inside, match[1], mask)
            else:
                self._compute(line)
        return found

    def _count(self, match: re.Match[str], label: str, mask: Array, found: Frequencies) -> None:
        """Draws iterations of a loop, and stores its trip count."""
        name, start, following = match.groups()
        compared, bound = self.bounds.get(label, ("", ""))
        first, last = self._value(start), self._value(bound)
        step = self.steps.get(following, 1)
        if compared != following or first is None or last is None:
            found.trips[int(label[4:] or 0)] = _UNKNOWN_TRIPS
            return
        trips = np.maximum(-((np.asarray(first) - last) // step), 1) + np.zeros(_SAMPLES, np.int64)
        found.trips[int(label[4:] or 0)] = float(trips[mask].mean()) if mask.any() else 1.0
        # Each part of a counter's range is drawn equally often.
        even = (self.rng.permutation(_SAMPLES) + 0.5) / _SAMPLES
        drawn = np.floor(even * trips).astype(np.int64)
        self.values[name] = first + step * drawn

    def _value(self, text: str) -> Any:
        text = text.rstrip(",")
        if text.lstrip("-").isdigit():
            return int(text)
        if text in ("true", "false"):
            return text == "true"
        return self.values.get(text)

    def _truth(self, text: str) -> Array:
        value = self._value(text)
        if value is None:
            return self.rng.random(_SAMPLES) < _UNKNOWN_SHARE
        return np.asarray(value, bool) & np.ones(_SAMPLES, bool)

    def _compute(self, line: str) -> None:
        if match := _VALUE.match(line):
            name, op, *operands = match.groups()
            a, b = map(self._value, operands)
            if a is not None and b is not None and not (op[1:] in ("div", "rem") and not np.all(b)):
                self.values[name] = _COMPUTED[op](a, b)
        elif match := _COMPARE.match(line):
            name, op, *operands = match.groups()
            a, b = map(self._value, operands)
            if a is not None and b is not None:
                self.values[name] = _COMPARED[op](a, b)
        elif match := _SELECT.match(line):
            name, *operands = match.groups()
            c, a, b = map(self._value, operands)
            if c is not None and a is not None and b is not None:
                self.values[name] = np.where(c, a, b)


def _enter(inside: dict[str, Array], label: str, mask: Array) -> None:
    inside[label] = inside[label] | mask if label in inside else mask


def _share(mask: Array, around: Array) -> float:
    return float(mask.sum() / max(1, around.sum()))
