"""Selects the target of an edit: parts of a graph, by layer, operator or pattern."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from weakref import WeakSet

from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.patterns import Pattern, find_all
from clew.support.errors import InputError


@dataclass(frozen=True)
class Part:
    """A connected set of nodes: a layer's nodes, or a match of a pattern.

    `results` are the nodes whose values others read, in the order of its outputs; `nodes` are the
    ids of all its nodes.
    """

    name: str
    results: tuple[Expr, ...]
    nodes: frozenset[int]

    def inputs(self, within: Function) -> tuple[Expr, ...]:
        """Returns the values that the part reads from outside, in order, once each."""
        found: dict[int, Expr] = {}
        for node in post_order(within.body):
            if node.id in self.nodes:
                found |= {c.id: c for c in node.children if c.id not in self.nodes}
        return tuple(c for c in found.values() if not isinstance(c, Function))


class Selection(Sequence[Part]):
    """Parts of an editor's graph; the selection follows the graph through edits.

    An edit that removes a part also removes it from the selection.
    """

    def __init__(self, parts: Iterable[Part], held: WeakSet[Selection]) -> None:
        self._parts = list(parts)
        self._held = held
        held.add(self)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = self._parts[index]
        return Selection(found, self._held) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __repr__(self) -> str:
        return f"<Selection {', '.join(p.name for p in self._parts)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts, in the order of the graph."""
        return tuple(p.name for p in self._parts)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The results that are operator calls, in the order of the graph."""
        return tuple(r for p in self._parts for r in p.results if isinstance(r, Call))

    def follow(self, became: Callable[[Part], Part | None]) -> None:
        """Replaces each part by its rebuilt form. Called by editors only."""
        self._parts = [new for new in map(became, self._parts) if new is not None]


def functions_of(module: Module) -> list[Function]:
    """Returns every function of a module, inner functions first."""
    roots = [function for _, function in module]
    return [n for n in post_order(roots, into_functions=True) if isinstance(n, Function)]


def parts_by_layer(module: Module, wanted: Sequence[str]) -> list[Part]:
    """Returns the layers matched by any of the names or globs.

    Errors: I050 if no layer matches a name.
    """
    nodes: dict[str, list[Expr]] = {}
    for function in functions_of(module):
        for node in post_order(function.body):
            if isinstance(node, (Var, Constant, Function)):
                continue
            for layer in node.span.layers:
                nodes.setdefault(layer, []).append(node)
    for name in wanted:
        if not any(layer == name or fnmatchcase(layer, name) for layer in nodes):
            close = difflib.get_close_matches(name, nodes, 3)
            known = close or list(nodes)[:5]
            raise InputError(
                "I050",
                f"no layer is called {name!r}",
                hint=f"{'near it' if close else 'there'} are {', '.join(known)}",
            )
    chosen = [n for n in nodes if any(n == w or fnmatchcase(n, w) for w in wanted)]
    return [_layer(name, nodes[name]) for name in chosen]


def _layer(name: str, nodes: Sequence[Expr]) -> Part:
    """Returns a layer as a part: its results are the nodes with output marks, or its last node."""
    marked: dict[int, Expr] = {}
    for node in nodes:
        for source in node.span.sources:
            if source.layer == name and source.output is not None:
                marked[source.output] = node
    results = tuple(marked[n] for n in sorted(marked)) or (nodes[-1],)
    return Part(name, results, frozenset(n.id for n in nodes))


def parts_by_node(module: Module, test: Callable[[Call], bool]) -> list[Part]:
    """Returns the operator calls that pass a test."""
    return [
        Part(_name(node), (node,), frozenset((node.id,)))
        for function in functions_of(module)
        for node in post_order(function.body)
        if isinstance(node, Call) and test(node)
    ]


def parts_by_pattern(module: Module, pattern: Pattern) -> list[Part]:
    """Returns the matches of a pattern. Of overlapping matches, the first in the order of the graph
    is taken.
    """
    found: list[Part] = []
    taken: set[int] = set()
    for function in functions_of(module):
        for match in find_all(pattern, function):
            nodes = {n.id for n in match.nodes if not isinstance(n, Constant)} | {match.root.id}
            if not nodes & taken:
                taken |= nodes
                found.append(Part(_name(match.root), (match.root,), frozenset(nodes)))
    return found


def _name(node: Expr) -> str:
    kind = node.op_name if isinstance(node, Call) else type(node).__name__
    return ", ".join(node.span.layers[:2]) or kind
