"""Estimates of the shares of a kernel's operators, from FLOPs alone and from bytes alone."""

from __future__ import annotations

from collections.abc import Callable

from clew.backends.cpu.lowering import KernelSource
from clew.cost.work import part_bytes_of, stage_flops
from clew.ir.dims import Dim
from clew.te.tensor import Tensor, stages
from clew.te.walk import loads


def estimated_shares(
    source: KernelSource, count: int, number: Callable[[Dim], int]
) -> tuple[list[float], list[float]]:
    """Returns the shares of a kernel's `count` operators by FLOPs and by bytes; both add up to 1.
    `number` returns the value of a dimension (`Build.number`).

    Bytes are those an operator would move in a separate kernel: its operands and its result, once
    each. If there is nothing to count, all shares are equal.
    """
    outputs = source.stages.outputs
    every = stages(outputs)
    position = {id(stage): source.stages.ops[stage.name] for stage in every}
    own: list[list[Tensor]] = [[] for _ in range(count)]
    flops = [0] * count
    results = {id(stage): stage for stage in outputs}
    for stage in every:
        here = position[id(stage)]
        own[here].append(stage)
        flops[here] += number(stage_flops(stage))
        for load in loads(stage.body) if stage.body is not None else ():
            if position.get(id(load.source), here) != here:
                results[id(load.source)] = load.source
    moved = [number(part_bytes_of(part, [s for s in part if id(s) in results])) for part in own]
    return _shares(flops), _shares(moved)


def _shares(amounts: list[int]) -> list[float]:
    total = sum(amounts)
    return [a / total if total else 1 / len(amounts) for a in amounts]
