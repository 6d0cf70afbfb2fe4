"""Combines nests that compute the same results in different ways; sizes select one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew.ir.dims import Dim
from clew.loop.ir import Block, For, Nest, Stmt, block
from clew.loop.primitives.common import replace_index


def either(nests: Sequence[tuple[Nest, Dim]]) -> Nest:
    """Returns a nest that contains several nests for the same results and runs the one whose
    dimension is 1. The dimensions of the others are 0. If all are 0, nothing is computed.

    All nests use the same buffers for inputs and outputs. The outermost loops of nests that are not
    selected have no iterations.
    """
    first = nests[0][0]
    if len(nests) == 1 and nests[0][1] == 1:
        return first
    assert all(n.inputs == first.inputs and n.outputs == first.outputs for n, _ in nests)
    body = block(*(stmt for nest, where in nests for stmt in _times(nest.body, where)))
    return replace(first, body=body)


def _times(body: Block, runs: Dim) -> list[Stmt]:
    """Returns the statements of a body, with outermost loops that run only if `runs` is 1."""
    found: list[Stmt] = []
    for stmt in body.stmts:
        loop = stmt if isinstance(stmt, For) else None
        assert loop is not None, "a nest's statements are loops"
        index = loop.index.part(loop.name, loop.size * runs)
        found.append(replace(loop, index=index, body=replace_index(loop.body, loop.index, index)))
    return found
