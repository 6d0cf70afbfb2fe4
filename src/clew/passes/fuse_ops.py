"""FuseOps: gathers operators into kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ir.parameters import Parameters
from clew.ir.rewrite import Rewriter, replaces
from clew.passes.base import Pass, PassContext
from clew.passes.fusion_groups import Group, Grouper, stays_inside


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
    group.

    Preconditions: no pass after this one looks for operator patterns. Non-goals: choosing loops.
    """

    opt_level: ClassVar[int] = 0

    mode: Literal["auto", "none"] = "auto"
    max_ops: int = 64
    max_inputs: int = 30
    melt: bool = True

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Fuser(self, ctx).rewrite_module(module)


class _Fuser(Rewriter):
    """Copies each group's operators into a function. One fuser rewrites one function's body: a
    value that two functions share (computed from constants) belongs to a group in each.
    """

    def __init__(self, options: FuseOps, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._entered = False
        self._groups: dict[int, Group] = {}
        self._open: dict[int, Parameters] = {}

    def rewrite_module(self, module: Module) -> Module:
        changed = {name: self._another().rewrite_function(f) for name, f in module}
        return module.with_functions(changed)

    def _another(self) -> _Fuser:
        return _Fuser(self._options, self._ctx)

    def rewrite_function(self, function: Function) -> Function:
        if self._entered:
            return self._another().rewrite_function(function)
        self._entered = True
        return super().rewrite_function(function)

    def enter(self, function: Function) -> None:
        options = self._options
        grouper = Grouper(function, self._ctx, options.max_ops, options.max_inputs)
        none = options.mode == "none"
        self._groups = grouper.singletons() if none else grouper.groups(melt=options.melt)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        group = self._groups.get(old.id)
        if group is None:
            return new
        parameters = self._open.setdefault(group.root.id, Parameters())
        inner = old.with_args([self._inner(group, parameters, old, a) for a in old.args])
        if old is not group.root:
            return inner
        del self._open[group.root.id]
        replaces(old, inner)
        with self.covers(*group.members_root_first()):
            attrs = {"primitive": True, "name": group.name}
            function = Function(parameters.variables, inner, attrs)
            return Call(function, parameters.arguments)

    def _inner(self, group: Group, parameters: Parameters, user: Call, arg: Expr) -> Expr:
        """Returns what stands for an argument inside the group's function."""
        if self._groups.get(arg.id) is group:
            return self.memo[arg.id]
        if stays_inside(arg, self._ctx.kind(user)):
            return arg
        return parameters.of(self.memo[arg.id])
