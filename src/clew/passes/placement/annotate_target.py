"""AnnotateTarget: assigns operators and composites to backends."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order
from clew.passes.base import Pass, PassContext
from clew.passes.placement.claims import Claims, keys_of
from clew.passes.placement.flat import keeps_constants
from clew.passes.placement.rules import FIRST, Rule
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class AnnotateTarget(Pass):
    """Wraps each call that a backend gets, of an operator or of a composite function, in a function
    with the attribute `backend`.

    The `rule` assigns calls to backends; by default, a call goes to the first backend that takes it
    and is faster. Constants that the call reads are inside the function.

    Before:
        %1 = nn.matmul(%0, const); %2 = nn.softmax(%1)
    After:
        %3 = fn(%0) with backend="npu" { nn.matmul(%0, const) }; %2 = nn.softmax(%3)

    Errors: C073 if a backend's code fails. Reported: I354 for layers that the rule gives to
    a backend that does not take them, and for a backend that gets nothing: an error if it is one of
    `required`, otherwise a warning where the rule is to give each backend something.

    Preconditions: composites, if any, have been merged. Non-goals: operators with data-dependent
    shapes.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    backends: tuple[Claims, ...] = ()
    rule: Rule = FIRST
    required: tuple[str, ...] = ()

    @property
    def is_builtin(self) -> bool:
        return super().is_builtin and self.rule.is_builtin

    def __str__(self) -> str:
        required = f", required={','.join(self.required)}" if self.required else ""
        return f"{self.name}({keys_of(self.backends)}, {self.rule}{required})"

    def run(self, module: Module, ctx: PassContext) -> Module:
        new = _Annotator(self.backends, self.rule.bound(module), ctx).rewrite_module(module)
        self.rule.review(module, new, self.backends, ctx)
        for wish in self.rule.left_out(module, new, self.backends, self.required):
            ctx.unmet(wish)
        return new


class _Annotator(Rewriter):
    def __init__(self, backends: tuple[Claims, ...], chosen: Rule, ctx: PassContext) -> None:
        super().__init__()
        self._backends = backends
        self._rule = chosen
        self._ctx = ctx

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive or function.backend or "composite" in function.attrs:
            return function
        names = self._rule.assigned(function, self._backends, self._ctx)
        pieces = [
            Piece((node,), {"backend": names[node.id]})
            for node in post_order(function.body)
            if isinstance(node, Call) and node.id in names
        ]
        return Outliner(pieces, keeps_constants, self.rewrite_function).rewrite_function(function)
