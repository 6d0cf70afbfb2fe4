"""The grid of a nest for a device: block and thread loops, shared memory and barriers, checked."""

from __future__ import annotations

from itertools import pairwise

from clew.loop.affine import contains
from clew.loop.ir import Barrier, Block, For, If, Nest, Stmt, Store, TileProduct, buffer_loads
from clew.support.errors import ScheduleError


def has_grid(nest: Nest) -> bool:
    """Whether a nest has block or thread loops, shared memory or barriers."""
    return _first(nest.body) is not None


def check_grid(nest: Nest) -> None:
    """Checks that block loops are outermost, that thread loops stand directly in them, each along
    an axis of its own; that shared memory is written in block loops; and that all threads of a
    block reach each barrier equally often.

    Errors: S015 (loops), S016 (barriers), S017 (shared memory).
    """
    if has_grid(nest):
        for stmt in nest.body.stmts:
            _check(stmt, (), None)


def _check(stmt: Stmt, around: tuple[For, ...], divergent: str | None) -> None:
    """Checks a statement. `around` are the loops around it, outermost first; `divergent` names what
    may make threads take different ways to it.
    """
    match stmt:
        case Block():
            for child in stmt.stmts:
                _check(child, around, divergent)
        case For():
            _check_loop(stmt, around)
            _check(stmt.body, (*around, stmt), divergent)
        case If():
            varies = _varies(stmt, around)
            _check(stmt.body, around, f"if {stmt.cond}" if varies else divergent)
        case TileProduct():
            _check(stmt.body, around, divergent)
        case Barrier():
            _check_barrier(around, divergent)
        case Store():
            in_block = any(loop.kind == "block" for loop in around)
            if stmt.buffer.root.scope == "shared" and not in_block:
                raise ScheduleError(
                    "S017",
                    f"shared buffer {stmt.buffer.name} is written outside block loops",
                    hint="bind an outermost loop around it to block.x",
                )


def _check_loop(loop: For, around: tuple[For, ...]) -> None:
    if loop.kind not in ("block", "thread"):
        return
    inside = {"block": ("block",), "thread": ("block", "thread")}[loop.kind]
    misplaced = any(outer.kind not in inside for outer in around)
    chain = all(outer.body is inner for outer, inner in pairwise((*around, loop)))
    if misplaced or not chain or (loop.kind == "thread" and not around):
        where = (
            "is no outermost loop"
            if loop.kind == "block"
            else "does not stand directly in block or thread loops"
        )
        raise ScheduleError(
            "S015",
            f"{loop.kind} loop {loop.name} {where}",
            hint="reorder first; bind block loops, then thread loops, from the outermost inwards",
        )
    if any((outer.kind, outer.axis) == (loop.kind, loop.axis) for outer in around):
        raise ScheduleError(
            "S015",
            f"two loops, the inner one {loop.name}, are bound to {loop.kind}.{loop.axis}",
            hint="fuse them, or take another axis",
        )


def _check_barrier(around: tuple[For, ...], divergent: str | None) -> None:
    if not any(loop.kind == "thread" for loop in around):
        raise ScheduleError(
            "S016", "a barrier is outside thread loops", hint="bind a loop around it to thread.x"
        )
    lanes = next((loop.name for loop in around if loop.kind in ("vector", "dot")), None)
    if lanes is not None:
        raise ScheduleError(
            "S016",
            f"a barrier is among the lanes of loop {lanes}",
            hint="vectorize a loop beside the barrier",
        )
    if divergent is not None:
        raise ScheduleError(
            "S016",
            f"not all threads need reach a barrier under `{divergent}`",
            hint="put the barrier before or after the condition",
        )


def _varies(stmt: If, around: tuple[For, ...]) -> bool:
    """Whether a condition may differ among the threads of a block."""
    threads = [loop.index for loop in around if loop.kind == "thread"]
    reads = next(buffer_loads(stmt.cond), None) is not None
    return reads or any(contains(stmt.cond, index) for index in threads)


def first_of_grid(nest: Nest) -> str:
    """Returns in words what a nest has that only a device with a grid runs; "" if nothing."""
    found = _first(nest.body)
    match found:
        case For():
            return f"loop {found.name} is bound to {found.kind}.{found.axis}"
        case Store():
            return f"buffer {found.buffer.name} is shared memory"
        case Barrier():
            return "it has a barrier"
    return ""


def _first(stmt: Stmt) -> Stmt | None:
    pending = [stmt]
    while pending:
        node = pending.pop()
        match node:
            case For() if node.kind in ("block", "thread"):
                return node
            case Store() if node.buffer.root.scope == "shared":
                return node
            case Barrier():
                return node
            case For() | If() | TileProduct():
                pending.append(node.body)
            case Block():
                pending.extend(reversed(node.stmts))
    return None
