"""The order in which a program computes the nodes of a function."""

from __future__ import annotations

from clew.ir.expr import Call, Expr, Function, Tuple
from clew.ir.visit import post_order
from clew.ops.registry import Op


def in_order(function: Function) -> list[Expr]:
    """Returns the nodes of a function's body, each after its operands.

    Steps that only read parameters or results as another dtype come first and last, so that they
    do not split a segment.
    """
    nodes = list(post_order(function.body))
    if not any(map(_reinterprets, nodes)):
        return nodes
    parameters = set(function.params)
    first = [n for n in nodes if _reinterprets(n) and parameters.issuperset(n.children)]
    # Last are those that only others of the last read.
    last: set[Expr] = set()
    read: set[Expr] = set()
    for node in reversed(nodes):
        if node not in read and (_reinterprets(node) or isinstance(node, Tuple)):
            last.add(node)
        else:
            read.update(node.children)
    last.difference_update(first)
    moved = last.union(first)
    between = [n for n in nodes if n not in moved]
    return [*first, *between, *(n for n in nodes if n in last)]


def _reinterprets(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Op) and node.op.traits.reinterprets
