"""A primitive for sums in registers whose rounding errors should not grow with their length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clew.loop.affine import Simplifier
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    Nest,
    Stmt,
    Store,
    block,
    buffer_loads,
    inside,
    map_expressions,
    over_children,
    stores_in,
    transform,
    walk,
)
from clew.loop.primitives.common import primitive, replace_index, rewrite_loops
from clew.support.errors import ScheduleError
from clew.te.expr import Imm, Index, Load, Scalar
from clew.te.interpret import identity_of
from clew.te.walk import map_loads


@primitive
def sum_in_blocks(nest: Nest, simplifier: Simplifier, *, stage: str, loop: str) -> Nest:
    """Adds up a stage in registers block by block: each iteration of the reduction loop `loop` sums
    from zero, and its sum is added to a total in scratch memory.

    `acc = 0; for k: acc += x[k]; y = acc` becomes
    `total = 0; for k: {acc = 0; acc += x[k]; total += acc}; y = total`. Peeled parts of the
    reduction without the loop are one block each. The rounding error then grows with the length of
    a block and with the number of blocks instead of with their product.

    Errors: S001; S036 if the loop does not sum up the stage in registers.
    """
    rewrite_loops(nest, loop, lambda found: found)
    found = False

    def visit(stmt: Stmt) -> Stmt | None:
        nonlocal found
        if not isinstance(stmt, Block) or stage not in inside(stmt).stages:
            return None
        made = _in_blocks(stmt, stage, loop)
        found = found or made is not None
        return made

    body = transform(nest.body, visit)
    if not found:
        raise ScheduleError(
            "S036",
            f"loop {loop} does not sum up stage {stage!r} in registers",
            hint="compute the stage in registers, and name a reduction loop inside",
        )
    return nest.with_body(body)


def _in_blocks(stmts: Block, stage: str, loop: str) -> Stmt | None:
    """Returns a sequence of statements that sets, adds up and reads a register tile, in blocks;
    None if it does not.
    """
    start = next((s for s in stmts.stmts if _sets(s, stage)), None)
    if start is None:
        return None
    (tile,) = {id(s.buffer): s.buffer for s in stores_in(start)}.values()
    sums = [s for s in stmts.stmts if _adds(s, tile)]
    if not any(_divides(s, tile, loop) for s in sums):
        return None
    total = Buffer(f"{tile.name}.total", tile.shape, tile.dtype, "scratch")
    zero: Scalar = Imm(identity_of("sum", tile.dtype), tile.dtype)

    def one(body: Stmt) -> Stmt:
        reset = _again(start, lambda s: replace(s, value=zero))
        load = _again(
            start,
            lambda s: replace(s, buffer=total, value=Load(tile, s.indices), combiner="sum"),
        )
        return block(reset, body, load)

    def divided(stmt: Stmt) -> Stmt:
        if not _divides(stmt, tile, loop):
            return one(stmt) if _adds(stmt, tile) else stmt
        if isinstance(stmt, For) and stmt.name == loop:
            return stmt.with_body(one(stmt.body))
        return over_children(stmt, divided)

    def moved(stmt: Stmt) -> Stmt | None:
        """Partial results that are added up are those of the total."""
        if isinstance(stmt, Store) and stmt.buffer is tile:
            return replace(stmt, buffer=total)
        return None

    def read(value: Scalar) -> Scalar:
        return map_loads(value, lambda x, at: Load(total, at) if x.source is tile else None)

    made: list[Stmt] = []
    for stmt in stmts.stmts:
        if stmt is start:
            made.append(_again(stmt, lambda s: replace(s, buffer=total)))
        elif any(stmt is s for s in sums):
            made.append(divided(stmt))
        else:
            made.append(map_expressions(transform(stmt, moved), read))
    return block(*made)


def _sets(stmt: Stmt, stage: str) -> bool:
    """Whether a statement only sets a register tile of the stage."""
    stores = stores_in(stmt)
    return bool(stores) and all(
        s.stage == stage and not s.combiner and s.buffer.scope == "register" for s in stores
    )


def _adds(stmt: Stmt, tile: Buffer) -> bool:
    """Whether a statement adds values other than its own partial results to a register tile."""
    return any(
        s.buffer is tile
        and s.combiner == "sum"
        and not any(load.source is tile for load in buffer_loads(s.value))
        for s in stores_in(stmt)
    )


def _divides(stmt: Stmt, tile: Buffer, loop: str) -> bool:
    """Whether a statement contains a reduction loop of that name which adds to the tile."""
    return any(
        isinstance(s, For)
        and s.name == loop
        and _adds(s, tile)
        and not any(s.index in x.variables for x in stores_in(s) if x.buffer is tile)
        for s in walk(stmt)
    )


def _again(stmt: Stmt, change: Callable[[Store], Stmt]) -> Stmt:
    """Returns a copy of a nest, with new loop variables and each store changed."""
    if isinstance(stmt, Store):
        return change(stmt)
    if isinstance(stmt, For):
        old = stmt.index
        index = Index(old.name, old.extent, old.role, old.facts, repeats=old.repeats)
        body = replace_index(stmt.body, old, index)
        return For(index, stmt.kind, _again(body, change), stmt.axis)
    return over_children(stmt, lambda child: _again(child, change))
