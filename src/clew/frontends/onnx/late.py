"""Layers that are imported when they run: those that read a tensor of unknown rank.

The meaning of such a layer depends on the rank, and only ONNX's own type inference describes its
results. The graph holds it as the operator `onnx.layer`, with the node as text. A run makes a model
of the node with its actual shapes (`late_run.py`), imports it, and evaluates it with the operators'
references.
"""

from __future__ import annotations

import base64

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from clew.frontends.building import call
from clew.frontends.names import display
from clew.frontends.onnx.file.survey import subgraphs
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.scope import Scope
from clew.frontends.onnx.value_types import type_proto, value_type
from clew.ir.expr import Expr, TupleGetItem
from clew.ir.syntax import type_text
from clew.ir.types import TupleType, Type
from clew.support.errors import Hint, UnsupportedError


def late_layer(layer: Layer, domain: str) -> list[Expr]:
    """Returns the results of a layer that is imported when it runs.

    Errors: U025 if ONNX's inference cannot determine its results' types.
    """
    node = _node(layer, domain)
    names, inputs = _captured(node, layer.scope)
    given = [expr for expr in layer.inputs if expr is not None]
    types = [expr.type for expr in (*given, *inputs)]
    results = _result_types(layer, node, domain)
    made = call(
        "onnx.layer",
        *given,
        *inputs,
        node=base64.b64encode(node.SerializeToString(deterministic=True)).decode(),
        domain=domain,
        version=layer.scope.opsets.get(domain, 1),
        captured=tuple(names),
        inputs=tuple(map(type_text, types)),
        results=tuple(map(type_text, results)),
    )
    return [TupleGetItem(made, n) for n in range(len(results))]


def _node(layer: Layer, domain: str) -> NodeProto:
    """Returns the layer as a standalone node."""
    node = NodeProto(name=layer.name, op_type=layer.op, domain=domain)
    node.input.extend("" if x is None else f"x{n}" for n, x in enumerate(layer.inputs))
    used = [bool(name) for name in layer.outputs]
    node.output.extend(f"y{n}" if u else "" for n, u in enumerate(used))
    for name, attribute in layer.given.items():
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.name = name
        node.attribute.append(copy)
    return node


def _captured(node: NodeProto, scope: Scope) -> tuple[list[str], list[Expr]]:
    """Returns the outside values that a node's subgraphs read: names and values."""
    names: dict[str, Expr] = {}
    for _, graph in subgraphs(node):
        for name in _free_names(graph):
            found = scope.lookup(name)
            if found is not None:
                names[name] = found
    return list(names), list(names.values())


def _free_names(graph: GraphProto) -> list[str]:
    own = {v.name for v in (*graph.input, *graph.initializer)}
    own |= {s.values.name for s in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    read = [name for node in graph.node for name in node.input if name]
    read += [v.name for v in graph.output]
    for node in graph.node:
        for _, inner in subgraphs(node):
            read += _free_names(inner)
    return [name for name in dict.fromkeys(read) if name not in own]


def _result_types(layer: Layer, node: NodeProto, domain: str) -> list[Type]:
    types, data = {}, {}
    for name, expr in zip(node.input, layer.inputs, strict=True):
        if expr is None:
            continue
        types[name] = type_proto(expr.type)
        known = layer.builder.known.get(expr)
        if known is not None and known.dtype != object and known.dtype.kind in "biuf":
            data[name] = onnx.numpy_helper.from_array(np.asarray(known), name)
    version = layer.scope.opsets.get(domain, 1)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            layer.schema,
            node,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(domain, version)],
        )
    except Exception as error:  # onnx's own inference may raise anything
        raise _untold(layer) from error
    results = []
    for n, name in enumerate(node.output):
        if name and name not in found:
            raise _untold(layer)
        what = f"result {n} of {display(layer.op)}"
        results.append(value_type(found[name], what) if name else TupleType(()))
    return results


def _untold(layer: Layer) -> UnsupportedError:
    types = ", ".join("nothing" if x is None else str(x.type) for x in layer.inputs)
    return UnsupportedError(
        "U025",
        f"{display(layer.op)} of {types}: its result's type is unknown before the run",
        hint=Hint(
            "give fixed input shapes (inputs={...}), or shapes of the sequence's elements",
            cli="give fixed input shapes (--shape NAME=1,3,224,224), or shapes of the sequence's "
            "elements",
            page="give the input shapes when compiling it, or shapes of the sequence's elements",
        ),
    )
