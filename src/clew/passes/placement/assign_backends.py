"""AssignBackends: regions of the graph go to the backends that take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clew.cost.regions import region_seconds
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op, runs_on_host
from clew.passes.base import Pass, PassContext
from clew.passes.placement.claims import Claims, Regions, claims_of, with_composites
from clew.te.analysis import flops_of

_MOST_NAMED = 4


@dataclass(frozen=True)
class AssignBackends(Pass):
    """Makes regions of the operators that backends take: functions with the attribute `backend`.

    A region is as large as it can be while no value leaves it and comes back. Its constants are
    inside. Later passes leave it alone, and the program runs it as one step on its backend.
    Backends are asked in order; operators that the first one does not get are offered to the next.
    Where a backend states a cost, a region is kept only if it costs less than an estimate for the
    CPU, with the copies at its borders included in the former.

    Before:
        %1 = nn.matmul(%0, const); %2 = nn.relu(%1); %3 = softmax(%2)
    After:
        %4 = fn[matmul_relu](%0) with backend="npu" { ... }; %3 = softmax(%4)

    Preconditions: after what simplifies the graph for any machine, before passes that choose
    layouts or convert operators for the CPU. Non-goals: operators whose shapes only a run tells.
    """

    opt_level: ClassVar[int] = 0

    backends: tuple[Claims, ...] = ()

    def __str__(self) -> str:
        keys = ", ".join(f"{b.name}:{b.key}" for b in self.backends)
        return f"{self.name}(backends=({keys}))"

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Assigner(self.backends, ctx).rewrite_module(module)


class _Assigner(Rewriter):
    """Hands each function of a module to an outliner of its own."""

    def __init__(self, backends: Sequence[Claims], ctx: PassContext) -> None:
        super().__init__()
        self._backends = backends
        self._ctx = ctx

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive:
            return function
        pieces: list[Piece] = []
        for backend in self._backends:
            claims, matches = claims_of(function, backend, pieces)
            if claims:
                found = Regions(function, claims, matches, pieces).members()
                made = [Piece(tuple(members), _attrs(backend, members)) for members in found]
                pieces += self._worthwhile(function, backend, made)
        return Outliner(pieces, _stays, self.rewrite_function).rewrite_function(function)

    def _worthwhile(
        self, function: Function, backend: Claims, pieces: Sequence[Piece]
    ) -> list[Piece]:
        """Returns the regions that their backend runs faster than the CPU, or at no known cost."""
        target = self._ctx.target
        if target is None:
            return list(pieces)
        kept = []
        for piece in pieces:
            region = _region(function, piece)
            seconds = backend.cost(with_composites(region, backend), target)
            here = cpu_seconds(region, target) if seconds is not None else 0.0
            if seconds is None or seconds < here:
                kept.append(piece)
                continue
            there = f"{seconds * 1e6:.3g} µs there, {here * 1e6:.3g} µs on the CPU"
            self._ctx.remark(piece.members[-1], f"not run on {backend.name}: {there}")
        return kept


def _attrs(backend: Claims, members: Sequence[Expr]) -> dict[str, object]:
    names = [m.op_name.rpartition(".")[2] for m in members if isinstance(m, Call)]
    more = ["etc"] if len(names) > _MOST_NAMED else []
    name = "_".join([*names[:_MOST_NAMED], *more])
    return {"primitive": True, "name": name, "backend": backend.name}


def _stays(argument: Expr, user: Expr) -> bool:
    return isinstance(argument, Constant)


def _region(function: Function, piece: Piece) -> Function:
    """Returns the function that a piece would be."""
    outlined = Outliner([piece], _stays).rewrite_function(function)
    names = dict(piece.attrs) if not callable(piece.attrs) else {}
    for node in post_order(outlined.body):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and dict(called.attrs) == names:
            return called
    raise AssertionError("the piece is not called")


def cpu_seconds(region: Function, target: Target) -> float:
    """Returns about how long one core takes for a region, each of its operands and results moved
    once.
    """
    nodes = post_order(region.body)
    flops = sum(_flops(n) for n in nodes if isinstance(n, Call))
    values = [*region.params, region.body, *(n for n in nodes if isinstance(n, Constant))]
    moved = sum(t.size_bytes for v in values for t in _tensors(v))
    return region_seconds(flops, moved, target)


def _flops(call: Call) -> float:
    """Returns the operations of a call; those of an operator without tensor form are one for each
    element.
    """
    types = [t for t in (a.type for a in call.args) if isinstance(t, TensorType)]
    op, known = call.op, len(types) == len(call.args) and not runs_on_host(call)
    if not isinstance(op, Op) or op.compute is None or not known:
        return float(sum(math.prod(t.concrete) for t in _tensors(call)))
    flops = flops_of(op.computed(types, call.attrs))
    assert isinstance(flops, int), "a region's shapes are known"
    return float(flops)


def _tensors(node: Expr) -> list[TensorType]:
    return [t for t in leaves(node.type) if isinstance(t, TensorType)]
