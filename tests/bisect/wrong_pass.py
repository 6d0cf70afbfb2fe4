"""A wrong pass in a file of its own, as users write them: reproducers take it along."""

from __future__ import annotations

from typing import Any

import clew
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.passes.base import PassContext
from clew.patterns import RuleRewriter, is_op, rule, wildcard

x = wildcard()


@rule(is_op("nn.relu")(x))
def silu(match: Any) -> Expr:
    return clew.get_op("nn.silu")(match[x])


@clew.graph_pass(before="AlterLayout")
def smoother(module: Module, ctx: PassContext) -> Module:
    return RuleRewriter([silu]).rewrite_module(module)


@clew.schedule_for(op="tanh")
def by_hand(schedule: Any, target: Any) -> bool:
    return False
