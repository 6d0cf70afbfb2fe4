"""Maps a sample to a line of the loop nest.

A core works on hundreds of instructions at once and retires them in order. A signal handler gets
the address of the next instruction to retire. This is less precise than it seems, in two ways:

- *It may be the next instruction.* If an instruction delays all later ones, most x86 cores let it
  retire and interrupt then. A loop of dependent divisions shows what a machine does
  (`samples_are_late`).
- *Arithmetic is sampled at its end.* The beginning of a long expression is computed while the
  previous one still waits, and retires at once; the end, which had to wait, gets all samples. So
  the samples of arithmetic are spread evenly over all arithmetic of the same straight run of code
  (divisions and roots get more). Memory accesses keep their samples: the instruction that reads or
  writes is the one that waits.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from clew.codegen.disassemble import Instruction, disassemble
from clew.runtime.sampler import Sampler, sampling_functions
from clew.runtime.threads import ThreadPool
from clew.support.addresses import address_of

_DIVISIONS: Final = 2_000_000
_ENOUGH: Final = 100
_MOST_CALLS: Final = 20
_SLOW: Final = re.compile(r"\w*(?:div|sqrt)")
_SLOW_WEIGHT: Final = 8.0  # roughly how much longer than others they occupy a unit
_JUMP: Final = re.compile(r"(?:j\w+|ret|b|b\.\w+|br|cbn?z|tbn?z)\b")


class Blame:
    """Maps samples of an object to lines. `late`: whether samples give the next instruction."""

    def __init__(self, data: bytes, late: bool) -> None:
        listing = disassemble(data)
        self._instructions = listing.instructions
        self._targets = listing.targets
        self._addresses = [i.address for i in self._instructions]
        self._late = late

    @functools.cached_property
    def _runs(self) -> list[int]:
        """The number of each instruction's straight run: code entered only at its first instruction
        and left only at its last.
        """
        runs, number, function, open_ = [], -1, "", False
        for i in self._instructions:
            if not open_ or i.function != function or i.address in self._targets:
                number += 1
            runs.append(number)
            function, open_ = i.function, _JUMP.match(i.text) is None
        return runs

    @functools.cached_property
    def _arithmetic(self) -> list[dict[int, float]]:
        """For each run, each instruction's share of its arithmetic; the shares add up to 1."""
        weights: list[dict[int, float]] = [{} for _ in range(self._runs[-1] + 1)]
        for position, (i, run) in enumerate(zip(self._instructions, self._runs, strict=True)):
            if not _uses_memory(i):
                weights[run][position] = _SLOW_WEIGHT if _SLOW.match(i.text) else 1.0
        totals = [sum(w.values()) for w in weights]
        return [
            {position: w / total for position, w in own.items()}
            for own, total in zip(weights, totals, strict=True)
        ]

    def instructions(self, samples: Mapping[int, int]) -> dict[int, float]:
        """Returns the samples of each instruction, by position in the listing, given those at each
        offset in the code.
        """
        found: dict[int, float] = {}
        spread: Counter[int] = Counter()
        for offset, count in samples.items():
            position = self._position(offset)
            if _uses_memory(self._instructions[position]):
                found[position] = found.get(position, 0.0) + count
            else:
                spread[self._runs[position]] += count
        for run, count in spread.items():
            for position, share in self._arithmetic[run].items():
                found[position] = found.get(position, 0.0) + count * share
        return found

    def lines(self, samples: Mapping[int, int]) -> dict[int, float]:
        """Returns the samples of each line, given those at each offset in the code."""
        return self.lines_of(self.instructions(samples))

    def lines_of(self, instructions: Mapping[int, float]) -> dict[int, float]:
        """Returns the samples of each line, given those of instructions, by position."""
        found: dict[int, float] = {}
        for position, count in instructions.items():
            line = self._instructions[position].line
            found[line] = found.get(line, 0.0) + count
        return found

    def at(self, position: int) -> Instruction:
        """Returns the instruction at a position in the listing."""
        return self._instructions[position]

    def instruction(self, offset: int) -> Instruction:
        """Returns the instruction that caused the delay sampled at an offset."""
        return self._instructions[self._position(offset)]

    def _position(self, offset: int) -> int:
        position = max(0, bisect_right(self._addresses, offset) - 1)
        here = self._instructions[position]
        if not self._late or position == 0 or here.address in self._targets:
            # The instruction before a jump target is unknown, and jumps cause little delay.
            return position
        before = self._instructions[position - 1]
        return position - 1 if before.function == here.function else position


def _uses_memory(i: Instruction) -> bool:
    """Whether an instruction accesses memory other than constants beside the code."""
    return "[" in i.text and "[rip" not in i.text and not i.text.startswith(("lea", "nop"))


@functools.cache
def samples_are_late() -> bool:
    """Whether samples on this machine give the instruction after the one that caused the delay.
    Determined once, by about 10 ms of sampling.
    """
    functions = sampling_functions()
    listing = disassemble(functions.code.data).instructions
    loop = [i for i in listing if i.function == "clew_divide"]
    base = functions.library.address("clew_divide") - loop[0].address
    division = next(n for n, i in enumerate(loop) if "div" in i.text)
    number = np.array([1.0])
    at: Counter[int] = Counter()
    with Sampler(ThreadPool(1)) as sampler:
        for _ in range(_MOST_CALLS):
            with sampler.ticking():
                functions.divide(address_of(number), 1.0, _DIVISIONS)
            at.update((sampler.take().addresses.astype(np.int64) - base).tolist())
            if at[loop[division].address] + at[loop[division + 1].address] >= _ENOUGH:
                break
    return at[loop[division + 1].address] > at[loop[division].address]
