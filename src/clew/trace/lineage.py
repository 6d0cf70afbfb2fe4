"""The lineage record, and the current rewrite target, which together record provenance
automatically.

The code that rewrites node *n* announces it once (`building`). Every node built meanwhile takes the
span of *n* and, if a `Lineage` is being recorded, gets *n* as its origin. Only the rewriter and the
frontends call these functions; no pass does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import local

from clew.support.shown import Shown, counted
from clew.trace.span import EMPTY, Span


class Lineage(Shown):
    """The record of one pass: node ids of the stages before and after it.

    `origins[new]` are the old nodes that `new` was built for. `same[old]` is the new node that
    computes the old node's value, possibly in another layout, dtype or quantization.
    """

    __slots__ = ("origins", "same")

    def __init__(self) -> None:
        self.origins: dict[int, tuple[int, ...]] = {}
        self.same: dict[int, int] = {}


class _Context(local):
    """The current rewrite target of a thread."""

    def _about(self) -> str:
        return f"{counted(len(self.same), 'node')} with the value of others"

    def __init__(self) -> None:
        self.span: Span = EMPTY
        self.origins: tuple[int, ...] = ()
        self.lineage: Lineage | None = None


context = _Context()


def note(node_id: int) -> Span:
    """Records a new node and returns its span. Called by expressions only."""
    if context.lineage is not None and context.origins:
        context.lineage.origins[node_id] = context.origins
    return context.span


def note_same(old_id: int, new_id: int) -> None:
    """Records that the new node computes the old node's value. Called by rewriters only."""
    if context.lineage is not None and old_id != new_id:
        context.lineage.same[old_id] = new_id


@contextmanager
def building(span: Span, origins: Iterable[int] = ()) -> Iterator[None]:
    """Gives nodes built in the block this `span` and these `origins`."""
    before = context.span, context.origins
    context.span, context.origins = span, tuple(origins)
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
    context.lineage, context.span, context.origins = lineage, EMPTY, ()
    try:
        yield
    finally:
        context.lineage = before
