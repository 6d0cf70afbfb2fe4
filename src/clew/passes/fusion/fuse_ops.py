"""FuseOps: groups operators into kernels."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from clew.cost.policy.fusion import MOST_INPUTS, MOST_OPERATORS
from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece
from clew.ir.rewrite import Rewriter
from clew.passes.base import Pass, PassContext
from clew.passes.decisions import Decisions, Defaults
from clew.passes.fusion.differing_constants import differing_constants
from clew.passes.fusion.fusion_groups import Group, Grouper, stays_inside
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class FuseOps(Pass):
    """Groups operators; each group becomes one kernel, an inline primitive function.

    Small operators cost memory traffic, not arithmetic: a convolution's bias, activation and
    residual add run on its tile while the tile is in registers. The fusion kinds derived from
    `compute` decide (see the rules in `fusion_groups`); every decision not to fuse leaves a remark.

    Before:
        %3 = nn.conv2d(%1, weight); %4 = add(%3, bias); %5 = nn.relu(%4)
    After:
        %9 = fn[conv2d_add_relu](%6, %7, %8) { nn.relu(add(nn.conv2d(%6, %7), %8)) }(%1, weight,
        bias)

    Constants become arguments of the function, except single elements and splats, which stay
    inside. Where kernels are equal but for the numbers that they add or multiply by, these are
    arguments, too, so that the layers share a kernel (`differing_constants`). Reshapes at the edges
    of a group, or alone, stay outside: they are views of the same memory. Host operators stay
    outside as well.

    Depthwise convolutions take adjacent 1x1 convolutions into their kernel where that is profitable
    (`melted_convolutions` has the conditions), unless `melt` is off.

    `mode="none"` puts each operator in a separate function. `max_ops` and `max_inputs` bound a
    group. `results` holds ids of calls whose values must be readable: a kernel that computes one
    inside is split into several, and all others stay unchanged. So do the names of operators in
    `stored`, for all calls of them. `decisions` may keep apart what would be melted.

    Preconditions: no pass after this one looks for operator patterns. Non-goals: choosing loops.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    mode: Literal["auto", "none"] = "auto"
    max_ops: int = MOST_OPERATORS
    max_inputs: int = MOST_INPUTS
    melt: bool = True
    results: frozenset[int] = frozenset()
    stored: frozenset[str] = frozenset()
    decisions: Decisions = field(default_factory=Defaults)

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Fuser(self, ctx).rewrite_module(module)


class _Fuser(Rewriter):
    """Gives each function of a module a separate outliner: a value that two functions share
    (computed from constants) belongs to a group in each.
    """

    def __init__(self, options: FuseOps, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive:
            return function
        options = self._options
        grouper = Grouper(
            function, self._ctx, options.max_ops, options.max_inputs, options.decisions
        )
        none = options.mode == "none"
        groups = (
            grouper.singletons()
            if none
            else grouper.groups(melt=options.melt, results=options.results, stored=options.stored)
        )
        distinct = list(dict.fromkeys(groups.values()))
        differing = differing_constants(distinct)

        def stays(argument: Expr, user: Expr) -> bool:
            if not isinstance(user, Call) or (user.id, argument.id) in differing:
                return False
            return stays_inside(argument, user, self._ctx.kind(user))

        pieces = [_piece(group) for group in distinct]
        return Outliner(pieces, stays, self.rewrite_function).rewrite_function(function)


def _piece(group: Group) -> Piece:
    attrs = {"primitive": True, "name": group.name}
    return Piece(tuple(group.members), attrs, (group.root,))
