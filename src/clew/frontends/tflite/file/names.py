"""The names of layers: of an operator's first result, or of the operator and its number."""

from __future__ import annotations

from clew.frontends.tflite.file.model import GraphInfo, OperatorInfo


def wanted_name(graph: GraphInfo, operator: OperatorInfo, number: int) -> str:
    """Returns the name of an operator of a graph; several may have the same."""
    first = next((index for index in operator.outputs if index >= 0), -1)
    own = graph.tensors[first].name if first >= 0 else ""
    return own or f"{operator.op}_{number}"
