"""Combines nests that compute the same results in different ways; sizes select one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew.ir.dims import Dim
from clew.loop.ir import Block, For, Nest, Stmt, block
from clew.loop.primitives.common import replace_index
from clew.loop.sizes import with_arguments


def either(nests: Sequence[tuple[Nest, Dim]]) -> Nest:
    """Returns a nest that contains several nests for the same results and runs the one whose
    dimension is 1. The dimensions of the others are 0.

    All nests use the memory of the first one's inputs and outputs; their schedules may see it in
    other shapes. The outermost loops of nests that are not selected have no iterations.
    """
    first = nests[0][0]
    if len(nests) == 1:
        return first
    alike = [(_with_arguments_of(first, nest), where) for nest, where in nests]
    body = block(*(stmt for nest, where in alike for stmt in _times(nest.body, where)))
    return replace(first, body=body)


def _with_arguments_of(first: Nest, nest: Nest) -> Nest:
    same = nest.inputs == first.inputs and nest.outputs == first.outputs
    return nest if same else with_arguments(nest, first)


def _times(body: Block, runs: Dim) -> list[Stmt]:
    """Returns the statements of a body, with outermost loops that run only if `runs` is 1."""
    found: list[Stmt] = []
    for stmt in body.stmts:
        loop = stmt if isinstance(stmt, For) else None
        assert loop is not None, "a nest's statements are loops"
        index = loop.index.part(loop.name, loop.size * runs)
        found.append(replace(loop, index=index, body=replace_index(loop.body, loop.index, index)))
    return found
