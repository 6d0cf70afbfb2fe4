"""The loops around a node, and their trip counts."""

from __future__ import annotations

import math
from collections.abc import Iterable

from clew.ir.expr import Function, If, While
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
