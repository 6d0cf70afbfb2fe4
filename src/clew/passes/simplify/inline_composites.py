"""InlineComposites: replaces calls of functions by the functions' bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from clew.ir.expr import Call, Expr, Function, GlobalVar
from clew.ir.inline import inlined
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.visit import inner_functions, post_order
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import UnsupportedError


@dataclass(frozen=True)
class InlineComposites(Pass):
    """Inlines the bodies of composite functions and of the module's functions at their calls.

    A composite function (`clew.patterns.partition`) groups operators for a pass that replaces its
    calls as a whole. This pass inlines the calls that no such pass replaced.

    Before: `%1 = fn[composite="gated"](%p) { multiply(%p, sigmoid(%p)) }`, `%2 = %1(%x)`
    After:  `%3 = sigmoid(%x)`, `%4 = multiply(%x, %3)`

    Preconditions: none. Non-goals: primitive functions (kernels), branches and loops.

    Errors: U011 for a recursive function.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Inliner(module).rewrite_module(module)


class _Inliner(Rewriter):
    def __init__(self, module: Module) -> None:
        super().__init__()
        self._module = module
        # The node of the previous stage that a node of a body was copied from.
        self._copied_from: dict[int, Expr] = {}
        self._once = _called_once(module)
        self._globals: dict[str, Function | None] = {}

    def rewrite_module(self, module: Module) -> Module:
        calls = any(
            isinstance(n, Call) and _is_inlined(n.op)
            for n in post_order([f for _, f in module], into_functions=True)
        )
        return super().rewrite_module(module) if calls else module

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not _is_inlined(new.op):
            return new
        if isinstance(new.op, GlobalVar):
            return self._inlined(self._global(new.op.name), new.args, False)
        assert isinstance(new.op, Function)
        assert isinstance(old.op, Function)
        return self._inlined(new.op, new.args, old.op.id in self._once)

    def _global(self, name: str) -> Function:
        """Returns a function of the module with its calls inlined."""
        if name not in self._globals:
            self._globals[name] = None  # in progress
            self._globals[name] = self.rewrite_function(self._module.functions[name])
        found = self._globals[name]
        if found is None:
            raise UnsupportedError(
                "U011", f"the function @{name} calls itself", hint="use a While for repetition"
            )
        return found

    def _inlined(self, function: Function, args: Sequence[Expr], once: bool) -> Expr:
        """Returns the function's body over arguments. If this is its only call, each copy is
        recorded as computing the value of its original.
        """

        def original(node: Expr) -> Expr:
            return self._copied_from.get(node.id, node)

        def copied(node: Expr, new: Expr) -> None:
            self._copied_from[new.id] = original(node)
            if once:
                replaces(original(node), new)

        return inlined(
            function, args, building=lambda node: building_for(original(node)), copied=copied
        )


def _is_inlined(called: object) -> bool:
    if isinstance(called, Function):
        return not called.is_primitive
    return isinstance(called, GlobalVar)


def _called_once(module: Module) -> frozenset[int]:
    """Returns the ids of functions with a single call, which itself executes once per run."""
    uses: dict[int, int] = {}
    for node in post_order([f for _, f in module], into_functions=True):
        for function in inner_functions(node):
            uses[function.id] = uses.get(function.id, 0) + 1
    found: set[int] = set()
    pending = [module.main]
    while pending:
        for node in post_order(pending.pop()):
            if isinstance(node, Call) and isinstance(node.op, Function) and uses[node.op.id] == 1:
                found.add(node.op.id)
                pending.append(node.op)
    return frozenset(found)
