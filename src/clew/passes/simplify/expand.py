"""Expansion of operators by their own `decompose`, shared by several passes."""

from __future__ import annotations

from collections.abc import Callable

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ops.registry import Op
from clew.patterns import Match, Rule, RuleRewriter, is_call, rule


def expand(module: Module, wanted: Callable[[Expr], bool], *others: Rule) -> Module:
    """Returns the module with each call that satisfies `wanted` expanded, if its operator has a
    `decompose`. The rules, including `others`, also apply to the expansion.
    """

    def fits(node: Expr) -> bool:
        return (
            isinstance(node, Call)
            and isinstance(node.op, Op)
            and node.op.decompose_rule is not None
            and wanted(node)
        )

    @rule(is_call().check(fits))
    def by_decompose(found: Match) -> Expr | None:
        call = found.root
        assert isinstance(call, Call)
        assert isinstance(call.op, Op)
        assert call.op.decompose_rule is not None
        return call.op.decompose_rule(*call.args, **call.attrs)

    return RuleRewriter([by_decompose, *others]).rewrite_module(module)
