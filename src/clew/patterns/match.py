"""Finds nodes that match a pattern. The search itself is in `found.py` and `steps.py`."""

from __future__ import annotations

from clew.ir.expr import Call, Expr, Function
from clew.ir.visit import post_order, users
from clew.patterns.found import Match, Uses
from clew.patterns.pattern import Pattern
from clew.patterns.steps import STEPS


def _unknown(node: Expr) -> int:
    return 0


def uses_in(function: Function) -> Uses:
    """Returns a function that counts the nodes of a function's own body that use a value."""
    counts = {node: len(using) for node, using in users(function).items()}
    return lambda node: counts.get(node.id, 0)


def match(pattern: Pattern, expr: Expr, uses: Uses | Function = _unknown) -> Match | None:
    """Returns one match of the pattern at the node, or `None`.

    `uses` is the function that contains the node, or a callable that counts the nodes using a
    value. Without it, `used_once` and `dominates` match nothing.
    """
    found = Match(expr, uses_in(uses) if isinstance(uses, Function) else uses, STEPS)
    return found if found.solve((pattern, expr, None)) else None


def find_all(pattern: Pattern, function: Function) -> list[Match]:
    """Returns a match for every node of the function's body that matches the pattern, in
    post-order.
    """
    uses = uses_in(function)
    found = [match(pattern, node, uses) for node in candidates(pattern, function)]
    return [m for m in found if m is not None]


def candidates(pattern: Pattern, function: Function) -> list[Expr]:
    """Returns the nodes of a function's body that have the kind of a pattern's root, in
    post-order.
    """
    names, kinds = pattern.root_ops, pattern.root_kinds
    order: list[Expr] = post_order(function.body)
    if kinds is not None:
        of = tuple(kinds)
        order = [n for n in order if isinstance(n, of)]
    if names is not None:
        order = [n for n in order if isinstance(n, Call) and n.op_name in names]
    return order
