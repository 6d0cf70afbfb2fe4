"""Operators that passes created: their values existed nowhere in the stage before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clew.trace.fates import PASSIVE
from clew.trace.links import Link, LinkKind
from clew.trace.queries import Node, Queries
from clew.trace.refs import NodeRef


@dataclass(frozen=True)
class Created:
    """An operator that a pass created, with its line in the text of the stage, its type, and the
    layers that it was created for. Without layers, nothing in the model explains it.
    """

    pass_name: str
    ref: NodeRef
    line: int
    op: str
    type: str
    layers: tuple[str, ...]

    @property
    def is_explained(self) -> bool:
        """Whether it serves a layer of the model."""
        return bool(self.layers)

    def __str__(self) -> str:
        reason = f"for {', '.join(self.layers)}" if self.layers else "for no layer"
        return f"{self.pass_name}, line {self.line}: {self.op}: {self.type}, {reason}"


def created_in(trace: Queries) -> Iterator[Created]:
    """Yields the operators that passes created, in the order of passes and lines. An operator that
    computes the value of an older one, or that is an older one over other inputs, is not among
    them.
    """
    for stage, record in enumerate(trace.stages):
        if not stage or not record.changed:
            continue
        links, nodes = trace.links(stage), trace.nodes(stage)
        line_of = trace.printed(stage).line_of
        for id_ in sorted(record.difference.added, key=lambda n: line_of.get(n, 0)):
            node = nodes[id_]
            if trace.reader.kind(node) in PASSIVE:
                continue
            if any(_is_rebuilt(trace, stage, node, link) for link in links.backward(id_)):
                continue
            yield Created(
                record.name,
                NodeRef(stage, id_),
                line_of.get(id_, 0),
                trace.reader.title(node),
                str(node.type),
                trace.in_order(node.span.layers),
            )


def _is_rebuilt(trace: Queries, stage: int, node: Node, link: Link) -> bool:
    """Whether a node is an older one, perhaps in another layout or dtype."""
    title, old = trace.reader.title, trace.nodes(stage - 1)[link.old]
    return link.kind is not LinkKind.DERIVED or title(old) == title(node)
