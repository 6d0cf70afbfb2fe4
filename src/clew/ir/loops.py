"""The loops around a node, and their trip counts."""

from __future__ import annotations

import math
from collections.abc import Iterable

from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, While
from clew.ir.visit import inner_functions, post_order

# The loops around a node, outermost first.
Around = tuple[While, ...]


def loops_around(function: Function) -> dict[int, Around]:
    """Returns, for the ids of nodes in a function's branches and loops, the enclosing loops.

    Nodes outside of loops have an empty tuple; nodes inside primitive functions are excluded.
    """
    found: dict[int, Around] = {}
    pending: list[tuple[Function, Around]] = [(function, ())]
    while pending:
        part, around = pending.pop()
        for param in part.params:
            found.setdefault(param.id, around)
        for node in post_order(part.body):
            found.setdefault(node.id, around)
            inside = (*around, node) if isinstance(node, While) else around
            pending += [(f, inside) for f in inner_functions(node) if not f.is_primitive]
    return found


def in_branches(function: Function) -> set[int]:
    """Returns the ids of the nodes in branches inside loops, which not every iteration
    computes.
    """
    found: set[int] = set()
    outside: set[int] = set()
    pending = [(function, False, False)]
    while pending:
        part, looped, branched = pending.pop(0)
        for node in post_order(part.body):
            if looped and branched and node.id not in outside:
                found.add(node.id)
            elif node.id not in found:
                outside.add(node.id)
            inside = looped or isinstance(node, While)
            below = branched or (looped and isinstance(node, If))
            inner = [f for f in inner_functions(node) if not f.is_primitive]
            pending += [(f, inside, below) for f in inner]
    return found


def iterations_of(loops: Iterable[While]) -> int | None:
    """Returns how often the body of the innermost of nested loops runs in total: 1 without
    loops, None if only the run determines it.
    """
    trips = [loop.trips for loop in loops]
    known = [n for n in trips if isinstance(n, int)]
    return math.prod(known) if len(known) == len(trips) else None


def limit_of(loop: While) -> Expr | None:
    """Returns the value from outside a loop that alone determines its trip count; None if there is
    no such value.

    The condition of such a loop is `i < limit` or `i < limit and going`. `limit` and `going` are
    states that the body passes on unchanged, and `going` starts as true.
    """
    cond = loop.cond.body
    index, *states = loop.cond.params
    parts = [cond]
    if isinstance(cond, Call) and cond.op_name == "logical_and":
        parts = list(cond.args)
    result = loop.body.body
    fields = result.fields if isinstance(result, Tuple) else ()
    pairs = zip(fields, loop.body.params[1:], strict=False)
    kept = [n for n, (field, param) in enumerate(pairs) if _unchanged(field) is param]
    limits = []
    for part in parts:
        if part in states:
            n = states.index(part)
            if n not in kept or not _is_true(loop.init[n]):
                return None
        elif isinstance(part, Call) and part.op_name == "less" and part.args[0] is index:
            limits.append(part.args[1])
        else:
            return None
    if len(limits) != 1 or limits[0] not in states:
        return None
    n = states.index(limits[0])
    return loop.init[n] if n in kept else None


def _unchanged(expr: Expr) -> Expr:
    """Returns the value that an expression only passes on."""
    while isinstance(expr, Call) and expr.op_name == "identity":
        expr = expr.args[0]
    return expr


def _is_true(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.data.size == 1 and bool(expr.data.reshape(-1)[0])
