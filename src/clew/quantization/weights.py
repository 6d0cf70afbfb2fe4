"""Weights that a file stores in another form, such as transposed or as 16-bit floats."""

from __future__ import annotations

from typing import Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order
from clew.ops.registry import Op

_FORMS: Final = frozenset({"transpose", "reshape", "cast", "identity"})
_PRODUCTS: Final = ("nn.dense", "nn.matmul")


def settled_weights(module: Module) -> Module:
    """Returns a module whose products have constant weights where only movements and casts of
    constants lead to them.
    """
    return _Settler().rewrite_module(module)


class _Settler(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._weights: set[int] = set()

    def enter(self, function: Function) -> None:
        """Finds the calls between constants and products."""
        pending = [
            node.args[1]
            for node in post_order(function.body)
            if isinstance(node, Call) and _is_product(node)
        ]
        while pending:
            node = pending.pop()
            if isinstance(node, Call) and node.op_name in _FORMS and len(node.args) == 1:
                self._weights.add(node.id)
                pending.append(node.args[0])

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.id not in self._weights or not isinstance(new.args[0], Constant):
            return new
        assert isinstance(new.op, Op)
        weight = new.args[0]
        with self.covers(old, *old.args):
            value = new.op.run_reference([weight.data], new.attrs)
            return Constant(np.asarray(value), name=weight.name)


def _is_product(call: Call) -> bool:
    if not isinstance(call.op, Op) or len(call.args) < 2:
        return False
    return bool(call.op.traits.convolves) or call.op_name in _PRODUCTS
