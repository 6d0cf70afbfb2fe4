"""Sources of graph nodes: of layers, which an annotator may edit, of inputs and of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from onnx import AttributeProto, NodeProto

from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.trace.span import Source

FRONTEND: Final = "onnx"


@dataclass(frozen=True)
class NodeView:
    """An annotator's view of a node; read-only."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeProto]
    doc: str
    metadata: Mapping[str, str]


Annotator: TypeAlias = "Callable[[Source, NodeView], Source]"


def layer_source(
    node: NodeProto,
    name: str,
    attributes: Mapping[str, AttributeProto],
    annotate: Annotator | None,
) -> Source:
    """Returns a layer's source after the annotator's edits.

    Errors: I003 for an annotator that returns something else.
    """
    source = Source(name, node.op_type, FRONTEND)
    if annotate is None:
        return source
    view = NodeView(
        name,
        node.op_type,
        node.domain,
        tuple(node.input),
        tuple(node.output),
        attributes,
        node.doc_string,
        {entry.key: entry.value for entry in node.metadata_props},
    )
    edited = annotate(source, view)
    if not isinstance(edited, Source):
        raise InputError("I003", f"the annotator returned {edited!r}, expected a Source")
    return edited.without_output()
