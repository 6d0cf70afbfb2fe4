"""Combines nests that compute the same results in different ways; sizes select one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew.ir.dims import Dim
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    Nest,
    Prefetch,
    Stmt,
    Store,
    block,
    map_expressions,
    transform,
)
from clew.loop.primitives.common import replace_index
from clew.te.expr import Load, Scalar
from clew.te.walk import map_loads


def either(nests: Sequence[tuple[Nest, Dim]]) -> Nest:
    """Returns a nest that contains several nests for the same results and runs the one whose
    dimension is 1. The dimensions of the others are 0.

    All nests use the memory of the first one's inputs and outputs, but their schedules may view it
    in other shapes. The outermost loops of nests that are not selected have no iterations, and
    their temporaries need no memory.
    """
    first = nests[0][0]
    if len(nests) == 1:
        return first
    alike = [(_beside(first, nest, where), where) for nest, where in nests]
    body = block(*(stmt for nest, where in alike for stmt in _times(nest.body, where)))
    return replace(first, body=body)


def _beside(first: Nest, nest: Nest, where: Dim) -> Nest:
    """Returns a nest that uses the inputs and outputs of the first one as views in its own shapes,
    and its temporaries only if `where` is 1.
    """
    given = (*nest.inputs, *nest.outputs)
    pairs = zip(given, (*first.inputs, *first.outputs), strict=True)
    # Each with the buffer that it replaces, which must stay alive to keep its id.
    views = {
        id(own): (own, replace(own, memory=other.root)) for own, other in pairs if own is not other
    }
    for own in nest.temporaries:
        if own.scope in ("workspace", "scratch"):
            views[id(own)] = own, replace(own, used=where)
    if not views:
        return nest

    def seen(buffer: Buffer) -> Buffer:
        if id(buffer) not in views:
            view = buffer
            if buffer.memory is not None and id(buffer.memory) in views:
                view = replace(buffer, memory=seen(buffer.memory).root)
            views[id(buffer)] = buffer, view
        return views[id(buffer)][1]

    def moved(expr: Scalar) -> Scalar:
        return map_loads(expr, lambda load, indices: Load(seen(load.source), indices))

    def visit(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, (Store, Prefetch)):
            return replace(stmt, buffer=seen(stmt.buffer))
        return None

    body = transform(map_expressions(nest.body, moved), visit)
    return replace(nest, inputs=first.inputs, outputs=first.outputs).with_body(body)


def _times(body: Block, runs: Dim) -> list[Stmt]:
    """Returns the statements of a body, with outermost loops that run only if `runs` is 1."""
    found: list[Stmt] = []
    for stmt in body.stmts:
        loop = stmt if isinstance(stmt, For) else None
        assert loop is not None, "a nest's statements are loops"
        index = loop.index.part(loop.name, loop.size * runs)
        found.append(replace(loop, index=index, body=replace_index(loop.body, loop.index, index)))
    return found
