"""Which instruction a sample is about.

Where a core waits, one instruction holds up all that come after it, and the address that a handler
is given may be that of this instruction or of the next: most x86 cores let the one that is under
way retire, and interrupt then. A loop of divisions that wait for each other tells which.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import Counter
from typing import Final

import numpy as np

from clew.codegen.disassemble import Instruction, disassemble
from clew.runtime.memory import address_of
from clew.runtime.sampler import Sampler, sampling_functions
from clew.runtime.threads import ThreadPool

_DIVISIONS: Final = 2_000_000
_ENOUGH: Final = 100
_MOST_CALLS: Final = 20


class Blame:
    """Says which line of the loop nest the samples of an object are about."""

    def __init__(self, data: bytes, late: bool) -> None:
        listing = disassemble(data)
        self._instructions = listing.instructions
        self._targets = listing.targets
        self._addresses = [i.address for i in self._instructions]
        self._late = late

    def line(self, offset: int) -> int:
        """Returns the line of the instruction that a sample at an offset in the code is about."""
        return self.instruction(offset).line

    def instruction(self, offset: int) -> Instruction:
        """Returns that instruction.

        Of one that jumps lead to nobody knows which ran before, and jumps hold up little: there it
        is the one at the offset.
        """
        position = max(0, bisect_right(self._addresses, offset) - 1)
        here = self._instructions[position]
        if not self._late or position == 0 or here.address in self._targets:
            return here
        before = self._instructions[position - 1]
        return before if before.function == here.function else here


@functools.cache
def samples_are_late() -> bool:
    """Whether samples on this machine give the instruction after the one that held things up;
    found out by sampling for some 10 ms, once.
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
