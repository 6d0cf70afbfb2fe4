"""The units of placement: operators that run on one backend together, and the values between them.

A unit is an operator or a match of a backend's pattern, with the elementwise operators that alone
read its result, much as fusion would join them. A unit runs on one backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from clew.backends.backend import Backend
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, While
from clew.ir.module import Module
from clew.ir.outline import Piece
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.passes.base import PassContext
from clew.passes.placement.claims import claimed, is_placeable, matches_of
from clew.passes.placement.costs import functions_of
from clew.te.analysis import Kind


@dataclass(frozen=True, eq=False)
class Unit:
    """Operators that one backend runs: their calls in the order of the graph, and the backends that
    take all of them. The CPU always does. A node that no backend takes is a unit without calls.
    """

    number: int
    calls: tuple[Call, ...]
    takers: tuple[str, ...]
    node: Expr

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of the model that the unit computes."""
        return tuple(dict.fromkeys(la for c in self.calls or (self.node,) for la in c.span.layers))

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of its operators."""
        return tuple(c.op_name for c in self.calls)


@dataclass(frozen=True)
class Edge:
    """A value that one unit computes and another reads; `start` is None for an input of the model,
    `end` for an output. `bytes` is its size, and `layers` are the layers that compute it.
    """

    start: int | None
    end: int | None
    bytes: int
    layers: tuple[str, ...]


@dataclass(eq=False)
class UnitGraph:
    """The units of a module's `main`, in an order in which each follows those that it reads."""

    module: Module
    units: Sequence[Unit]
    edges: Sequence[Edge]
    _numbers: Mapping[int, int] = field(repr=False)

    @cached_property
    def functions(self) -> Mapping[int, Function]:
        """The function of each unit that some backend takes, by the unit's number."""
        pieces, numbers = [], []
        for unit in self.units:
            if unit.takers:
                members = {c.id: c for c in unit.calls}
                inner = [n for n in self._order if self._is_field(n, members)]
                places = {n.id: i for i, n in enumerate(self._order)}
                nodes = sorted([*unit.calls, *inner], key=lambda n: places[n.id])
                pieces.append(Piece(tuple(nodes)))
                numbers.append(unit.number)
        return dict(zip(numbers, functions_of(self.module.main, pieces), strict=True))

    @cached_property
    def _order(self) -> list[Expr]:
        return post_order(self.module.main.body)

    @staticmethod
    def _is_field(node: Expr, members: Mapping[int, Call]) -> bool:
        return isinstance(node, TupleGetItem) and node.value.id in members

    def unit_of(self, node: Expr) -> int | None:
        """Returns the number of a node's unit; None for inputs and constants."""
        return self._numbers.get(node.id)


def units_of(module: Module, backends: Sequence[Backend], target: Target) -> UnitGraph:
    """Returns the units of a module for some backends.

    Errors: C073 if a backend's code fails.
    """
    return _Builder(module, backends, target).graph()


class _Builder:
    def __init__(self, module: Module, backends: Sequence[Backend], target: Target) -> None:
        self._module = module
        self._backends = backends
        self._order = [n for n in post_order(module.main.body) if not isinstance(n, Function)]
        self._context = PassContext(target)
        self._group: dict[int, int] = {n.id: n.id for n in self._order}
        self._members: dict[int, list[Expr]] = {n.id: [n] for n in self._order}
        self._takers: dict[int, tuple[str, ...]] = {}
        self._matched: dict[str, list[frozenset[int]]] = {}
        self._users = self._users_of()

    def graph(self) -> UnitGraph:
        self._join_matches()
        self._find_takers()
        self._join_light()
        return self._numbered()

    def _users_of(self) -> dict[int, list[Expr]]:
        found: dict[int, list[Expr]] = {}
        for node in self._order:
            for child in node.children:
                found.setdefault(child.id, []).append(node)
        return found

    def _root(self, node: Expr) -> int:
        return self._group[node.id]

    def _join(self, into: int, other: int) -> None:
        for node in self._members[other]:
            self._group[node.id] = into
        self._members[into] += self._members.pop(other)

    def _join_matches(self) -> None:
        """Joins the calls of each match. Of matches that overlap, a larger one takes in a smaller
        one, and otherwise the first one counts.
        """
        for backend in self._backends:
            for part in matches_of(self._module.main, backend):
                first, *others = sorted({self._root(m) for m in part.members})
                if part.ids.issuperset(m.id for r in (first, *others) for m in self._members[r]):
                    self._matched.setdefault(backend.name, []).append(part.ids)
                    for other in others:
                        self._join(first, other)

    def _find_takers(self) -> None:
        for root, members in self._members.items():
            calls = self._calls(members)
            if not calls or not all(map(is_placeable, calls)):
                continue
            ids = {m.id for m in members}
            takers = []
            for backend in self._backends:
                parts = self._matched.get(backend.name, ())
                matched = {id_ for part in parts if part <= ids for id_ in part}
                if all(c.id in matched or claimed(c, backend) for c in calls):
                    takers.append(backend.name)
            self._takers[root] = tuple(takers)

    def _join_light(self) -> None:
        """Joins an elementwise operator to a unit whose result only it reads, if the same backends
        take both.
        """
        for node in self._order:
            if not isinstance(node, Call) or not is_placeable(node):
                continue
            own = self._root(node)
            if len(self._members[own]) > 1 or self._context.kind(node) > Kind.BROADCAST:
                continue
            for child in reversed(node.children):
                if child.id not in self._group or len(self._users[child.id]) != 1:
                    continue
                other = self._root(child)
                if other in self._takers and self._takers[other] == self._takers[own]:
                    self._join(other, own)
                    del self._takers[own]
                    break

    @staticmethod
    def _calls(nodes: Sequence[Expr]) -> list[Call]:
        return [n for n in nodes if isinstance(n, Call)]

    def _numbered(self) -> UnitGraph:
        places = {n.id: i for i, n in enumerate(self._order)}
        fields = {n.id: n.value for n in self._order if isinstance(n, TupleGetItem)}
        roots: dict[int, None] = {}
        for node in self._order:  # a unit is complete with its last member
            root = self._root(node)
            if node.id not in fields and places[self._last(root, places)] == places[node.id]:
                roots[root] = None
        kept = [r for r in roots if not isinstance(self._members[r][0], (Constant, Tuple))]
        kept = [r for r in kept if self._is_work(self._members[r])]
        units: list[Unit] = []
        numbers: dict[int, int] = {}
        for number, root in enumerate(kept):
            members = sorted(self._members[root], key=lambda n: places[n.id])
            calls = tuple(self._calls(members)) if self._takers.get(root) else ()
            units.append(Unit(number, calls, self._takers.get(root, ()), members[-1]))
            numbers.update((m.id, number) for m in members)
        for node in self._order:
            source = fields.get(node.id)
            if source is not None and source.id in numbers:
                numbers[node.id] = numbers[source.id]
        return UnitGraph(self._module, units, list(self._edges(numbers)), numbers)

    def _last(self, root: int, places: Mapping[int, int]) -> int:
        return max((m.id for m in self._members[root]), key=lambda i: places[i])

    @staticmethod
    def _is_work(members: Sequence[Expr]) -> bool:
        return any(isinstance(m, (Call, If, While)) for m in members)

    def _edges(self, numbers: Mapping[int, int]) -> Iterator[Edge]:
        seen: set[tuple[int, int | None]] = set()
        params = {p.id for p in self._module.main.params}
        for node in self._order:
            end = numbers.get(node.id)
            if end is None or isinstance(node, TupleGetItem):
                continue
            for child in _values(node.children):
                start = numbers.get(child.id)
                if start == end or (start is None and child.id not in params):
                    continue
                if (child.id, end) not in seen:
                    seen.add((child.id, end))
                    yield _edge(start, end, child)
        for child in _values([self._module.main.body]):
            if child.id in numbers and (child.id, None) not in seen:
                seen.add((child.id, None))
                yield _edge(numbers[child.id], None, child)


def _values(nodes: Sequence[Expr]) -> Iterator[Expr]:
    """Yields nodes, and the fields of tuples instead of the tuples."""
    for node in nodes:
        if isinstance(node, Tuple):
            yield from _values(node.fields)
        else:
            yield node


def _edge(start: int | None, end: int | None, value: Expr) -> Edge:
    types = [t for t in leaves(value.type) if isinstance(t, TensorType)]
    size = sum(t.size_bytes for t in types if t.is_static)
    return Edge(start, end, size, value.span.layers)
