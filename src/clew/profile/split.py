"""Splits the measured time of a fused kernel among its operators.

A sample is an address in a kernel's code. It leads to a line of the loop nest (`blame`), and the
line to the operators it serves. Samples that serve several operators (a loop with more than one
stage, instructions without a line) are divided among them in proportion to their other samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelSource
from clew.build.result import Build, KernelUse
from clew.cost.work import part_bytes_of, stage_flops
from clew.ir.dims import Dim
from clew.ir.expr import Call, Function
from clew.profile.blame import Blame
from clew.profile.rows import InstructionShare, LineShare
from clew.profile.sampling import ENOUGH, LEAST, Sampling, sample_kernels
from clew.serving.built_model import BuiltModel
from clew.te.tensor import Tensor, stages
from clew.te.walk import loads


@dataclass(frozen=True)
class OperatorShare:
    """An operator of a kernel and its share of the kernel's time, from 0 to 1.

    `position` is the index in the kernel's operators (`Kernel.ops`). `samples` may be fractional,
    since samples that serve several operators are divided. `measured` is None if there are too few
    samples. `by_flops` and `by_bytes` are estimates from FLOPs alone, or from bytes moved alone.
    """

    position: int
    op: str
    layers: tuple[str, ...]
    samples: float
    measured: float | None
    by_flops: float
    by_bytes: float


@dataclass(frozen=True)
class Split:
    """The split of the time of one use of a kernel. `error` is the standard error of the largest
    share, from a binomial distribution; 0 if nothing was measured. `lines` and `instructions` are
    those with samples.
    """

    kernel: str
    samples: int
    operators: tuple[OperatorShare, ...]
    lines: tuple[LineShare, ...]
    error: float
    instructions: tuple[InstructionShare, ...] = ()


def split_kernels(
    compiled: BuiltModel,
    arrays: Sequence[Any],
    *,
    seconds: float = 1.0,
    every: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> dict[int, Split]:
    """Returns the split of each kernel in runs with these inputs, by the id of its call.

    Takes about `seconds`, on a busy machine up to twice as long. Each kernel of several operators
    first gets `ENOUGH` samples; a use with fewer shares those of all uses of the same kernel, and
    with fewer than `LEAST` its split is estimated. In a kernel of one operator, that operator gets
    all; with `every`, such kernels are sampled as well, for the shares of their lines.

    Errors: I040, I042, I043 (the inputs); I117 if sampling is not possible, I118 during another
    sampling.
    """
    found = sample_kernels(compiled, arrays, seconds=seconds, every=every, on_progress=on_progress)
    return _splits(compiled.build, found)


def estimated_splits(compiled: BuiltModel) -> dict[int, Split]:
    """Returns the estimated split of each kernel, by the id of its call, without running it."""
    return _splits(compiled.build, None)


def _splits(build: Build, found: Sampling | None) -> dict[int, Split]:
    uses = found.uses if found is not None else {}
    pooled: dict[str, Counter[int]] = {}
    for use in build.uses:
        if use.call.id in uses:
            pooled.setdefault(use.source.key, Counter()).update(uses[use.call.id].code)
    kernels: dict[str, _Kernel] = {}
    splits: dict[int, Split] = {}
    for use in build.uses:
        key = use.source.key
        calls = _calls(use)
        if key not in kernels:
            kernels[key] = _Kernel(use.source, len(calls), build.number)
        code = pooled.get(key, Counter[int]())
        if use.call.id in uses and uses[use.call.id].total >= ENOUGH:
            code = uses[use.call.id].code
        total = code.total()
        instructions: tuple[InstructionShare, ...] = ()
        lines: Mapping[int, float] = {}
        if found is not None and code:
            lines, instructions = _sampled(found.blame[key], code)
        split = kernels[key].split(use.name, calls, lines, total, build.layer_order)
        splits[use.call.id] = replace(split, instructions=instructions)
    return splits


def _sampled(
    blame: Blame, code: Counter[int]
) -> tuple[dict[int, float], tuple[InstructionShare, ...]]:
    """Returns the samples of each line, and those of each instruction, by offset in the code."""
    found, total = blame.instructions(code), code.total()
    rows = []
    for place, count in sorted(found.items()):
        at = blame.at(place)
        rows.append(InstructionShare(place, at.address, at.line, count, count / total))
    return blame.lines_of(found), tuple(rows)


def _calls(use: KernelUse) -> list[Call]:
    assert isinstance(use.call.op, Function)
    return operator_calls(use.call.op)


class _Kernel:
    """Data common to all uses of a kernel."""

    def __init__(self, source: KernelSource, count: int, number: Callable[[Dim], int]) -> None:
        self._source = source
        self._count = count
        self._by_flops, self._by_bytes = estimated_shares(source, count, number)
        self._positions: dict[int, tuple[int, ...]] = {}

    def split(
        self,
        name: str,
        calls: Sequence[Call],
        lines: Mapping[int, float],
        total: int,
        layer_order: Mapping[str, int],
    ) -> Split:
        """Returns the split of a use with a total of `total` samples, given by line."""
        samples = self._divide(lines)
        measured = total >= LEAST or self._count == 1
        shares = [min(1.0, s / total) if total else 1.0 for s in samples] if measured else []
        operators = tuple(
            OperatorShare(
                position=n,
                op=call.op_name,
                layers=_layers(call, layer_order),
                samples=samples[n],
                measured=shares[n] if measured else None,
                by_flops=self._by_flops[n],
                by_bytes=self._by_bytes[n],
            )
            for n, call in enumerate(calls)
        )
        text = self._source.printed.lines if lines else []
        by_line = tuple(
            LineShare(line, text[line - 1].strip(), count, count / total)
            for line, count in sorted(lines.items())
        )
        largest = max(shares, default=0.0)
        error = math.sqrt(largest * (1 - largest) / total) if shares and total else 0.0
        return Split(name, total, operators, by_line, error)

    def _divide(self, lines: Mapping[int, float]) -> list[float]:
        """Returns the samples of each operator."""
        alone = [0.0] * self._count
        shared: list[tuple[tuple[int, ...], float]] = []
        for line, samples in lines.items():
            positions = self._serves(line)
            if len(positions) == 1:
                alone[positions[0]] += samples
            else:
                shared.append((positions, samples))
        divided = list(alone)
        for positions, samples in shared:
            weights = [alone[p] for p in positions]
            if not sum(weights):
                weights = [self._by_flops[p] for p in positions]
            if not sum(weights):
                weights = [1.0] * len(positions)
            for position, weight in zip(positions, weights, strict=True):
                divided[position] += samples * weight / sum(weights)
        return divided

    def _serves(self, line: int) -> tuple[int, ...]:
        """Returns the positions of the operators that a line of the loop nest serves."""
        found = self._positions.get(line)
        if found is None:
            stages = self._source.printed.stages[line - 1]
            positions = {self._source.stage_op(stage) for stage in stages} - {None}
            every = range(self._count)
            found = self._positions[line] = tuple(p for p in every if p in positions) or tuple(
                every
            )
        return found


def _layers(call: Call, order: Mapping[str, int]) -> tuple[str, ...]:
    """Returns an operator's layers in the model's order."""
    return tuple(sorted(call.span.layers, key=lambda layer: order.get(layer, len(order))))


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
