"""Checks the device grid of a nest: block and thread loops, shared memory and barriers."""

from __future__ import annotations

from itertools import pairwise

from clew.loop.affine import contains
from clew.loop.ir import Barrier, Block, For, If, Nest, Stmt, Store, TileProduct, buffer_loads
from clew.support.errors import ScheduleError


def has_grid(nest: Nest) -> bool:
    """Whether a nest has block or thread loops, shared memory or barriers."""
    return _first(nest.body) is not None


def check_grid(nest: Nest) -> None:
    """Checks the rules of a grid: block loops are outermost, thread loops are nested directly in
    them, and each has a different axis; only block loops contain writes to shared memory; all
    threads of a block reach each barrier equally often.

    Errors: S015 (loops), S016 (barriers), S017 (shared memory).
    """
    if has_grid(nest):
        for stmt in nest.body.stmts:
            _check(stmt, (), None)


def _check(stmt: Stmt, around: tuple[For, ...], divergent: str | None) -> None:
    """Checks a statement. `around` holds the loops around it, outermost first. `divergent` is the
    condition around it that may differ between threads, if there is one.
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
            "is not an outermost loop"
            if loop.kind == "block"
            else "is not nested directly in block or thread loops"
        )
        raise ScheduleError(
            "S015",
            f"{loop.kind} loop {loop.name} {where}",
            hint="reorder first; bind block loops, then thread loops, from the outermost inwards",
        )
    if any((outer.kind, outer.axis) == (loop.kind, loop.axis) for outer in around):
        raise ScheduleError(
            "S015",
            f"loop {loop.name} and a loop around it are both bound to {loop.kind}.{loop.axis}",
            hint="fuse the loops, or bind one to another axis",
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
            f"a barrier is inside the vectorized loop {lanes}",
            hint="vectorize a loop that does not contain the barrier",
        )
    if divergent is not None:
        raise ScheduleError(
            "S016",
            f"some threads may not reach the barrier under `{divergent}`",
            hint="move the barrier before or after the condition",
        )


def _varies(stmt: If, around: tuple[For, ...]) -> bool:
    """Whether a condition may differ between the threads of a block."""
    threads = [loop.index for loop in around if loop.kind == "thread"]
    reads = next(buffer_loads(stmt.cond), None) is not None
    return reads or any(contains(stmt.cond, index) for index in threads)


def first_of_grid(nest: Nest) -> str:
    """Returns a description of the first thing that needs a device grid; "" if there is none."""
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
