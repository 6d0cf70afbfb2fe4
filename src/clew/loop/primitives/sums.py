"""Primitives that split sums into partial sums, which are added to a total in memory: blocks, to
bound rounding errors; chunks of operands, which stay in a cache; and parts, which threads share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clew.loop.affine import Simplifier
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    If,
    Nest,
    Stmt,
    Store,
    block,
    buffer_loads,
    inside,
    map_expressions,
    nested,
    over_children,
    stores_in,
    transform,
    walk,
)
from clew.loop.primitives.common import (
    primitive,
    replace_index,
    rewrite_loops,
    stage_statements,
)
from clew.support.errors import ScheduleError
from clew.te.expr import INDEX, Imm, Index, Load, Scalar, binary
from clew.te.interpret import identity_of
from clew.te.walk import map_loads, substitute


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


@primitive
def hold_sums(nest: Nest, simplifier: Simplifier, *, stage: str, loop: str) -> Nest:
    """In each iteration of `loop`, accumulates a stage in registers, from zero, and adds these sums
    to the stage in memory at the end of the iteration.

    `for c: for t: for k: for i: y[t, i] += x` becomes
    `for c: for t: {for i: acc[i] = 0; for k: for i: acc[i] += x; for i: y[t, i] += acc[i]}` with
    the loop `t`. The chunks `c` of a long reduction can then be outside of the tiles `t`, so that
    chunks of the operands stay in a cache. All three loops over `i` have the same name, so later
    primitives apply to each.

    Errors: S001; S036 if the loop contains anything but one sum of the stage in memory, or if the
    computed elements depend on a condition.
    """

    def rewrite(found: For) -> Stmt:
        made = _held(found, stage)
        if made is None:
            raise ScheduleError(
                "S036",
                f"loop {loop} does not contain just a sum of stage {stage!r} in memory",
                hint="compute the stage in scratch, and apply this before loops inside are split",
            )
        return made

    return rewrite_loops(nest, loop, rewrite)


def _held(around: For, stage: str) -> Stmt | None:
    """Returns the loop with the sums of its body in registers; None if the body has another form. A
    loop of the same name that only initializes the stage is returned unchanged.
    """
    stores = stores_in(around.body)
    if len(stores) != 1 or stores[0].stage != stage or stores[0].buffer.scope == "register":
        return None
    (store,) = stores
    if not store.combiner:
        return around
    inner = [s for s in walk(around.body) if isinstance(s, For)]
    written = frozenset[Index]().union(*(place.variables for place in store.indices))
    tile = [n.index for n in inner if n.index in written]
    guards = [s.cond for s in walk(around.body) if isinstance(s, If)]
    if any(not written.isdisjoint(cond.variables) for cond in guards) or not all(
        isinstance(index.extent, int) for index in tile
    ):
        return None
    held = Buffer(
        f"{store.buffer.name}.held", tuple(i.extent for i in tile), store.buffer.dtype, "register"
    )
    identity: Scalar = Imm(identity_of(store.combiner, held.dtype), held.dtype)

    def over_tile(make: Callable[[tuple[Index, ...]], Stmt]) -> Stmt:
        own = tuple(Index(i.name, i.extent, i.role, i.facts) for i in tile)
        return nested(own, make(own))

    def added(own: tuple[Index, ...]) -> Stmt:
        places = {id(old): new for old, new in zip(tile, own, strict=True)}
        indices = tuple(substitute(i, places) for i in store.indices)
        return replace(store, indices=indices, value=Load(held, own))

    reset = over_tile(lambda own: Store(held, own, identity, stage))
    summed = transform(
        around.body,
        lambda s: replace(s, buffer=held, indices=tuple(tile)) if s is store else None,
    )
    return around.with_body(block(reset, summed, over_tile(added)))


@primitive
def sum_parts(nest: Nest, simplifier: Simplifier, *, stage: str, loop: str) -> Nest:
    """Sums each iteration of a stage's reduction loop into its own part of a workspace; a new stage
    `<stage>@sum` adds up the parts (split-K).

    `for i: y[i] = 0; for c: for k: for i: y[i] += x` becomes
    `for c: {for i: parts[c, i] = 0; for k: for i: parts[c, i] += x}` and then
    `for i: y[i] = 0; for i: for c: y[i] += parts[c, i]`. Iterations of `c` no longer depend on each
    other, so threads can share them. Loops over results may be between `c` and `k`.

    Errors: S001, S002; S036 if `loop` is not the outermost loop of a sum of the stage, with another
    reduction loop inside.
    """
    rewrite_loops(nest, loop, lambda found: found)
    own = stage_statements(nest, stage)
    sums = [s for s in own if any(store.combiner for store in stores_in(s))]
    copies = [s for s in sums if isinstance(s, For) and isinstance(s.size, int)]
    store = next((s for stmt in copies for s in stores_in(stmt)), None)
    if store is None or len(copies) < len(sums):
        raise _not_in_parts(stage, loop)
    result = store.buffer
    shape = (sum(s.extent for s in copies), *result.shape)
    parts = Buffer(f"{result.name}.parts", shape, result.dtype, "workspace", role=result.role)
    made, before = list[Stmt](), 0
    for copy in copies:
        part = _part(copy, loop, parts, before)
        if part is None:
            raise _not_in_parts(stage, loop)
        made.append(part)
        before += part.extent
    name = f"{stage}@sum"
    axes = [Index(f"{name}.i{n}", extent) for n, extent in enumerate(result.shape)]
    zero = Imm(identity_of(store.combiner, result.dtype), result.dtype)
    made.append(nested(axes, Store(result, tuple(axes), zero, name)))
    axes = [Index(i.name, i.extent) for i in axes]
    each = Index(f"{name}.part", before)
    added = Store(result, tuple(axes), Load(parts, (each, *axes)), name, store.combiner)
    made.append(nested([*axes, each], added))
    ours = {id(s) for s in own}
    first = next(n for n, s in enumerate(nest.body.stmts) if id(s) in ours)
    rest = [s for s in nest.body.stmts if id(s) not in ours]
    return nest.with_body(block(*rest[:first], *made, *rest[first:]))


def _not_in_parts(stage: str, loop: str) -> ScheduleError:
    return ScheduleError(
        "S036",
        f"loop {loop} does not sum up stage {stage!r} in parts",
        hint="make it the outermost loop of the sum, outside of other reduction loops",
    )


def _part(stmt: For, loop: str, parts: Buffer, before: int) -> For | None:
    """Returns a sum in which each iteration of the outermost loop initializes and sums one of
    `parts`, beginning with part `before`; None for a statement of another form.
    """
    stores = stores_in(stmt)
    others = [s for s in stores if not s.combiner or s.buffer is not stores[0].buffer]
    if stmt.name != loop or others:
        return None
    place = binary("add", stmt.index, Imm(before, INDEX)) if before else stmt.index

    def divided(inner: Stmt) -> Stmt | None:
        """Returns loops over results with the reductions inside them split into parts."""
        if isinstance(inner, Block):
            made = [divided(s) for s in inner.stmts]
            return None if None in made else block(*(s for s in made if s is not None))
        if not isinstance(inner, For):
            return None
        written = {index for s in stores_in(inner) for at in s.indices for index in at.variables}
        if stmt.index in written:
            return None
        if inner.index in written:
            body = divided(inner.body)
            return None if body is None else inner.with_body(body)
        return _set_and_summed(inner, parts, place)

    body = divided(stmt.body)
    return None if body is None else stmt.with_body(body)


def _set_and_summed(stmt: For, parts: Buffer, place: Scalar) -> Stmt | None:
    """Returns a sum into one of `parts`, which is set to zero first; None for other forms."""
    stores = stores_in(stmt)
    if len(stores) != 1 or any(isinstance(s, If) for s in walk(stmt)):
        return None
    (store,) = stores
    written = {index for at in store.indices for index in at.variables}
    tile = [s.index for s in walk(stmt) if isinstance(s, For) and s.index in written]
    own = [Index(i.name, i.extent, i.role, i.facts) for i in tile]
    places = {id(old): new for old, new in zip(tile, own, strict=True)}
    first = tuple(substitute(i, places) for i in store.indices)
    zero = Imm(identity_of(store.combiner, parts.dtype), parts.dtype)
    summed = transform(
        stmt,
        lambda s: replace(s, buffer=parts, indices=(place, *s.indices)) if s is store else None,
    )
    return block(nested(own, Store(parts, (place, *first), zero, store.stage)), summed)


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
