"""Nested calls of an associative operator as a flat list of operands, in any bracketing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from clew.ir.expr import Call, Expr
from clew.patterns.base import PatternBase
from clew.patterns.goals import Assign
from clew.patterns.pattern import CallOf, Wildcard

# Operands, and the inner calls that combine them, without the outermost call.
Row: TypeAlias = tuple[tuple[Expr, ...], tuple[Expr, ...]]
# Longer lists have too many bracketings.
MOST_OPERANDS: Final = 8


def rows(node: Call, count: int) -> Iterator[Row]:
    """Yields the ways to flatten nested calls of the node's operator into `count` operands."""
    if count > MOST_OPERANDS or _width(node, node, count) < count:
        return
    yield from _cuts(node, node, count)


def _nested(node: Expr, root: Call) -> bool:
    return isinstance(node, Call) and node.op is root.op and len(node.args) == 2


def _width(node: Expr, root: Call, most: int) -> int:
    """Returns the largest possible number of operands under the node, at most `most`."""
    if most <= 1 or not _nested(node, root):
        return 1
    assert isinstance(node, Call)
    left = _width(node.args[0], root, most - 1)
    return min(most, left + _width(node.args[1], root, max(1, most - left)))


def _cuts(node: Expr, root: Call, count: int) -> Iterator[Row]:
    if count == 1:
        yield (node,), ()
        return
    if not _nested(node, root):
        return
    assert isinstance(node, Call)
    inner = () if node is root else (node,)
    for left in range(count - 1, 0, -1):
        for first, nodes in _cuts(node.args[0], root, left):
            for second, others in _cuts(node.args[1], root, count - left):
                yield (*first, *second), (*inner, *nodes, *others)


def assigned(goal: Assign) -> list[tuple[PatternBase, Expr, Assign | None]]:
    """Returns the choices for one leaf: the leaf, a term, and the remaining assignment.

    The most specific leaves come first; wildcards take the remaining terms.
    """
    leaves = goal.leaves
    place = next((n for n, p in enumerate(leaves) if type(p) is CallOf), None)
    if place is None:
        place = next((n for n, p in enumerate(leaves) if type(p) is not Wildcard), 0)
    leaf, others = leaves[place], (*leaves[:place], *leaves[place + 1 :])
    choices: list[tuple[PatternBase, Expr, Assign | None]] = []
    tried: set[int] = set()
    for n, term in enumerate(goal.terms):
        if term.id in tried:
            continue
        tried.add(term.id)
        left = (*goal.terms[:n], *goal.terms[n + 1 :])
        choices.append((leaf, term, Assign(goal.pattern, others, left) if others else None))
    return choices
