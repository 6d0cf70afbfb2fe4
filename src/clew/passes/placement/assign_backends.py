"""AssignBackends: assigns regions of the graph to the backends that take their operators."""

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
    """Groups operators that backends take into regions: functions with the attribute `backend`.

    A region is as large as possible such that no value leaves it and comes back. It contains its
    constants. Later passes do not change it, and the program runs it as one step on its backend.
    Backends claim operators in order; the operators that the first does not get are offered to the
    next. If a backend states a cost, which includes the copies at the region's borders, a region is
    kept only if its cost is less than an estimate for the CPU.

    Before:
        %1 = nn.matmul(%0, const); %2 = nn.relu(%1); %3 = softmax(%2)
    After:
        %4 = fn[matmul_relu](%0) with backend="npu" { ... }; %3 = softmax(%4)

    Errors: C073 if a backend's code fails.

    Preconditions: after the passes that simplify the graph for any machine, before passes that
    choose layouts or convert operators for the CPU. Non-goals: operators with data-dependent
    shapes.
    """

    opt_level: ClassVar[int] = 0

    backends: tuple[Claims, ...] = ()

    def __str__(self) -> str:
        keys = ", ".join(f"{b.name}:{b.key}" for b in self.backends)
        return f"{self.name}(backends=({keys}))"

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Assigner(self.backends, ctx).rewrite_module(module)


class _Assigner(Rewriter):
    """Outlines the regions of each function of a module."""

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
        """Returns the regions whose backend is faster than the CPU, or states no cost."""
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
    """Errors: C073 for a cost that is not a number of seconds."""
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


def _attrs(backend: Claims, members: Sequence[Expr]) -> dict[str, object]:
    names = [m.op_name.rpartition(".")[2] for m in members if isinstance(m, Call)]
    more = ["etc"] if len(names) > _MOST_NAMED else []
    name = "_".join([*names[:_MOST_NAMED], *more])
    return {"primitive": True, "name": name, "backend": backend.name}


def _stays(argument: Expr, user: Expr) -> bool:
    return isinstance(argument, Constant)


def _regions(function: Function, pieces: Sequence[Piece]) -> list[Function]:
    """Returns the functions that pieces would become as regions. They must be compatible."""
    numbered = [Piece(p.members, {"number": n}) for n, p in enumerate(pieces)]
    outlined = Outliner(numbered, _stays).rewrite_function(function)
    found: dict[int, Function] = {}
    for node in post_order(outlined.body):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and "number" in called.attrs:
            found[called.attrs.number] = called
    return [found[n] for n in range(len(pieces))]


def cpu_seconds(region: Function, target: Target) -> float:
    """Returns an estimate of the seconds that one core takes for a region, if each operand and
    result is moved once.
    """
    nodes = post_order(region.body)
    flops = sum(_flops(n) for n in nodes if isinstance(n, Call))
    values = [*region.params, region.body, *(n for n in nodes if isinstance(n, Constant))]
    moved = sum(t.size_bytes for v in values for t in _tensors(v))
    return region_seconds(flops, moved, target)


def _flops(call: Call) -> float:
    """Returns the number of operations of a call: one per element if the operator has no tensor
    form.
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
