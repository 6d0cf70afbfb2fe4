"""Finds parents whose value reaches the rest of a graph through one child only.

Counting uses is sufficient: if all uses of the parent, and of each node computed from it, are by
these nodes or the child, no value escapes and no intermediate node was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from clew.ir.expr import Expr, Function
from clew.patterns.pattern import Dominates, Pattern
from clew.support.walk import post_order

# The maximum number of nodes examined above a child.
MOST_BETWEEN: Final = 512


def parents(
    pattern: Dominates,
    child: Expr,
    fits: Callable[[Pattern, Expr], bool],
    uses: Callable[[Expr], int],
) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    """Yields the possible parents of the child, nearest first, each with the nodes between,
    operands first.
    """
    order, on_path = _above(pattern.path, child, fits)
    for parent in reversed(order):
        if not fits(pattern.parent, parent):
            continue
        between = _between(parent, child, order, on_path)
        if between is not None and _closed(parent, between, child, uses):
            yield parent, between


def _above(
    path: Pattern, child: Expr, fits: Callable[[Pattern, Expr], bool]
) -> tuple[list[Expr], set[int]]:
    """Returns the nodes that the child is computed from through nodes on a path, operands first,
    and the ids of the latter. The walk is breadth-first, so the limit cuts off the farthest nodes.
    """
    on_path: set[int] = set()
    seen: dict[int, Expr] = {}
    row = [child]
    while row and len(seen) < MOST_BETWEEN:
        following: list[Expr] = []
        for node in row:
            for operand in node.children:
                if operand.id in seen or isinstance(operand, Function):
                    continue
                seen[operand.id] = operand
                if fits(path, operand):
                    on_path.add(operand.id)
                    following.append(operand)
        row = following

    # Sort operands first, by walking the nodes found.
    def below(node: Expr) -> list[Expr]:
        entered = node is child or node.id in on_path
        return [c for c in node.children if c.id in seen] if entered else []

    order = post_order((child,), below)[:-1]  # the child itself is last
    return order, on_path


def _between(
    parent: Expr, child: Expr, order: list[Expr], on_path: set[int]
) -> tuple[Expr, ...] | None:
    """Returns the nodes on paths from the parent to the child; `None` if there is no path."""
    reached = {parent.id}
    between: list[Expr] = []
    for node in order:
        if node is parent or node.id not in on_path:
            continue
        if any(c.id in reached for c in node.children):
            reached.add(node.id)
            between.append(node)
    return tuple(between) if any(c.id in reached for c in child.children) else None


def _closed(
    parent: Expr, between: tuple[Expr, ...], child: Expr, uses: Callable[[Expr], int]
) -> bool:
    """Whether the parent and the nodes between are used only by each other and the child."""
    inside = _uses_inside(between, child)
    return all(uses(node) == inside.get(node.id, 0) for node in (parent, *between))


def _uses_inside(between: tuple[Expr, ...], child: Expr) -> dict[int, int]:
    inside: dict[int, int] = {}
    for node in (*between, child):
        for operand in node.children:
            inside[operand.id] = inside.get(operand.id, 0) + 1
    return inside


def why_none(
    pattern: Dominates,
    child: Expr,
    fits: Callable[[Pattern, Expr], bool],
    uses: Callable[[Expr], int],
) -> tuple[Expr, str]:
    """Returns the node that prevents a child from having a parent, and the reason."""
    order, on_path = _above(pattern.path, child, fits)
    for parent in reversed(order):
        between = _between(parent, child, order, on_path) if fits(pattern.parent, parent) else None
        if between is None:
            continue
        inside = _uses_inside(between, child)
        for node in (parent, *between):
            if uses(node) == 0:
                return node, "its uses are not known here: give the function it is in"
            if uses(node) != inside.get(node.id, 0):
                known = inside.get(node.id, 0)
                return node, f"{uses(node)} uses, only {known} of them on the way to the child"
    ends = [n for n in order if n.id not in on_path and n.children]
    if ends:
        return ends[-1], "it is neither the parent nor on the path"
    return child, "no such parent above it"
