"""BindConstants: gives branches and loop bodies the constants that they always receive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from clew.ir.expr import Call, Constant, Expr, Function, If, TupleGetItem, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, leaves
from clew.ir.visit import passed_on, post_order
from clew.ops.registry import moved_operands
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness

_WIDENS: Final = ("dequantize", "cast")


@dataclass(frozen=True)
class BindConstants(Pass):
    """Replaces a parameter of a branch or loop body by the weight that it always holds: a constant,
    perhaps moved, cast or dequantized. Passes then treat products with it like any others.

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
    def constant(self, value: Expr) -> Expr | None:
        return self._copied(value) if _is_weight(value) else None

    def _copied(self, value: Expr) -> Expr:
        """Returns an expression of constants for another function: only constants are shared."""
        if isinstance(value, Constant):
            return value
        with self.covers(value):
            if isinstance(value, TupleGetItem):
                return TupleGetItem(self._copied(value.value), value.index)
            assert isinstance(value, Call)
            return value.with_args([self._copied(a) for a in value.args])


def _is_weight(value: Expr) -> bool:
    """Whether a value is a constant, or one that was moved, cast or dequantized."""
    if isinstance(value, TupleGetItem):
        return _is_weight(value.value)
    if not isinstance(value, Call):
        return isinstance(value, Constant)
    types = [leaf for node in (value, *value.args) for leaf in leaves(node.type)]
    if not all(isinstance(t, TensorType) and t.is_static for t in types):
        return False
    made = value.op_name in _WIDENS or moved_operands(value)
    return bool(made) and not _grows(value) and all(map(_is_weight, value.args))


def _grows(call: Call) -> bool:
    """Whether a result has more elements than its operands."""
    return _elems(call) > sum(map(_elems, call.args))


def _elems(value: Expr) -> int:
    return sum(math.prod(t.concrete) for t in leaves(value.type) if isinstance(t, TensorType))
