"""The operators of a function that a backend claims, and the connected regions of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clew.ir.expr import Call, Expr, Function, TupleGetItem
from clew.ir.outline import Piece, schedulable
from clew.ir.types import TensorType, TupleType, Type
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op, argument_references
from clew.passes.base import Pass
from clew.patterns import Match, Pattern, partition
from clew.patterns.partition import Finder
from clew.support.errors import ClewError, CompileError


@dataclass(frozen=True, eq=False)
class RegionPattern:
    """Operators that a backend takes together: a name, a pattern and a condition."""

    name: str
    pattern: Pattern
    check: Callable[[Match], Any] | None = None

    @property
    def checked(self) -> Pattern:
        """The pattern with its condition."""
        check = self.check
        if check is None:
            return self.pattern
        return self.pattern.where(lambda found: check(found) is not False)


class Claims(Protocol):
    """The interface of a backend for placement."""

    @property
    def name(self) -> str:
        """The unique name of the backend."""
        ...

    @property
    def key(self) -> str:
        """Changes with what the backend takes or compiles."""
        ...

    @property
    def patterns(self) -> Sequence[RegionPattern]:
        """The patterns that the backend takes, in order of preference."""
        ...

    def takes(self, call: Call) -> bool:
        """Whether the backend can run a call of an operator."""
        ...

    def passes(self, target: Target) -> Sequence[Pass]:
        """Returns passes to run just before `AssignBackends`."""
        ...

    def cost(self, region: Function, target: Target) -> float | None:
        """Returns the seconds that a region takes; None to take it in any case."""
        ...


def asked(backend: Claims, what: str, ask: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of a backend and returns its result.

    Errors: C073 if the function fails.
    """
    try:
        return ask(*args)
    except ClewError:
        raise
    except Exception as error:  # whatever a backend's code raises
        raise CompileError(
            "C073",
            f"the backend {backend.name} failed in {what}: {type(error).__name__}: {error}",
            hint=f"compile without {backend.name} to run all layers on the CPU",
        ) from error


def claims_of(
    function: Function, backend: Claims, others: Sequence[Piece]
) -> tuple[set[int], list[Piece]]:
    """Returns the ids of the calls that a backend claims in a function's body, and the matches of
    its patterns among them. `others` are the regions of other backends.

    Errors: C073 if the backend's code fails.
    """
    taken = {id_ for piece in others for id_ in piece.ids}
    found: set[int] = set()
    matches: list[Piece] = []
    for wanted in backend.patterns:
        finder = Finder(function, wanted.checked, False, lambda node, why: None)
        for part in asked(backend, f"the check of {wanted.name}", finder.find):
            calls = [m for m in part.members if isinstance(m, Call)]
            if not part.ids & (found | taken) and all(map(is_placeable, calls)):
                matches.append(part)
                found |= part.ids
    if others and schedulable(function, [*others, *matches]) is None:
        matches = _fitting(function, matches, others)
        found = {id_ for part in matches for id_ in part.ids}
    for node in post_order(function.body):
        if not isinstance(node, Call) or node.id in found or node.id in taken:
            continue
        if is_placeable(node) and asked(backend, "takes", backend.takes, node):
            found.add(node.id)
    return found, matches


def _fitting(function: Function, matches: Sequence[Piece], others: Sequence[Piece]) -> list[Piece]:
    """Returns the matches that form no cycle of dependencies with regions of other backends.
    Matches by themselves never form one, since each has only one result.
    """
    kept: list[Piece] = []
    for part in matches:
        if schedulable(function, [*others, *kept, part]) is not None:
            kept.append(part)
    return kept


def is_placeable(node: Expr) -> bool:
    """Whether a node may be part of a region: a call of an operator whose shapes are known and
    whose attributes do not depend on values.
    """
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return False
    if argument_references(node.attrs):
        return False
    return all(map(_is_static, (node.type, *(a.type for a in node.args))))


def _is_static(type_: Type) -> bool:
    return isinstance(type_, (TensorType, TupleType)) and type_.is_static


def with_composites(region: Function, backend: Claims) -> Function:
    """Returns a region in the form that its backend receives: each match of a pattern is a call of
    a function with `composite` set to the pattern's name.
    """
    function = Function(region.params, region.body)
    for wanted in backend.patterns:
        function = partition(function, wanted.checked, wanted.name)
    return function


class Regions:
    """The regions of the calls that a backend claims in one function's body.

    The body consists of units: single nodes, matches, and regions of other backends. The *level* of
    a unit is the largest number of times that a path to it enters or leaves claimed units. A path
    that leaves a region raises the level, so connected claimed units of one level form a convex
    region. Two regions are then joined if an edge is the only path from one to the other.
    """

    def __init__(
        self,
        function: Function,
        claims: Collection[int],
        matches: Sequence[Piece],
        others: Sequence[Piece],
    ) -> None:
        order = schedulable(function, [*others, *matches])
        assert order is not None, "matches and regions depend on each other"
        self._order = [n for n in order if not isinstance(n, Function)]
        self._parent: dict[int, int] = {n.id: n.id for n in self._order}
        for piece in (*others, *matches):
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
                found.setdefault(self._unit(node.id), []).append(node)
        return list(found.values())

    def _unit(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def _join_levels(self) -> None:
        level: dict[int, int] = {}
        edges: list[tuple[int, int]] = []
        for node in self._order:
            unit, own = self._unit(node.id), node.id in self._inside
            level.setdefault(unit, 0)
            for child in _used(node):
                start = self._unit(child.id)
                if start == unit:
                    continue
                inside = child.id in self._inside
                level[unit] = max(level[unit], level[start] + (own != inside))
                if own and inside:
                    edges.append((start, unit))
        for start, unit in edges:
            if level[start] == level[unit]:
                self._parent[self._unit(start)] = self._unit(unit)

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
        """Returns, for each unit, the units that read its values."""
        edges: dict[int, dict[int, None]] = {}
        for node in self._order:
            to = self._unit(node.id)
            for child in _used(node):
                start = self._unit(child.id)
                if start != to:
                    edges.setdefault(start, {})[to] = None
        return edges


def _used(node: Expr) -> Iterator[Expr]:
    return (c for c in node.children if not isinstance(c, Function))


def _other_way(edges: Mapping[int, Mapping[int, None]], start: int, end: int) -> bool:
    """Whether a path of more than one edge leads from one unit to another."""
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
