"""Compares the costs that a backend states for regions with estimates for the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from clew.cost.regions import region_seconds
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.outline import Outliner, Piece
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.work import call_flops
from clew.passes.base import PassContext
from clew.passes.placement.claims import Claims, asked, with_composites
from clew.passes.placement.flat import flat, keeps_constants
from clew.support.errors import CompileError


def worthwhile(
    function: Function, backend: Claims, pieces: Sequence[Piece], ctx: PassContext
) -> list[Piece]:
    """Returns the regions whose backend is faster than the CPU, or states no cost.

    Errors: C073 if the backend's code fails.
    """
    target = ctx.target
    if target is None:
        return list(pieces)
    kept = []
    for piece, region in zip(pieces, functions_of(function, pieces), strict=True):
        seconds = _cost(backend, with_composites(region, backend), target)
        here = cpu_seconds(region, target) if seconds is not None else 0.0
        if seconds is None or seconds < here:
            kept.append(piece)
            continue
        there = f"{seconds * 1e6:.3g} µs there, {here * 1e6:.3g} µs on the CPU"
        ctx.remark(piece.members[-1], f"not run on {backend.name}: {there}")
    return kept


def _cost(backend: Claims, region: Function, target: Target) -> float | None:
    """Returns the seconds that a backend states for a region; None if it states none.

    Errors: C073 if the backend's code fails or returns anything else.
    """
    seconds = asked(backend, "cost", backend.cost, region, target)
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise CompileError(
            "C073",
            f"the backend {backend.name} states a cost of {seconds!r}",
            hint="cost must return a number of seconds, or None",
        )
    return float(seconds)


def functions_of(function: Function, pieces: Sequence[Piece]) -> list[Function]:
    """Returns, for each piece, the function of plain operators that it would become as a region.
    The pieces must be disjoint and must not depend on each other in a cycle.
    """
    numbered = [Piece(p.members, {"number": n}) for n, p in enumerate(pieces)]
    outlined = Outliner(numbered, keeps_constants).rewrite_function(function)
    found: dict[int, Function] = {}
    for node in post_order(outlined.body):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and "number" in called.attrs:
            found[called.attrs.number] = called
    return [flat(found[n]) for n in range(len(pieces))]


def cpu_seconds(region: Function, target: Target) -> float:
    """Returns an estimate of the seconds that one core takes for a region, which reads each operand
    and writes each result once.
    """
    nodes = post_order(region.body)
    flops = sum(call_flops(n) for n in nodes if isinstance(n, Call))
    assert isinstance(flops, int), "a region's shapes are known"
    values = [*region.params, region.body, *(n for n in nodes if isinstance(n, Constant))]
    moved = sum(t.size_bytes for v in values for t in _tensors(v))
    return region_seconds(flops, moved, target)


def _tensors(node: Expr) -> list[TensorType]:
    return [t for t in leaves(node.type) if isinstance(t, TensorType)]
