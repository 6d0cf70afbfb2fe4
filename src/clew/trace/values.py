"""Follows the values of the model's layers through the stages, along *same* links.

Several nodes may hold a layer's value at once, or none: it may have been folded into another
constant, merged with its neighbors, or removed as dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clew.trace.links import LinkKind
from clew.trace.queries import Queries
from clew.trace.refs import NodeRef


@dataclass(frozen=True)
class LayerValue:
    """A result of a layer, and the nodes that hold it.

    `first` is the node that computes this result in the first stage; `last` are the nodes that hold
    it in the last stage, possibly in another layout or dtype. If there are none, `gone` is the
    first stage without one.
    """

    layer: str
    output: int
    first: NodeRef
    last: tuple[NodeRef, ...]
    gone: int | None = None


def layer_values(trace: Queries) -> list[LayerValue]:
    """Returns every result of every layer, in the order of the import."""
    starts: dict[tuple[str, int], int] = {}
    for node in trace.nodes(0).values():
        for source in node.span.sources:
            if source.output is not None:
                starts[source.layer, source.output] = node.id
    held = follow_values(trace, 0, starts.values())
    found = []
    for (layer, output), start in starts.items():
        last, gone = held[start]
        refs = tuple(NodeRef(trace.last, n) for n in last)
        found.append(LayerValue(layer, output, NodeRef(0, start), refs, gone))
    return found


def follow_values(
    trace: Queries, stage: int, nodes: Iterable[int], until: int | None = None
) -> dict[int, tuple[tuple[int, ...], int | None]]:
    """Returns, for nodes of a stage, the nodes of the stage `until` (by default the last) with the
    same value, or the first stage without such a node.
    """
    end = trace.last if until is None else until
    held: dict[int, dict[int, None]] = {node: {node: None} for node in nodes}
    gone: dict[int, int] = {}
    for following in range(stage + 1, end + 1):
        if not trace.stages[following].changed:
            continue
        links = trace.links(following)
        for node, now in held.items():
            if node in gone:
                continue
            held[node] = {
                link.new: None
                for old in now
                for link in links.forward(old)
                if link.kind is not LinkKind.DERIVED
            }
            if not held[node]:
                gone[node] = following
    return {node: (tuple(now), gone.get(node)) for node, now in held.items()}
