"""The lineage record, and the current rewrite target, which together record provenance
automatically.

The code that rewrites node *n* announces it once (`building`). Every node built meanwhile takes the
span of *n* and, if a `Lineage` is being recorded, gets *n* as its origin. Only the rewriter and the
frontends call these functions; no pass does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Final, Generic, Protocol, TypeVar

from clew.support.shown import Shown, counted
from clew.trace.span import EMPTY, Span

N = TypeVar("N", bound="Node")


class Node(Protocol):
    """The part of an expression's interface used here."""

    @property
    def id(self) -> int:
        """Its number."""
        ...

    @property
    def span(self) -> Span:
        """The layers it serves."""
        ...


class Origins(Generic[N]):
    """The old nodes that a new node is built for, each once, the root of a match first.

    Origins share the parts they consist of, and list their nodes only when asked: where a chain of
    `n` operators becomes one, step by step, each step has all nodes before it as origins.
    """

    __slots__ = ("_nodes", "_parts", "first")

    def __init__(self, first: N, *parts: Origins[N] | N) -> None:
        self.first: Final = first
        self._parts: tuple[Origins[N] | N, ...] | None = parts
        self._nodes: tuple[N, ...] | None = None

    @staticmethod
    def of(parts: Sequence[Origins[N] | N]) -> Origins[N] | None:
        """Returns the origins that consist of others; None if there are none."""
        if len(parts) == 1 and isinstance(parts[0], Origins):
            return parts[0]
        if not parts:
            return None
        first = parts[0]
        return Origins(first.first if isinstance(first, Origins) else first, *parts)

    @property
    def nodes(self) -> tuple[N, ...]:
        """The nodes, each once."""
        if self._nodes is None:
            assert self._parts is not None
            found: dict[int, N] = {self.first.id: self.first}
            opened: set[int] = set()
            waiting: list[Origins[N] | N] = [*reversed(self._parts)]
            while waiting:
                part = waiting.pop()
                if not isinstance(part, Origins):
                    found.setdefault(part.id, part)
                elif id(part) not in opened:
                    opened.add(id(part))
                    found.setdefault(part.first.id, part.first)
                    inner = part._parts if part._nodes is None else part._nodes
                    waiting += reversed(inner or ())
            self._nodes, self._parts = tuple(found.values()), None
        return self._nodes

    @property
    def span(self) -> Span:
        """The layers that the nodes serve, without output marks."""
        return Span.later(lambda: [s for node in self.nodes for s in node.span.unmarked().sources])

    def __iter__(self) -> Iterator[int]:
        """Iterates over the numbers of the nodes."""
        return iter([node.id for node in self.nodes])


class Lineage(Shown):
    """The record of one pass: node ids of the stages before and after it.

    `origins[new]` are the old nodes that `new` was built for. `same[old]` is the new node that
    computes the old node's value, possibly in another layout, dtype or quantization.
    """

    __slots__ = ("origins", "same")

    def __init__(self) -> None:
        self.origins: dict[int, Iterable[int]] = {}
        self.same: dict[int, int] = {}

    def _about(self) -> str:
        return f"{counted(len(self.same), 'node')} with the value of others"


class _Context(local):
    """The current rewrite target of a thread."""

    def __init__(self) -> None:
        self.span: Span = EMPTY
        self.origins: Iterable[int] | None = None
        self.lineage: Lineage | None = None


context = _Context()


def note(node_id: int) -> Span:
    """Records a new node and returns its span. Called by expressions only."""
    if context.lineage is not None and context.origins is not None:
        context.lineage.origins[node_id] = context.origins
    return context.span


def note_same(old_id: int, new_id: int) -> None:
    """Records that the new node computes the old node's value. Called by rewriters only."""
    if context.lineage is not None and old_id != new_id:
        context.lineage.same[old_id] = new_id


@contextmanager
def building(span: Span, origins: Iterable[int] | None = None) -> Iterator[None]:
    """Gives nodes built in the block this `span` and these `origins`."""
    before = context.span, context.origins
    context.span, context.origins = span, origins
    try:
        yield
    finally:
        context.span, context.origins = before


@contextmanager
def recording(lineage: Lineage | None) -> Iterator[None]:
    """Records lineage of the block in `lineage`; `None` records nothing. No target is current at
    first, not even one that Ctrl-C has left behind.
    """
    before = context.lineage
    context.lineage, context.span, context.origins = lineage, EMPTY, None
    try:
        yield
    finally:
        context.lineage = before
