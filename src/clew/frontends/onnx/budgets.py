"""The first check of a message against the budgets (`support.budgets`)."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from clew.frontends.limits import over
from clew.frontends.names import display
from clew.support.budgets import Budgets


def check_outline(model: ModelProto, budgets: Budgets) -> None:
    """Counts the parts of a message before any other use.

    Errors: M009 for too many nodes, M030 for too many of anything else.
    """
    _count("functions", "the model's functions", len(model.functions), budgets.functions)
    _count("opsets", "operator sets of the model", len(model.opset_import), budgets.opsets)
    for function in model.functions:
        _count("opsets", "operator sets of a function", len(function.opset_import), budgets.opsets)
        named = len(function.input) + len(function.output)
        _count("values", "inputs and outputs of a function", named, budgets.values)
    left = budgets.nodes
    for nodes in _bodies(model, budgets):
        left -= len(nodes)
        if left < 0:
            more = f"more than {budgets.nodes}"
            raise over("M009", "nodes of the model", more, "nodes", budgets.nodes)


def _bodies(model: ModelProto, budgets: Budgets) -> Iterator[list[NodeProto]]:
    """Yields the nodes of every graph and function, and counts the graphs."""
    graphs = [model.graph]
    pending = [function.node for function in model.functions]
    while graphs or pending:
        if graphs:
            graph = graphs.pop()
            _check_graph(graph, budgets)
            nodes = graph.node
        else:
            nodes = pending.pop()
        yield nodes
        for node in nodes:
            named = len(node.input) + len(node.output)
            _count("values", "inputs and outputs of a node", named, budgets.values)
            if node.attribute:
                graphs += _inner(node, budgets)


def _check_graph(graph: GraphProto, budgets: Budgets) -> None:
    for name, held in (
        ("inputs of a graph", graph.input),
        ("outputs of a graph", graph.output),
        ("initializers of a graph", graph.initializer),
        ("sparse initializers of a graph", graph.sparse_initializer),
    ):
        _count("values", name, len(held), budgets.values)


def _inner(node: NodeProto, budgets: Budgets) -> Iterator[GraphProto]:
    _count("values", "attributes of a node", len(node.attribute), budgets.values)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        elif attribute.graphs:
            yield from attribute.graphs
        elif not (attribute.HasField("t") or attribute.tensors or attribute.sparse_tensors):
            _check_attribute(attribute, budgets)


def _check_attribute(attribute: AttributeProto, budgets: Budgets) -> None:
    size, most = attribute.ByteSize(), budgets.attribute_bytes
    if size > most:
        what = f"bytes of the attribute {_text(attribute.name)!r}"
        raise over("M030", what, size, "attribute_bytes", most)


def _count(budget: str, what: str, asked: int, most: int) -> None:
    if asked > most:
        raise over("M030", what, asked, budget, most)


def _text(name: str | bytes) -> str:
    return display(name if isinstance(name, str) else name.decode(errors="backslashreplace"))
