"""Sums in registers, in blocks: their rounding errors do not grow with their length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from clew.cost.policy.precision import MOST_PRODUCTS, MOST_PRODUCTS_OF_WINOGRAD, MOST_SUMMED
from clew.loop.ir import Block, For, If, Stmt, Store, buffer_loads, stores_in
from clew.loop.schedule import Schedule
from clew.support.dataclass import dataclass

_OF_TILES: Final = "winograd.products"


@dataclass(frozen=True)
class _Sum:
    stage: str
    loops: tuple[For, ...]  # outermost first
    most: int


def divide_sums(schedule: Schedule) -> None:
    """Divides sums in registers of more than `MOST_PRODUCTS` products, or `MOST_SUMMED` other
    values, into blocks of at most as many. A total in memory adds up their results, which takes a
    load, an addition and a store per block.

    Sums of narrow operands stay whole: the rounding of operands is a larger error. So do partial
    sums in lanes, whose errors average out.
    """
    # Copies of a sum whose loops are already split, those of small tiles, are divided before the
    # others: splitting the others' loop makes one of the same name.
    totals = {(t.stage, *(n.name for n in t.loops)): t for t in _sums(schedule.nest.body, (), {})}
    for total in sorted(totals.values(), key=lambda t: len(t.loops), reverse=True):
        steps = 1
        for loop in reversed(total.loops):
            if loop.typical * steps <= total.most:
                steps *= loop.typical
                continue
            schedule.attempt(partial(_divide, schedule, total, loop, total.most // steps))
            break


def _divide(schedule: Schedule, total: _Sum, loop: For, pieces: int) -> None:
    """Divides a sum into blocks of `pieces` iterations of a loop, or of one."""
    outer = loop.name
    if pieces > 1:
        count = -(-loop.typical // pieces)
        outer, _ = schedule.split(outer, -(-loop.typical // count))
    schedule.sum_in_blocks(total.stage, outer)


def _sums(stmt: Stmt, around: Sequence[For], starts: dict[int, int]) -> Iterator[_Sum]:
    """Yields the sums in registers; `starts` holds, by register tile, the number of loops outside
    it.
    """
    if isinstance(stmt, For):
        yield from _sums(stmt.body, (*around, stmt), starts)
    elif isinstance(stmt, If):
        yield from _sums(stmt.body, around, starts)
    elif isinstance(stmt, Block):
        stored = [stores_in(child) for child in stmt.stmts]
        partial = {
            id(s.buffer)
            for stores in stored
            for s in stores
            if s.buffer.scope == "register"
            and any(load.source is s.buffer for load in buffer_loads(s.value))
        }
        for child, stores in zip(stmt.stmts, stored, strict=True):
            if all(s.buffer.scope == "register" and not s.combiner for s in stores):
                tiles = {id(s.buffer) for s in stores} - partial
                starts = {**starts, **dict.fromkeys(tiles, len(around))}
            yield from _sums(child, around, starts)
    elif isinstance(stmt, Store) and id(stmt.buffer) in starts and _is_long_chain(stmt):
        inside = around[starts[id(stmt.buffer)] :]
        products = len(list(buffer_loads(stmt.value))) > 1
        of_products = MOST_PRODUCTS_OF_WINOGRAD if stmt.buffer.role == _OF_TILES else MOST_PRODUCTS
        most = of_products if products else MOST_SUMMED
        yield _Sum(stmt.stage, tuple(n for n in inside if n.index not in stmt.variables), most)


def _is_long_chain(store: Store) -> bool:
    operands = list(buffer_loads(store.value))
    return (
        store.combiner == "sum"
        and store.buffer.dtype == "f32"
        and bool(operands)
        and all(x.dtype == "f32" for x in operands)
    )
