"""Lowers tensor expressions to the plain loop nest: a separate nest for each stage, in order,
without any tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clew.loop.ir import Buffer, Nest, Scope, Stmt, Store, block, nested
from clew.loop.lower_sequential import lower_sequential
from clew.te.expr import Imm, Index, Load, Reduce, Scalar, Sequential
from clew.te.interpret import identity_of
from clew.te.tensor import Tensor, stages
from clew.te.walk import map_loads


def lower(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    like: Nest | None = None,
    *,
    in_place: bool = False,
) -> Nest:
    """Returns the nest of a computation. Sizes that only a run knows are at least 1, or at least 0
    if their atoms say so (`ir.dims`).

    With `like`, a nest with the same inputs and outputs, it has that nest's buffers for them. With
    `in_place`, the only output is a scatter into memory that holds what it starts from.

    A stage `s` over axes `i, j` becomes loops `s.i`, `s.j` around one store. A reduction becomes
    one nest that stores its identity and one that accumulates; `lower_sequential` lowers sequential
    stages. Stage names must be unique.

    No loop of known size runs 0 times: a stage without elements has none, and a reduction over an
    empty axis only stores its identity. A load of an empty stage or input is in a branch that is
    never taken; it becomes 0.
    """
    buffers: dict[int, Buffer] = {}
    for number, tensor in enumerate(inputs):
        made = Buffer(tensor.name, tensor.shape, tensor.dtype, "input")
        buffers[id(tensor)] = like.inputs[number] if like else made
    results = {id(t) for t in outputs}
    known = dict(zip(map(id, outputs), like.outputs, strict=True)) if like else {}
    body: list[Stmt] = []
    for stage in stages(outputs):
        scope: Scope = "output" if id(stage) in results else "workspace"
        buffer = Buffer(stage.name, stage.shape, stage.dtype, scope, role=stage.role)
        buffer = known.get(id(stage), buffer)
        buffers[id(stage)] = buffer
        body.extend(_stage(stage, buffer, buffers, starts=not (in_place and scope == "output")))
    out = tuple(buffers[id(t)] for t in outputs)
    return Nest(name, tuple(buffers[id(t)] for t in inputs), out, block(*body))


def _stage(
    stage: Tensor, buffer: Buffer, buffers: dict[int, Buffer], *, starts: bool
) -> list[Stmt]:
    assert stage.body is not None
    if 0 in stage.shape:
        return []
    if isinstance(stage.body, Sequential):
        on_buffers = partial(_on_buffers, buffers=buffers)
        return lower_sequential(stage, buffer, on_buffers, starts=starts)
    axes = [Index(f"{stage.name}.{a.name}", a.extent, a.role) for a in stage.axes]
    names: dict[int, Scalar] = {id(a): n for a, n in zip(stage.axes, axes, strict=True)}
    if not isinstance(stage.body, Reduce):
        value = _on_buffers(stage.body, names, buffers)
        return [nested(axes, Store(buffer, tuple(axes), value, stage.name))]
    over = [Index(f"{stage.name}.{a.name}", a.extent, a.role) for a in stage.body.axes]
    names.update({id(a): n for a, n in zip(stage.body.axes, over, strict=True)})
    start = Imm(identity_of(stage.body.combiner, stage.dtype), stage.dtype)
    value = _on_buffers(stage.body.value, names, buffers)
    update = Store(buffer, tuple(axes), value, stage.name, stage.body.combiner)
    init = nested(axes, Store(buffer, tuple(axes), start, stage.name))
    if any(a.extent == 0 for a in over):
        return [init]
    return [init, nested([*axes, *over], update)]


def _on_buffers(expr: Scalar, names: dict[int, Scalar], buffers: dict[int, Buffer]) -> Scalar:
    def read(load: Load, indices: Sequence[Scalar]) -> Scalar:
        buffer = buffers[id(load.source)]
        return Imm(0, load.dtype) if 0 in buffer.shape else Load(buffer, indices)

    return map_loads(expr, read, names)
