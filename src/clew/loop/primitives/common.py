"""Shared code of primitives: the registry, lookup of loops and stages, and legality checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

from clew.ir.dims import Dim, Facts, SymDim, at_most
from clew.loop.affine import Simplifier, contains
from clew.loop.grid import check_grid
from clew.loop.ir import (
    Block,
    For,
    If,
    Nest,
    Stmt,
    Store,
    TileProduct,
    inside,
    loops,
    map_expressions,
    over_children,
    parallel_lines,
    update_expressions,
    walk,
)
from clew.support.errors import ScheduleError
from clew.te.expr import Index, Scalar
from clew.te.roles import IN_ORDER
from clew.te.walk import substitute

Primitive = Callable[..., Nest]
F = TypeVar("F", bound=Primitive)
PRIMITIVES: Final[dict[str, Primitive]] = {}
# The kinds of loops whose iterations several threads share.
_SPREAD: Final = ("parallel", "block", "thread")


def primitive(function: F) -> F:
    """Decorator: registers `function(nest, simplifier, **args) -> Nest` under its name."""
    PRIMITIVES[function.__name__] = function
    return function


def rewrite_loops(nest: Nest, name: str, rewrite: Callable[[For], Stmt]) -> Nest:
    """Returns the nest with every loop of that name rewritten (a peeled nest has copies).

    Errors: S001 if there is no such loop.
    """
    if name not in nest.body.inside.names:
        names = dict.fromkeys(loop.name for loop in loops(nest.body))
        raise ScheduleError(
            "S001", f"{nest.name} has no loop {name!r}", hint=f"its loops are {', '.join(names)}"
        )

    return nest.with_body(_with_loops(nest.body, name, rewrite))


def _with_loops(stmt: Stmt, name: str, rewrite: Callable[[For], Stmt]) -> Stmt:
    """Returns the statement with every loop of that name rewritten, inner ones first."""
    if isinstance(stmt, Store) or name not in inside(stmt).names:
        return stmt
    new = over_children(stmt, lambda child: _with_loops(child, name, rewrite))
    return rewrite(new) if isinstance(new, For) and new.name == name else new


def replace_index(stmt: Stmt, index: Index, value: Scalar) -> Stmt:
    """Returns the statement with a loop variable replaced."""
    values = {id(index): value}
    return map_expressions(stmt, lambda e: substitute(e, values) if contains(e, index) else e)


def stage_statements(nest: Nest, stage: str) -> list[Stmt]:
    """Returns the top-level statements that contain only a stage's work.

    Errors: S002 if the stage has no separate top-level loops (it is inlined, moved or absent).
    """
    found = [s for s in nest.body.stmts if _only_stage(s) == stage]
    if not found:
        raise ScheduleError(
            "S002",
            f"stage {stage!r} of {nest.name} has no separate loops",
            hint="it may already be inlined or computed elsewhere; see print(schedule)",
        )
    return found


def _only_stage(stmt: Stmt) -> str | None:
    names = inside(stmt).stages
    return next(iter(names)) if len(names) == 1 else None


def canonical_store(stmt: Stmt) -> tuple[list[For], Store] | None:
    """Returns the loops and the store of an unchanged nest, whose indices are the loops'
    variables.
    """
    around: list[For] = []
    while isinstance(stmt, For):
        around.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, Store):
        return None
    variables = {id(loop.index) for loop in around}
    plain = all(isinstance(i, Index) and id(i) in variables for i in stmt.indices)
    return (around, stmt) if plain else None


def check_kinds(nest: Nest) -> None:
    """Checks that parallel loops are outermost (or the lines of an outermost parallel loop) and
    independent, that vector loops are innermost, and the device's grid (`check_grid`).

    Every primitive must preserve this.

    Errors: S007, S008, S009, S015 to S017.
    """
    if not nest.body.inside.kinds.isdisjoint(("block", "thread")):
        check_grid(nest)
    _check_own_memory(nest)
    outermost = {id(s) for s in nest.body.stmts}
    outermost |= {id(n) for s in nest.body.stmts for n in parallel_lines(s)}
    for loop in _questionable(nest.body):
        if loop.kind == "vector" and not inside(loop.body).kinds <= {"dot"}:
            raise ScheduleError(
                "S007",
                f"loop {loop.name} cannot be vectorized: it contains loops",
                hint="move stages and split loops first; vectorize innermost loops last",
            )
        if loop.kind == "parallel" and id(loop) not in outermost:
            raise ScheduleError(
                "S008",
                f"parallel loop {loop.name} would not be an outermost loop of {nest.name}",
                hint="make a loop parallel after all primitives that move it",
            )
        if loop.index.role == IN_ORDER and loop.kind not in ("serial", "unroll"):
            raise ScheduleError(
                "S007",
                f"the iterations of {loop.name} must run one after another",
                hint="they write to data-dependent positions; schedule the loops around or inside",
            )
        spread = loop.kind in _SPREAD
        store = carries_dependence(loop) if spread else None
        if store is not None:
            raise ScheduleError(
                "S009",
                f"iterations of {loop.name} write the same elements of {store.buffer.name}",
                hint="a reduction loop cannot be parallel; use rfactor, or another loop",
            )


def _check_own_memory(nest: Nest) -> None:
    """Checks that no parallel loop uses memory of one thread that another statement fills or reads,
    as `overlap` does for the first iteration.

    Errors: S009.
    """
    spread = [s for s in nest.body.stmts if isinstance(s, For) and s.kind == "parallel"]
    if not spread or len(nest.body.stmts) == 1:
        return
    used = [inside(s) for s in nest.body.stmts]
    # The tile for a remainder that never occurs may be filled and read by nobody.
    read = {b for found in used for b in found.read}
    passed = read & {b for found in used for b in found.filled ^ found.read}
    for loop in spread:
        found = inside(loop)
        for buffer in passed & (found.filled | found.read):
            raise ScheduleError(
                "S009",
                f"threads of {loop.name} do not share {buffer.name} with other statements",
                hint="make a loop parallel around all statements that use it, or use workspace",
            )


def _questionable(stmt: Stmt) -> Iterator[For]:
    """Yields the loops in a statement, outermost first. Leaves out statements in which no loop can
    break a rule of `check_kinds`.
    """
    stack: list[Stmt] = [stmt]
    while stack:
        node = stack.pop()
        found = inside(node)
        if found.is_sound and found.kinds.isdisjoint(_SPREAD):
            continue
        match node:
            case For():
                yield node
                stack.append(node.body)
            case If() | TileProduct():
                stack.append(node.body)
            case Block():
                stack.extend(reversed(node.stmts))


def carries_dependence(loop: For) -> Store | None:
    """Returns a store to an element that several iterations access, or None.

    Buffers private to the body (registers, per-thread scratch) do not count if the body writes them
    before it reads them, which `compute_at` establishes.
    """
    followed = inside(loop.body).followed
    if at_most(loop.size, 1) or followed is None or loop.index in followed:
        return None
    own = ("register", "scratch", "shared") if loop.kind == "block" else ("register", "scratch")
    for stmt in walk(loop.body):
        if (
            isinstance(stmt, Store)
            and stmt.buffer.scope not in own
            and loop.index not in stmt.variables
        ):
            return stmt
    return None


def simplified(nest: Nest, simplifier: Simplifier) -> Nest:
    """Returns the nest with index arithmetic simplified and decided conditions resolved."""
    return nest.with_body(update_expressions(nest.body, simplifier.simplify))


def perfect_chain(outer: For, wanted: set[str]) -> tuple[list[For], list[If], Stmt]:
    """Returns the loops from `outer` to the last wanted one, the guards between them, and the body.

    Errors: S003 if there are other statements between the loops.
    """
    chain: list[For] = []
    guards: list[If] = []
    missing = set(wanted)
    stmt: Stmt = outer
    while missing:
        if isinstance(stmt, For):
            chain.append(stmt)
            missing.discard(stmt.name)
        elif isinstance(stmt, If):
            guards.append(stmt)
        else:
            raise ScheduleError(
                "S003",
                f"loops {', '.join(sorted(wanted))} are not directly nested",
                hint="reorder before compute_at, or name only loops of one nest",
            )
        stmt = stmt.body
    return chain, guards, stmt


def wrap(loops_: list[For], guards: list[If], body: Stmt) -> Stmt:
    """Returns `body` within guards, within loops (outermost first)."""
    for guard in reversed(guards):
        body = replace(guard, body=body)
    for loop in reversed(loops_):
        body = loop.with_body(body)
    return body


def check_positive(name: str, value: Any) -> int:
    """Returns `value`, which must be a positive int.

    Errors: S004.
    """
    if not isinstance(value, int) or value < 1:
        raise ScheduleError("S004", f"{name} is {value!r}, expected a positive integer")
    return value


def facts_of(*dims: Dim) -> Facts:
    """Returns those of some dimensions, all at least 0, that sizes decide."""
    return tuple(dim for dim in dims if isinstance(dim, SymDim))
