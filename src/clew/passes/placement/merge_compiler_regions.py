"""MergeCompilerRegions: joins neighbors on one backend to convex regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from clew.ir.expr import Call, Expr, Function
from clew.ir.inline import inlined
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.visit import post_order
from clew.passes.base import Pass, PassContext
from clew.passes.placement.convex import Regions
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class MergeCompilerRegions(Pass):
    """Joins functions with the same attribute `backend` to larger ones.

    A region is as large as possible such that no value leaves it and comes back, and that no
    regions wait for each other. It may have several results. `order` names the backends whose
    regions are formed first; the others follow in the order of the graph.

    Before:
        %1 = fn(%0) with backend="npu" { ... }; %2 = fn(%1) with backend="npu" { ... }
    After:
        %3 = fn(%0) with backend="npu" { ... }

    Preconditions: annotated operators. Non-goals: functions of other backends.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    order: tuple[str, ...] = ()

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Merger(self.order).rewrite_module(module)


class _Merger(Rewriter):
    def __init__(self, order: Sequence[str]) -> None:
        super().__init__()
        self._order = order

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive or function.backend or "composite" in function.attrs:
            return function
        return _Joiner(self._pieces(function), inner=self.rewrite_function).rewrite_function(
            function
        )

    def _pieces(self, function: Function) -> list[Piece]:
        annotated: dict[str, list[int]] = {name: [] for name in self._order}
        for node in post_order(function.body):
            if isinstance(node, Call) and isinstance(node.op, Function) and node.op.backend:
                annotated.setdefault(node.op.backend, []).append(node.id)
        pieces: list[Piece] = []
        for name, ids in annotated.items():
            found = Regions(function, ids, pieces).members()
            pieces += [Piece(tuple(members), {"backend": name}) for members in found]
        return pieces


class _Joiner(Outliner):
    """Outlines regions, and inlines the annotated functions inside them."""

    def dispatch(self, old: Expr, new: Expr) -> Expr:
        made = super().dispatch(old, new)
        called = made.op if isinstance(made, Call) else None
        if isinstance(made, Call) and isinstance(called, Function) and called.backend:
            return inlined(called, made.args, building=building_for, copied=replaces)
        return made
