"""A function's body in place of its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from clew.ir.expr import Expr, Function
from clew.ir.rewrite import rebuild
from clew.ir.visit import post_order


def inlined(
    function: Function,
    args: Sequence[Expr],
    *,
    building: Callable[[Expr], AbstractContextManager[object]] = lambda node: nullcontext(),
    copied: Callable[[Expr, Expr], None] = lambda node, new: None,
) -> Expr:
    """Returns the function's body with arguments in place of parameters.

    `building(node)` is entered around the copying of a node; `copied(node, new)` is called for each
    copy. Nodes that do not depend on the arguments are not copied. Inner functions are kept.
    """
    values: dict[int, Expr] = {p.id: a for p, a in zip(function.params, args, strict=True)}
    for node in post_order(function.body):
        if node.id in values or isinstance(node, Function) or not node.children:
            values.setdefault(node.id, node)
            continue
        with building(node):
            new = rebuild(node, [values.get(c.id, c) for c in node.children])
        values[node.id] = new
        if new is not node:
            copied(node, new)
    return values[function.body.id]
