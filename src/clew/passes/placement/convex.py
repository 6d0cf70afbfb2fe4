"""Convex regions: sets of claimed calls that no path leaves and enters again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from clew.ir.expr import Expr, Function, TupleGetItem
from clew.ir.outline import Piece, schedulable


class Regions:
    """The regions of the calls that one backend gets in a function's body.

    The body consists of groups: single nodes, and regions of other backends. The *level* of a group
    is the largest number of times that a path to it enters or leaves claimed groups. A path that
    leaves a region and returns raises the level, so connected claimed groups of one level form a
    convex region. Two regions are then joined if an edge is the only path from one to the other.
    """

    def __init__(
        self,
        function: Function,
        claims: Collection[int],
        others: Sequence[Piece] = (),
    ) -> None:
        order = schedulable(function, others)
        assert order is not None, "regions depend on each other"
        self._order = [n for n in order if not isinstance(n, Function)]
        self._parent: dict[int, int] = {n.id: n.id for n in self._order}
        for piece in others:
            for member in piece.members:
                self._parent[member.id] = piece.members[0].id
        self._inside = set(claims)
        for node in self._order:
            if isinstance(node, TupleGetItem) and node.value.id in self._inside:
                self._inside.add(node.id)

    def members(self) -> list[list[Expr]]:
        """Returns the nodes of each region, in the order of the graph."""
        self._join_levels()
        self._join_neighbors()
        found: dict[int, list[Expr]] = {}
        for node in self._order:
            if node.id in self._inside:
                found.setdefault(self._group(node.id), []).append(node)
        return list(found.values())

    def _group(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _join_levels(self) -> None:
        level: dict[int, int] = {}
        edges: list[tuple[int, int]] = []
        for node in self._order:
            group, own = self._group(node.id), node.id in self._inside
            level.setdefault(group, 0)
            for child in _used(node):
                start = self._group(child.id)
                if start == group:
                    continue
                inside = child.id in self._inside
                level[group] = max(level[group], level[start] + (own != inside))
                if own and inside:
                    edges.append((start, group))
        for start, group in edges:
            if level[start] == level[group]:
                self._parent[self._group(start)] = self._group(group)

    def _join_neighbors(self) -> None:
        joined = True
        while joined:
            joined = False
            edges = self._edges()
            for start, end in [(a, b) for a in edges for b in edges[a]]:
                ours = start in self._inside and end in self._inside
                if ours and not _other_way(edges, start, end):
                    self._parent[start] = end
                    joined = True
                    break

    def _edges(self) -> dict[int, dict[int, None]]:
        """Returns, for each group, the groups that read its values."""
        edges: dict[int, dict[int, None]] = {}
        for node in self._order:
            to = self._group(node.id)
            for child in _used(node):
                start = self._group(child.id)
                if start != to:
                    edges.setdefault(start, {})[to] = None
        return edges


def _used(node: Expr) -> Iterator[Expr]:
    return (c for c in node.children if not isinstance(c, Function))


def _other_way(edges: Mapping[int, Mapping[int, None]], start: int, end: int) -> bool:
    """Whether a path of more than one edge leads from one group to another."""
    pending = [n for n in edges.get(start, ()) if n != end]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node == end:
            return True
        for following in edges.get(node, ()):
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return False
