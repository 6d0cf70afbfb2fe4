"""Which instructions are certain to have ended before another one starts.

Each engine runs its instructions in order. A token that an instruction gives is taken by the first
instruction of the receiving engine that has not got one: the k-th pop of a queue follows its k-th
push. Nothing else orders engines. The clock of an instruction counts, for each engine, the
instructions that have ended before it starts.

Source: L. Lamport, Time, Clocks, and the Ordering of Events in a Distributed System, 1978; F.
Mattern, Virtual Time and Global States of Distributed Systems, 1989 (vector clocks).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from clew.backends.vta.assembler import instruction_text
from clew.backends.vta.isa import Finish, Load, Store
from clew.backends.vta.names import Engine
from clew.backends.vta.program import Program
from clew.support.errors import ClewWarning, InputError, warn

Clock: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True)
class Order:
    """An order in which a program can run, and what of it is certain.

    `sequence` has the indices of instructions in an order that all queues allow. `places` has each
    instruction's position on its engine, `clocks` its clock.
    """

    sequence: tuple[int, ...]
    places: np.ndarray[Any, np.dtype[np.int64]]
    clocks: tuple[Clock, ...]
    by_engine: tuple[tuple[int, ...], ...]

    def ends_before(self, first: int, second: int, engine: Engine) -> bool:
        """Returns whether an instruction of an engine has ended when another one starts."""
        return bool(self.places[first] < self.clocks[second][engine])


def order_of(program: Program) -> Order:
    """Returns the order of a program. A warning names tokens that nothing takes.

    Errors: I439 for an instruction that waits forever; I441 if the program does not end with
    FINISH.
    """
    instructions = program.instructions
    by_engine: tuple[list[int], ...] = ([], [], [])
    places = np.zeros(len(instructions), np.int64)
    for index, instruction in enumerate(instructions):
        places[index] = len(by_engine[instruction.engine])
        by_engine[instruction.engine].append(index)
    _check_end(program)
    queues: dict[tuple[Engine, Engine], deque[Clock]] = {}
    clocks: list[Clock] = [(0, 0, 0)] * len(instructions)
    known: list[Clock] = [(0, 0, 0)] * len(Engine)
    following = [0] * len(Engine)
    sequence: list[int] = []

    def is_ready(engine: Engine) -> bool:
        """Returns whether an engine has a next instruction, and its tokens are there."""
        if following[engine] == len(by_engine[engine]):
            return False
        instruction = instructions[by_engine[engine][following[engine]]]
        return all(queues.get((source, engine)) for source in instruction.pops)

    while ready := [by_engine[e][following[e]] for e in Engine if is_ready(e)]:
        index = min(ready)  # of the orders that are possible, the one nearest to the program's
        instruction = instructions[index]
        engine = instruction.engine
        taken = (queues[source, engine].popleft() for source in instruction.pops)
        clock = tuple(map(max, zip(known[engine], *taken, strict=True)))
        clocks[index] = clock
        sequence.append(index)
        following[engine] += 1
        known[engine] = (*clock[:engine], following[engine], *clock[engine + 1 :])
        for target in instruction.pushes:
            queues.setdefault((engine, target), deque()).append(known[engine])
    if len(sequence) < len(instructions):
        raise _deadlock(program, by_engine, following, queues)
    left = {pair: len(queue) for pair, queue in queues.items() if queue}
    for (source, target), count in left.items():
        warn(
            ClewWarning(
                "I440",
                f"VTA: at FINISH, {count} of the tokens from {source.name.lower()} to "
                f"{target.name.lower()} are left; the next program would take them",
            )
        )
    return Order(tuple(sequence), places, tuple(clocks), tuple(map(tuple, by_engine)))


def _check_end(program: Program) -> None:
    ends = [i for i, each in enumerate(program.instructions) if isinstance(each, Finish)]
    if not ends:
        raise InputError("I441", "VTA: the program has no FINISH")
    if ends[0] != len(program.instructions) - 1:
        raise InputError("I441", f"VTA: instruction {ends[0]} is FINISH, and others follow it")


def check_finish(program: Program, order: Order) -> None:
    """Checks that FINISH, the last instruction, waits for the transfers of other engines.

    Errors: I441.
    """
    last = len(program.instructions) - 1
    for engine in (Engine.STORE, Engine.LOAD):
        for index, each in enumerate(program.instructions):
            if each.engine is not engine or not isinstance(each, Load | Store) or each.is_empty:
                continue
            if not order.ends_before(index, last, engine):
                raise InputError(
                    "I441",
                    f"VTA: FINISH does not wait for instruction {index} ({instruction_text(each)})",
                    hint="let FINISH take a token that the engine gives after it",
                    layer=", ".join(program.layers(index)),
                )


def _deadlock(
    program: Program,
    by_engine: tuple[list[int], ...],
    following: list[int],
    queues: dict[tuple[Engine, Engine], deque[Clock]],
) -> InputError:
    waits = []
    first = -1
    for engine in Engine:
        if following[engine] == len(by_engine[engine]):
            continue
        index = by_engine[engine][following[engine]]
        first = index if first < 0 else min(first, index)
        missing = [s for s in program.instructions[index].pops if not queues.get((s, engine))]
        names = " and ".join(s.name.lower() for s in missing)
        text = instruction_text(program.instructions[index])
        waits.append(f"instruction {index} ({text}) waits for a token from {names}")
    return InputError(
        "I439",
        f"VTA: the program never ends: {'; '.join(waits)}",
        hint="give the token in an instruction that runs before",
        layer=", ".join(program.layers(first)),
    )
