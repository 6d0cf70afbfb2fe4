"""DecomposeOps: expands operators that are defined only by other operators."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ops.registry import Op, argument_references
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.expand import expand
from clew.patterns import Match, is_call, rule
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class DecomposeOps(Pass):
    """Expands operators that have a `decompose` but no computation.

    Before: `%2 = user.mean_square(%1)`, declared as `mean(multiply(x, x))`
    After:  `%3 = multiply(%1, %1)`, `%4 = mean(%3)`

    Calls with attributes that only the run knows are replaced by operators that take sizes from
    their operands, if the operator has a rule for that (`held`).

    Preconditions: passes that match these operators have run. Non-goals: host operators.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        return expand(module, _has_no_computation, _with_sizes_of_operands)


def _holds_attributes(call: Expr) -> bool:
    return (
        isinstance(call, Call)
        and isinstance(call.op, Op)
        and call.op.held_rule is not None
        and bool(argument_references(call.attrs))
    )


@rule(is_call().check(_holds_attributes))
def _with_sizes_of_operands(found: Match) -> Expr | None:
    call = found.root
    assert isinstance(call, Call)
    assert isinstance(call.op, Op)
    assert call.op.held_rule is not None
    return call.op.held_rule(call.args, call.attrs)


def _has_no_computation(call: Expr) -> bool:
    return (
        isinstance(call, Call)
        and isinstance(call.op, Op)
        and call.op.compute is None
        and not call.op.host
        and not argument_references(call.attrs)
    )
