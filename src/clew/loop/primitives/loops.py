"""Primitives on loops: split, fuse, reorder, and loop kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clew.loop.affine import Simplifier
from clew.loop.ir import For, If, Nest, Stmt, block, loops, single, statements
from clew.loop.primitives.common import (
    check_positive,
    perfect_chain,
    primitive,
    replace_index,
    rewrite_loops,
    wrap,
)
from clew.support.errors import ScheduleError
from clew.te.expr import INDEX, Imm, Index, Scalar, binary

TAILS = ("peel", "balance", "guard")
MOST_LANES: Final = 64
"""Lanes of the longest vector."""


@primitive
def split(
    nest: Nest, simplifier: Simplifier, *, loop: str, factor: int, tail: str = "peel"
) -> Nest:
    """`for i in n` becomes `for i.o in n/factor: for i.i in factor`.

    If `factor` does not divide n, `peel` runs the remainder as a second nest with loops of the same
    names; `balance` uses ceil(n / factor) tiles whose sizes differ by at most one; `guard` rounds
    up and skips iterations beyond n.

    Errors: S001, S004; S005 for an unknown tail; S006 for a loop already vectorized or parallel.
    """
    check_positive("factor", factor)
    if tail not in TAILS:
        raise ScheduleError("S005", f"tail is {tail!r}", hint=f"use one of {', '.join(TAILS)}")

    def rewrite(found: For) -> Stmt:
        if found.kind in ("vector", "parallel", "dot", "block", "thread"):
            raise ScheduleError("S006", f"loop {loop} is already {found.kind}", hint="split first")
        extent = found.extent
        if tail == "guard" and extent % factor and extent > factor:
            tiles = -(-extent // factor)
            piece = _piece(found, 0, tiles, factor, simplifier)
            inner = piece.body
            assert isinstance(inner, For)
            index = _position(0, piece.index, factor, inner.index)
            cond = binary("lt", index, Imm(extent, INDEX))
            return replace(piece, body=replace(inner, body=If(cond, inner.body)))
        if tail == "balance" and extent % factor:
            tiles = -(-extent // factor)
            size, larger = divmod(extent, tiles)
            start = larger * (size + 1)
            pieces = [(0, larger, size + 1), (start, tiles - larger, size)]
        else:
            whole = extent // factor
            pieces = [(0, whole, factor), (whole * factor, 1, extent % factor)]
        return single([_piece(found, *p, simplifier) for p in pieces if p[1] and p[2]])

    return rewrite_loops(nest, loop, rewrite)


def _position(start: int, outer: Index, factor: int, inner: Index) -> Scalar:
    return binary("add", binary("add", binary("mul", outer, factor), inner), Imm(start, INDEX))


def _piece(loop: For, start: int, tiles: int, factor: int, simplifier: Simplifier) -> For:
    outer, inner = Index(f"{loop.name}.o", tiles), Index(f"{loop.name}.i", factor)
    value = simplifier.simplify(_position(start, outer, factor, inner))
    body = replace_index(loop.body, loop.index, value)
    return For(outer, loop.kind, For(inner, loop.kind, body))


@primitive
def fuse(nest: Nest, simplifier: Simplifier, *, outer: str, inner: str) -> Nest:
    """`for a in m: for b in n` becomes one loop `a+b` over m*n.

    Errors: S001; S003 if `inner` is not directly in `outer`.
    """

    def rewrite(found: For) -> Stmt:
        body = found.body
        if not isinstance(body, For) or body.name != inner:
            raise ScheduleError("S003", f"loop {inner} is not directly inside {outer}")
        index = Index(f"{outer}+{inner.rsplit('.', 1)[-1]}", found.extent * body.extent)
        size = Imm(body.extent, INDEX)
        high = simplifier.simplify(binary("floordiv", index, size))
        low = simplifier.simplify(binary("mod", index, size))
        replaced = replace_index(replace_index(body.body, body.index, low), found.index, high)
        return replace(found, index=index, body=replaced)

    return rewrite_loops(nest, outer, rewrite)


@primitive
def reorder(nest: Nest, simplifier: Simplifier, *, order: tuple[str, ...]) -> Nest:
    """Puts directly nested loops in the given order, outermost first; other loops keep their place.

    A nest that has only some of the loops (a reduction's initialization) orders those.

    Errors: S001, S003.
    """
    wanted = set(order)
    heads = _heads(nest, wanted)
    for name in order:
        rewrite_loops(nest, name, lambda found: found)
    complete = False

    def rewrite(found: For) -> Stmt:
        nonlocal complete
        if id(found) not in heads:
            return found
        here = {loop.name for loop in loops(found)} & wanted
        complete = complete or here == wanted
        chain, guards, body = perfect_chain(found, here)
        by_name = {loop.name: loop for loop in chain}
        places = [n for n, loop in enumerate(chain) if loop.name in here]
        new = list(chain)
        for place, name in zip(places, (n for n in order if n in here), strict=True):
            new[place] = by_name[name]
        return wrap(new, guards, body)

    for name in sorted({loop.name for loop in loops(nest.body) if id(loop) in heads}):
        nest = rewrite_loops(nest, name, rewrite)
    if not complete:
        raise ScheduleError("S003", f"no nest has all of the loops {', '.join(order)}")
    return nest


def _heads(nest: Nest, wanted: set[str]) -> set[int]:
    """Returns the loops of the set that are not inside another loop of it."""
    heads: set[int] = set()
    stack: list[tuple[Stmt, bool]] = [(nest.body, False)]
    while stack:
        stmt, inside = stack.pop()
        if isinstance(stmt, For):
            if stmt.name in wanted and not inside:
                heads.add(id(stmt))
            stack.append((stmt.body, inside or stmt.name in wanted))
        elif isinstance(stmt, If):
            stack.append((stmt.body, inside))
        else:
            stack.extend((s, inside) for s in getattr(stmt, "stmts", ()))
    return heads


@primitive
def vectorize(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Executes a loop's iterations as the lanes of vectors.

    Errors: S001; S007 for a loop that contains loops or has more than 64 iterations.
    """

    def rewrite(found: For) -> Stmt:
        inside = [loop for loop in loops(found.body) if loop.kind != "dot"]
        if found.extent > MOST_LANES or inside:
            raise ScheduleError(
                "S007",
                f"loop {loop} over {found.extent} cannot be vectorized",
                hint="split it by the vector width, then vectorize the innermost loop",
            )
        return replace(found, kind="vector", axis="")

    return rewrite_loops(nest, loop, rewrite)


@primitive
def unroll(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Unrolls a loop completely.

    Errors: S001.
    """
    return rewrite_loops(nest, loop, lambda found: replace(found, kind="unroll", axis=""))


@primitive
def parallel(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Distributes an outermost loop over threads, or a loop that is the entire body of a parallel
    loop: threads then share a 2-D grid.

    Errors: S001; S008 if the loop is neither; S009 if iterations write the same element.
    """
    top = [s for s in nest.body.stmts if isinstance(s, For)]
    inside = [n for s in top if s.kind == "parallel" for n in statements(s.body)]
    if not any(isinstance(s, For) and s.name == loop for s in (*top, *inside)):
        rewrite_loops(nest, loop, lambda found: found)
        raise ScheduleError("S008", f"loop {loop} is not an outermost loop of {nest.name}")
    return rewrite_loops(nest, loop, lambda found: replace(found, kind="parallel", axis=""))


@primitive
def hoist(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Joins the copies of an outermost loop that peeling created to one loop, with their bodies in
    sequence.

    Errors: S001; S010 if the copies differ in extent.
    """
    copies = [s for s in nest.body.stmts if isinstance(s, For) and s.name == loop]
    rewrite_loops(nest, loop, lambda found: found)
    if len({c.extent for c in copies}) != 1:
        raise ScheduleError("S010", f"copies of loop {loop} differ in extent")
    first = copies[0]
    bodies = [replace_index(c.body, c.index, first.index) for c in copies]
    merged = replace(first, body=single(bodies))
    stmts = [merged if s is first else s for s in nest.body.stmts if s is first or s not in copies]
    return nest.with_body(block(*stmts))
