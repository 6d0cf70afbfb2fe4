"""Links between two stages, computed from a pass's lineage.

- *kept*: the node is in both stages.
- *same*: the new node computes the old one's value, perhaps in another layout or dtype.
- *derived*: the new node was built for the old one.

Links skip nodes that a pass both built and dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from clew.support.shown import Shown, counted
from clew.trace.lineage import Lineage


class LinkKind(Enum):
    """The relation of a node of one stage to a node of the next."""

    KEPT = "kept"
    SAME = "same"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Link:
    """A link from a node to a node of the next stage."""

    old: int
    new: int
    kind: LinkKind


class StageLinks(Shown):
    """All links between two stages, in both directions. Kept nodes are not stored."""

    def __init__(
        self, before: Collection[int], after: Collection[int], links: Iterable[Link]
    ) -> None:
        self._before = before
        self._after = after
        self.links: Final = tuple(links)
        self._forward: dict[int, list[Link]] = {}
        self._backward: dict[int, list[Link]] = {}
        for link in self.links:
            self._forward.setdefault(link.old, []).append(link)
            self._backward.setdefault(link.new, []).append(link)

    def _about(self) -> str:
        return counted(len(self.links), "link")

    def forward(self, old: int) -> list[Link]:
        """Returns the links from a node of the previous stage; none if nothing followed from it."""
        found = self._forward.get(old, [])
        if old in self._after and old in self._before:
            return [Link(old, old, LinkKind.KEPT), *found]
        return found

    def backward(self, new: int) -> list[Link]:
        """Returns the links to a node of the next stage; none if it has no origin."""
        found = self._backward.get(new, [])
        if new in self._before and new in self._after:
            return [Link(new, new, LinkKind.KEPT), *found]
        return found


def links_from(before: Collection[int], after: Collection[int], lineage: Lineage) -> Iterable[Link]:
    """Yields the links in a pass's lineage, except those between kept nodes."""
    pairs = set()
    for old in lineage.same:
        for new in _same(old, lineage, before, after):
            pairs.add((old, new))
            yield Link(old, new, LinkKind.SAME)
    for new, olds in _derived(before, after, lineage):
        for old in olds:
            if (old, new) not in pairs:
                yield Link(old, new, LinkKind.DERIVED)


def _same(
    old: int, lineage: Lineage, before: Collection[int], after: Collection[int]
) -> Iterable[int]:
    """Yields the nodes of the next stage that compute the value of an old node."""
    if old not in before:
        return
    seen, current = {old}, old
    while (following := lineage.same.get(current)) is not None and following not in seen:
        seen.add(following)
        current = following
        if current in after:
            yield current


def _derived(
    before: Collection[int], after: Collection[int], lineage: Lineage
) -> Iterable[tuple[int, Iterable[int]]]:
    """Yields the nodes built by a pass that are in the next stage, with the old nodes behind
    each.
    """
    known: dict[int, dict[int, None]] = {}
    for new in lineage.origins:
        if new in after and new not in before:
            yield new, _behind(new, before, after, lineage, known)


def _behind(
    new: int,
    before: Collection[int],
    after: Collection[int],
    lineage: Lineage,
    known: dict[int, dict[int, None]],
) -> Iterable[int]:
    """Returns the nodes of the previous stage behind a node, through dropped nodes.

    A node built for an old one may use that node's replacement. If the replacement was dropped, the
    nodes behind it are behind this node as well.
    """
    stack = [(new, False)]
    open_: set[int] = set()
    while stack:
        node, expanded = stack.pop()
        if node in known:
            continue
        origins = [*lineage.origins.get(node, ())]
        for origin in lineage.origins.get(node, ()):
            became = lineage.same.get(origin)
            if became is not None and became not in before and became not in after:
                origins.append(became)
        if not expanded:
            if node in open_:
                continue
            open_.add(node)
            stack.append((node, True))
            stack.extend((o, False) for o in origins if o not in before and o not in known)
            continue
        found: dict[int, None] = {}
        for origin in origins:
            if origin in before:
                found[origin] = None
            else:
                found.update(known.get(origin, {}))
        known[node] = found
    return known[new]
