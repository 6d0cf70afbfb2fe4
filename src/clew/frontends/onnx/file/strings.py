"""Checks that a message's strings are valid text; protobuf accepts any bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from clew.frontends.limits import over
from clew.frontends.names import display
from clew.support.budgets import Budgets
from clew.support.errors import ModelError


def check_strings(model: ModelProto, budgets: Budgets) -> None:
    """Checks the strings of a model that an import uses.

    Errors: M001 for one that is not UTF-8, M030 for a name that is too long.
    """
    most = budgets.name_chars
    for text in _model(model):
        if len(text) > most and isinstance(text, str):
            what = f"characters of the name {display(text)!r}"
            raise over("M030", what, len(text), "name_chars", most)
        if not isinstance(text, str):
            shown = text.decode("utf-8", errors="backslashreplace")[:80]
            raise ModelError(
                "M001",
                f"the model has a name that is not UTF-8: {shown!r}",
                hint="the file is damaged",
            )


def _model(model: ModelProto) -> Iterator[Any]:
    graphs = [model.graph]
    yield from _opsets(model.opset_import)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output)
        yield from _opsets(function.opset_import)
        yield from _nodes(function.node, graphs)
        yield from (attribute.name for attribute in function.attribute_proto)
    while graphs:
        graph = graphs.pop()
        for value in (*graph.input, *graph.output):
            yield from _value(value)
        for tensor in graph.initializer:
            yield from _tensor(tensor)
        for sparse in graph.sparse_initializer:
            yield from (*_tensor(sparse.values), *_tensor(sparse.indices))
        yield from _nodes(graph.node, graphs)


def _opsets(imports: Iterable[Any]) -> Iterator[Any]:
    for entry in imports:
        yield entry.domain


def _value(value: ValueInfoProto) -> Iterator[Any]:
    yield value.name
    for dim in value.type.tensor_type.shape.dim:
        yield dim.dim_param


def _tensor(tensor: TensorProto) -> Iterator[Any]:
    yield tensor.name
    for entry in tensor.external_data:
        yield entry.key
        yield entry.value


def _nodes(nodes: Iterable[NodeProto], graphs: list[GraphProto]) -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload, node.doc_string)
        yield from node.input
        yield from node.output
        for entry in node.metadata_props:
            yield entry.key
            yield entry.value
        for attribute in node.attribute:
            yield attribute.name
            yield attribute.ref_attr_name
            if attribute.HasField("t"):
                yield from _tensor(attribute.t)
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)
