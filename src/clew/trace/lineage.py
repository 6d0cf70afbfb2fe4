"""The lineage record, and "now building for": how provenance is noted without anyone writing it.

Whoever rewrites node *n* says so once (`building`); every node built meanwhile takes the span of
*n* and, when a `Lineage` is recording, has *n* noted as its origin. This is the rewriter's and the
frontends' work; no pass calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import local

from clew.support.shown import Shown, counted
from clew.trace.span import EMPTY, Span


class Lineage(Shown):
    """What became what in one pass: node ids of the stage before and of the stage after.

    `origins[new]` are the old nodes that `new` was built for. `same[old]` is the new node that
    computes the old node's value, perhaps in another layout, dtype or quantization.
    """

    __slots__ = ("origins", "same")

    def __init__(self) -> None:
        self.origins: dict[int, tuple[int, ...]] = {}
        self.same: dict[int, int] = {}


class _Context(local):
    """What is being built for, one per thread."""

    def _about(self) -> str:
        return f"{counted(len(self.same), 'node')} with the value of others"

    def __init__(self) -> None:
        self.span: Span = EMPTY
        self.origins: tuple[int, ...] = ()
        self.lineage: Lineage | None = None


context = _Context()


def note(node_id: int) -> Span:
    """Notes a node just built; returns the span it takes. Called by expressions only."""
    if context.lineage is not None and context.origins:
        context.lineage.origins[node_id] = context.origins
    return context.span


def note_same(old_id: int, new_id: int) -> None:
    """Notes that the new node computes the old node's value. Called by rewriters only."""
    if context.lineage is not None and old_id != new_id:
        context.lineage.same[old_id] = new_id


@contextmanager
def building(span: Span, origins: Iterable[int] = ()) -> Iterator[None]:
    """Nodes built inside carry `span` and have `origins`."""
    before = context.span, context.origins
    context.span, context.origins = span, tuple(origins)
    try:
        yield
    finally:
        context.span, context.origins = before


@contextmanager
def recording(lineage: Lineage | None) -> Iterator[None]:
    """Lineage inside goes to `lineage`; `None` records nothing."""
    before = context.lineage
    context.lineage = lineage
    try:
        yield
    finally:
        context.lineage = before
