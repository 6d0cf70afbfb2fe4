"""Inlines the functions that a function calls, and decides which operands stay in a region."""

from __future__ import annotations

from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.inline import inlined
from clew.ir.rewrite import Rewriter


def keeps_constants(argument: Expr, user: Expr) -> bool:
    """Whether an argument of an operator stays inside the operator's region: constants do."""
    return isinstance(argument, Constant)


def flat(function: Function) -> Function:
    """Returns a function with the functions that it calls inlined, except primitive ones."""
    return _Flat().rewrite_function(function)


class _Flat(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        called = new.op
        if isinstance(called, Function) and not called.is_primitive:
            return inlined(called, new.args)
        return new
