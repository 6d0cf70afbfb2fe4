"""FuseOps: gathers operators into kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece
from clew.ir.rewrite import Rewriter
from clew.passes.base import Pass, PassContext
from clew.passes.fusion.fusion_groups import Group, Grouper, stays_inside


@dataclass(frozen=True)
class FuseOps(Pass):
    """Gathers operators into groups, each of which becomes one kernel: an inline primitive
    function.

    Memory traffic, not arithmetic, is what small operators cost: a convolution's bias, activation
    and residual add are done on its tile while that is in registers. The kinds that `compute`
    derives decide (`fusion_groups` has the rules); every decision not to fuse leaves a remark.

    Before:
        %3 = nn.conv2d(%1, weight); %4 = add(%3, bias); %5 = nn.relu(%4)
    After:
        %9 = fn[conv2d_add_relu](%6, %7, %8) { nn.relu(add(nn.conv2d(%6, %7), %8)) }(%1, weight,
        bias)

    Constants are arguments of the function, but for single elements and splats, which stay inside.
    Reshapes at a group's edge, and alone, stay outside: they are other views of the same memory.
    Host operators stay outside as well.

    Depthwise convolutions take the 1x1 convolutions around them into their kernel where that pays
    (`melting` says where), unless `melt` is off.

    `mode="none"` puts each operator in a function of its own. `max_ops` and `max_inputs` bound a
    group. `results` are ids of calls whose values somebody wants to read: a kernel that has one
    inside becomes several, and all others stay as they are.

    Preconditions: no pass after this one looks for operator patterns. Non-goals: choosing loops.
    """

    opt_level: ClassVar[int] = 0

    mode: Literal["auto", "none"] = "auto"
    max_ops: int = 64
    max_inputs: int = 30
    melt: bool = True
    results: frozenset[int] = frozenset()

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Fuser(self, ctx).rewrite_module(module)


class _Fuser(Rewriter):
    """Hands each function of a module to an outliner of its own: a value that two functions share
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
        grouper = Grouper(function, self._ctx, options.max_ops, options.max_inputs)
        none = options.mode == "none"
        groups = (
            grouper.singletons()
            if none
            else grouper.groups(melt=options.melt, results=options.results)
        )
        pieces = [_piece(group) for group in dict.fromkeys(groups.values())]
        return Outliner(pieces, self._stays, self.rewrite_function).rewrite_function(function)

    def _stays(self, argument: Expr, user: Expr) -> bool:
        return isinstance(user, Call) and stays_inside(argument, self._ctx.kind(user))


def _piece(group: Group) -> Piece:
    attrs = {"primitive": True, "name": group.name}
    return Piece(tuple(group.members), attrs, (group.root,))
