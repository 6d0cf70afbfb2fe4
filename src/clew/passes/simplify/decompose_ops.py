"""DecomposeOps: expands operators that are defined only by other operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ops.registry import Op, argument_references
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.expand import expand


@dataclass(frozen=True)
class DecomposeOps(Pass):
    """Expands operators that have a `decompose` but no computation.

    Before: `%2 = user.mean_square(%1)`, declared as `mean(multiply(x, x))`
    After:  `%3 = multiply(%1, %1)`, `%4 = mean(%3)`

    Preconditions: passes that match these operators have run. Non-goals: host operators, and
    operators with attributes known only at run time.
    """

    opt_level: ClassVar[int] = 0

    def run(self, module: Module, ctx: PassContext) -> Module:
        return expand(module, _has_no_computation)


def _has_no_computation(call: Expr) -> bool:
    return (
        isinstance(call, Call)
        and isinstance(call.op, Op)
        and call.op.compute is None
        and not call.op.host
        and not argument_references(call.attrs)
    )
