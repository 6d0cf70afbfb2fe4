"""Extraction of some stages of a plain nest as a separate nest, with the rest as arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from clew.loop.ir import (
    Buffer,
    Nest,
    Stmt,
    Store,
    block,
    map_expressions,
    reads,
    stores_in,
    transform,
)
from clew.te.expr import Load, Scalar
from clew.te.walk import map_loads


def part_of(nest: Nest, stages: Collection[str]) -> tuple[Nest, frozenset[str]]:
    """Returns the nest of some stages of a nest that no primitive has changed yet, and the names of
    the buffers that it shares with the rest.

    Values that these stages read from others become inputs. Values that others read from them, and
    results of the whole, become outputs. Loops, stages and buffers keep their names, so that a
    schedule step for the part also applies to the whole.
    """
    own = [s for s in nest.body.stmts if _stages(s) <= set(stages)]
    others = [s for s in nest.body.stmts if not _stages(s) <= set(stages)]
    written = {id(s.buffer): s.buffer for stmt in own for s in stores_in(stmt)}
    read = {id(load.source): load.source for stmt in own for _, load in reads(stmt)}
    used = {id(load.source): load.source.name for stmt in others for _, load in reads(stmt)}
    used |= {id(s.buffer): s.buffer.name for stmt in others for s in stores_in(stmt)}
    wanted = {id(load.source) for stmt in others for _, load in reads(stmt)}
    wanted |= {id(b) for b in nest.outputs}
    inputs = {k: replace(b, scope="input") for k, b in read.items() if k not in written}
    outputs = {k: replace(b, scope="output") for k, b in written.items() if k in wanted}
    renamed: dict[int, Buffer] = {**inputs, **outputs}

    def on_buffers(expr: Scalar) -> Scalar:
        def change(load: Load, indices: Sequence[Scalar]) -> Scalar | None:
            buffer = renamed.get(id(load.source))
            return None if buffer is None else Load(buffer, indices)

        return map_loads(expr, change)

    def on_stores(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and id(stmt.buffer) in renamed:
            return replace(stmt, buffer=renamed[id(stmt.buffer)])
        return None

    body = [transform(map_expressions(s, on_buffers), on_stores) for s in own]
    arguments = tuple(inputs.values()), tuple(outputs.values())
    shared = frozenset(b.name for k, b in renamed.items() if k in used)
    return Nest(nest.name, *arguments, block(*body)), shared


def _stages(stmt: Stmt) -> set[str]:
    return {s.stage for s in stores_in(stmt)}
