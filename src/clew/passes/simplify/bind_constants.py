"""BindConstants: gives branches and loop bodies the constants that they always receive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from clew.ir.expr import Call, Constant, Expr, Function, If, TupleGetItem, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, leaves
from clew.ir.visit import passed_on, post_order
from clew.ops.registry import moved_operands, runs_on_host, widens
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class BindConstants(Pass):
    """Replaces a parameter of a branch or loop body by the weight that it always holds: a constant,
    perhaps moved or widened (dequantized). Passes then treat products with it like any others.

    Before: `%1 = dequantize(w, s)`, `%2 = while(... body=fn(%i, %h, %w) { ..., %w } (%h0, %1))`
    After:  the body computes `dequantize(w, s)`, which FoldConstant folds, and reads no `%w`

    The parameter itself remains until DeadCode. Preconditions: none; runs before NarrowIntegers,
    which needs to see how a weight was quantized. Non-goals: other expressions of constants, which
    each iteration would compute again if FoldConstant left them to the run.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        functions = [function for _, function in module]
        nodes = post_order(functions, into_functions=True)
        if not any(isinstance(n, (If, While)) for n in nodes):
            return module
        return _WeightBinder().rewrite_module(module)


class ConstantBinder(Rewriter):
    """Rewrites branches and loop bodies with constants in place of parameters that always hold
    these.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[int, Expr] = {}  # by parameter

    def constant(self, value: Expr) -> Expr | None:
        """Returns an argument's value for use inside of another function; None if it varies."""
        return value if isinstance(value, Constant) else None

    def enter(self, function: Function) -> None:
        for param in function.params:
            if param.id in self._given:
                self.memo[param.id] = self._given[param.id]

    def order(self, function: Function) -> Sequence[Expr]:
        # Branches and bodies are visited from their If or While, when their constants are known.
        return [n for n in super().order(function) if not isinstance(n, Function)]

    def _visit(self, node: Expr) -> Expr:
        if isinstance(node, (If, While)) and node.id not in self.memo:
            self._bind(node)
        return super()._visit(node)

    def _bind(self, node: If | While) -> None:
        """Records the parameters of a branch or loop that are constants."""
        if isinstance(node, If):
            given = [(n, self._visited(arg)) for n, arg in enumerate(node.args)]
            functions = (node.then, node.orelse)
        else:
            init = [self._visited(arg) for arg in node.init]
            given = [(n + 1, init[n]) for n in passed_on(node)]
            functions = (node.cond, node.body)
        for n, value in given:
            for function in functions:
                if value.type == function.params[n].type:
                    found = self.constant(value)
                    if found is not None:
                        self._given[function.params[n].id] = found


class _WeightBinder(ConstantBinder):
    def __init__(self) -> None:
        super().__init__()
        self._weights: set[int] = set()  # ids of moved or widened constants

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if all(map(self._is_weight, new.args)) and _moves_or_widens(new):
            self._weights.add(new.id)
        return new

    def rewrite_tuple_get_item(self, old: TupleGetItem, new: TupleGetItem) -> Expr:
        found = super().rewrite_tuple_get_item(old, new)
        if found is new and self._is_weight(new.value):
            self._weights.add(new.id)
        return found

    def constant(self, value: Expr) -> Expr | None:
        if not self._is_weight(value):
            return None
        copies: dict[int, Expr] = {}  # functions share constants, but no other nodes
        for node in post_order(value):
            copy = copies[node.id] = self._copied(node, [copies[c.id] for c in node.children])
            if copy is not node:
                self._weights.add(copy.id)
        return copies[value.id]

    def _copied(self, node: Expr, children: Sequence[Expr]) -> Expr:
        if isinstance(node, Constant):
            return node
        with self.covers(node):
            if isinstance(node, TupleGetItem):
                return TupleGetItem(children[0], node.index)
            assert isinstance(node, Call)
            return node.with_args(children)

    def _is_weight(self, value: Expr) -> bool:
        return isinstance(value, Constant) or value.id in self._weights


def _moves_or_widens(call: Call) -> bool:
    """Whether a call makes no more elements than it reads, and only moves or widens these."""
    types = [leaf for node in (call, *call.args) for leaf in leaves(node.type)]
    if not call.args or not all(isinstance(t, TensorType) and t.is_static for t in types):
        return False
    if not moved_operands(call) and (runs_on_host(call) or not widens(call)):
        return False
    return _elems(call) <= sum(map(_elems, call.args))


def _elems(value: Expr) -> int:
    return sum(math.prod(t.concrete) for t in leaves(value.type) if isinstance(t, TensorType))
