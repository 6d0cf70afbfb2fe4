"""Sums of products in registers, in blocks: their rounding errors do not grow with their length."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clew.loop.ir import Block, For, If, Stmt, Store, buffer_loads, walk
from clew.loop.schedule import Schedule
from clew.support.errors import ScheduleError

MOST = int(os.environ.get("MOSTSTEPS","160"))
"""Products of `f32` that a register adds up one after the other."""


@dataclass(frozen=True)
class _Sum:
    stage: str
    loops: tuple[For, ...]  # outermost first


def divide_sums(schedule: Schedule) -> None:
    """Divides sums of more than `MOST` products in registers into blocks of at most as many. A
    total in memory adds up their results, which takes a load, an addition and a store per block.

    Sums of narrow operands stay whole: the rounding of operands is a larger error.
    """
    done = set[str]()
    for total in list(_sums(schedule.nest.body, (), {})):
        if total.stage in done:
            continue
        done.add(total.stage)
        steps = 1
        for loop in reversed(total.loops):
            if loop.typical * steps <= MOST:
                steps *= loop.typical
                continue
            with contextlib.suppress(ScheduleError):
                outer, pieces = loop.name, MOST // steps
                if pieces > 1:
                    count = -(-loop.typical // pieces)
                    outer, _ = schedule.split(outer, -(-loop.typical // count))
                schedule.sum_in_blocks(total.stage, outer)
            break


def _sums(stmt: Stmt, around: Sequence[For], starts: dict[int, int]) -> Iterator[_Sum]:
    """Yields the sums of products in registers; `starts` holds, by register tile, the number of
    loops outside it.
    """
    if isinstance(stmt, For):
        yield from _sums(stmt.body, (*around, stmt), starts)
    elif isinstance(stmt, If):
        yield from _sums(stmt.body, around, starts)
    elif isinstance(stmt, Block):
        for child in stmt.stmts:
            stores = [s for s in walk(child) if isinstance(s, Store)]
            if all(s.buffer.scope == "register" and not s.combiner for s in stores):
                starts = {**starts, **{id(s.buffer): len(around) for s in stores}}
            yield from _sums(child, around, starts)
    elif isinstance(stmt, Store) and id(stmt.buffer) in starts and _is_long_chain(stmt):
        inside = around[starts[id(stmt.buffer)] :]
        yield _Sum(stmt.stage, tuple(n for n in inside if n.index not in stmt.variables))


def _is_long_chain(store: Store) -> bool:
    operands = list(buffer_loads(store.value))
    return (
        store.combiner == "sum"
        and store.buffer.dtype == "f32"
        and len(operands) > 1
        and all(x.dtype == "f32" for x in operands)
    )
