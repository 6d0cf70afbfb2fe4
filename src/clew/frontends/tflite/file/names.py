"""Layer names: the name of an operator's first result, or else the operator and its number."""

from __future__ import annotations

from clew.frontends.tflite.file.model import GraphInfo, OperatorInfo


def wanted_name(graph: GraphInfo, operator: OperatorInfo, number: int) -> str:
    """Returns the name of an operator in a subgraph; several operators may have the same."""
    first = next((index for index in operator.outputs if index >= 0), -1)
    own = graph.tensors[first].name if first >= 0 else ""
    return own or f"{operator.op}_{number}"
