"""MergeComposite: replaces each match of the backends' patterns by a composite function."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.outline import Outliner
from clew.ir.rewrite import Rewriter
from clew.passes.base import Pass, PassContext
from clew.passes.placement.claims import Claims, keys_of, matches_of
from clew.passes.placement.flat import keeps_constants
from clew.passes.placement.rules import FIRST, Rule
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class MergeComposite(Pass):
    """Replaces each match of a backend's pattern by a call of a function with the attributes
    `composite`, the pattern's name, and `of`, the backend's.

    Patterns of earlier backends take precedence, as do earlier patterns of a backend. With a
    `rule`, a match counts only if the rule gives each of its calls to the backend.

    Before:
        %1 = nn.matmul(%0, %w); %2 = nn.relu(%1)
    After:
        %3 = fn[dense_relu](%0, %w) with composite="dense_relu", of="npu" { ... }

    Errors: C073 if a backend's code fails.

    Preconditions: after the passes that simplify the graph for any machine. Non-goals: operators
    with data-dependent shapes.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    backends: tuple[Claims, ...] = ()
    rule: Rule = FIRST

    def __str__(self) -> str:
        return f"{self.name}({keys_of(self.backends)}, {self.rule})"

    def run(self, module: Module, ctx: PassContext) -> Module:
        for backend in self.backends:
            if backend.patterns:
                module = _Merger(backend, self.rule.bound(module)).rewrite_module(module)
        return module


class _Merger(Rewriter):
    def __init__(self, backend: Claims, chosen: Rule) -> None:
        super().__init__()
        self._backend = backend
        self._rule = chosen

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive or "composite" in function.attrs:
            return function
        parts = matches_of(function, self._backend, self._among)
        return Outliner(parts, keeps_constants, self.rewrite_function).rewrite_function(function)

    def _among(self, call: Call) -> bool:
        return self._rule.gives(call, self._backend.name)
