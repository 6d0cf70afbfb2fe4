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
from clew.passes.placement.claims import Claims, Regions, asked, claims_of, with_composites
from clew.support.errors import CompileError
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

    Errors: C073 where a backend's own code fails.

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
        for piece, region in zip(pieces, _regions(function, pieces), strict=True):
            seconds = _cost(backend, with_composites(region, backend), target)
            here = cpu_seconds(region, target) if seconds is not None else 0.0
            if seconds is None or seconds < here:
                kept.append(piece)
                continue
            there = f"{seconds * 1e6:.3g} µs there, {here * 1e6:.3g} µs on the CPU"
            self._ctx.remark(piece.members[-1], f"not run on {backend.name}: {there}")
        return kept


def _cost(backend: Claims, region: Function, target: Target) -> float | None:
    """Errors: C073 for a cost that is no time."""
    seconds = asked(backend, "cost", backend.cost, region, target)
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise CompileError(
            "C073",
            f"the backend {backend.name} states a cost of {seconds!r}",
            hint="a cost is a number of seconds, or None",
        )
    return float(seconds)


def _attrs(backend: Claims, members: Sequence[Expr]) -> dict[str, object]:
    names = [m.op_name.rpartition(".")[2] for m in members if isinstance(m, Call)]
    more = ["etc"] if len(names) > _MOST_NAMED else []
    name = "_".join([*names[:_MOST_NAMED], *more])
    return {"primitive": True, "name": name, "backend": backend.name}


def _stays(argument: Expr, user: Expr) -> bool:
    return isinstance(argument, Constant)


def _regions(function: Function, pieces: Sequence[Piece]) -> list[Function]:
    """Returns the functions that pieces would be, all of which may be regions at once."""
    numbered = [Piece(p.members, {"number": n}) for n, p in enumerate(pieces)]
    outlined = Outliner(numbered, _stays).rewrite_function(function)
    found: dict[int, Function] = {}
    for node in post_order(outlined.body):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and "number" in called.attrs:
            found[called.attrs.number] = called
    return [found[n] for n in range(len(pieces))]


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
