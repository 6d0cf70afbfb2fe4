"""Traversal and rewriting of scalar expressions. Each shared part is visited once: `v = v * v`,
repeated a hundred times, has a hundred nodes and 2^100 paths.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from clew.support import walk
from clew.te.expr import Load, Scalar

_CHILDREN: Final[Callable[[Scalar], Sequence[Scalar]]] = attrgetter("children")


def nodes(expr: Scalar) -> Iterator[Scalar]:
    """Yields an expression and its subexpressions lazily, in no particular order."""
    seen: set[Scalar] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += node.children


def post_order(expr: Scalar, known: Container[int] = ()) -> list[Scalar]:
    """Returns an expression and its subexpressions, operands before users. Nodes with known ids,
    and nodes reachable only through them, are left out.
    """
    return walk.post_order((expr,), _CHILDREN, known)


def loads(expr: Scalar) -> list[Load]:
    """Returns the loads in an expression, those in indices first."""
    return [node for node in post_order(expr) if isinstance(node, Load)]


def substitute(expr: Scalar, values: Mapping[int, Scalar]) -> Scalar:
    """Returns the expression with subexpressions (by identity) replaced; sharing is preserved."""
    return map_loads(expr, lambda load, indices: None, values)


def map_loads(
    expr: Scalar,
    change: Callable[[Load, Sequence[Scalar]], Scalar | None],
    values: Mapping[int, Scalar] | None = None,
) -> Scalar:
    """Returns the expression with loads replaced, inner ones first; sharing is preserved.

    `change` receives each load once, with its new indices; None keeps the load. `values` replaces
    subexpressions by identity.
    """
    images: dict[int, Scalar] = dict(values or {})
    if not expr.children and not isinstance(expr, Load):  # most indices are loop variables
        return images.get(id(expr), expr)
    for node in post_order(expr, images):
        children = node.children
        if children:
            children = tuple([images[id(c)] for c in children])
        changed = change(node, children) if isinstance(node, Load) else None
        images[id(node)] = over(node, children) if changed is None else changed
    return images[id(expr)]


def over(node: Scalar, children: tuple[Scalar, ...]) -> Scalar:
    """Returns a node with other children; the node itself if the children are the same."""
    return node if children == node.children else node.rebuild(children)
