"""Layers that are imported when they run: those that read a tensor of which only a run tells the
rank.

What such a layer means depends on the rank, and nothing more is known of its results than ONNX's
own type inference says. The graph holds it as the operator `onnx.layer`, with the node as text;
a run makes a model of the node and the shapes that it meets, imports that, and evaluates it with
the operators' references.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from clew.frontends.onnx.budgets import current
from clew.frontends.onnx.loader import read
from clew.frontends.onnx.names import display
from clew.frontends.onnx.registry import call
from clew.frontends.onnx.survey import subgraphs
from clew.frontends.onnx.value_types import type_proto, value_type
from clew.ir.dims import unknown_dim
from clew.ir.expr import Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.syntax import type_text
from clew.ir.types import (
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
)
from clew.ops.optionals import type_named
from clew.ops.registry import Sample, register_op
from clew.support.errors import ClewError, GraphTypeError, Hint, UnsupportedError

if TYPE_CHECKING:
    from clew.frontends.onnx.layer import Layer
    from clew.frontends.onnx.scope import Scope

Array = np.ndarray[Any, Any]
RUN_TELLS: Final = frozenset({"U002", "U006", "U101", "U102"})
"""Codes of what is known only when the model runs: a value (of an axis, a shape), a size."""
# Inputs with no more elements than this may decide shapes: they are constants of the model.
_SMALL: Final = 64
_KEPT: Final = 64


def late_layer(layer: Layer, domain: str) -> list[Expr]:
    """Returns the results of a layer that is imported when it runs.

    Errors: U025 where ONNX's inference cannot tell what its results are.
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
    """Returns the layer as a node that stands alone."""
    node = NodeProto(name=layer.name, op_type=layer.op_type, domain=domain)
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
    """Returns what a node's graphs read from outside: names and values."""
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
        known = layer.importer.known.get(expr)
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
    except Exception as error:  # whatever onnx's own inference raises
        raise _untold(layer) from error
    results = []
    for n, name in enumerate(node.output):
        if name and name not in found:
            raise _untold(layer)
        what = f"result {n} of {display(layer.op_type)}"
        results.append(value_type(found[name], what) if name else TupleType(()))
    return results


def _untold(layer: Layer) -> UnsupportedError:
    types = ", ".join("nothing" if x is None else str(x.type) for x in layer.inputs)
    return UnsupportedError(
        "U025",
        f"{display(layer.op_type)} of {types}: what it gives is known only when the model runs",
        hint=Hint(
            "give fixed input shapes (inputs={...}), or shapes of the sequence's elements",
            cli="give fixed input shapes (--shape NAME=1,3,224,224), or shapes of the sequence's "
            "elements",
            page="give the input shapes when compiling it, or shapes of the sequence's elements",
        ),
    )


# --- in a run -------------------------------------------------------------------------------------


def _sample() -> Sample:
    node = NodeProto(op_type="Relu", input=["x0"], output=["y0"])
    data = base64.b64encode(node.SerializeToString(deterministic=True)).decode()
    about: dict[str, Any] = {"domain": "", "version": 14, "captured": ()}
    types: dict[str, Any] = {"inputs": ("f32[*]",), "results": ("f32[*]",)}
    return Sample(UnrankedType("f32"), node=data, **about, **types)


@register_op("onnx.layer", host=True, samples=(_sample(),))
def onnx_layer(
    *values: Any,
    node: str,
    domain: str,
    version: int,
    captured: tuple[str, ...],
    inputs: tuple[str, ...],
    results: tuple[str, ...],
) -> tuple[Any, ...]:
    """A layer of an ONNX model, imported for the values that it meets. `inputs` and `results` are
    types, `captured` names what its graphs read from outside, its last inputs.

    Errors: those of importing the layer with these shapes, and U026 for one that needs other
    values at import than those that are small.
    """
    types = [
        _met(value, type_named("onnx.layer", t)) for value, t in zip(values, inputs, strict=True)
    ]
    own = _parsed(node)
    names = [*(name for name in own.input if name), *captured]
    small = {
        name: value
        for name, value, type_ in zip(names, values, types, strict=True)
        if isinstance(type_, TensorType) and type_.dtype != "str" and value.size <= _SMALL
    }
    # Whole numbers are sizes, places and counts; others (scales) only where these do not do.
    whole = {name: value for name, value in small.items() if value.dtype.kind in "ib"}
    given = tuple(zip(names, types, strict=True))
    try:
        module = _module(node, domain, version, given, whole)
    except UnsupportedError as error:
        if error.code != "U026" or len(whole) == len(small):
            raise
        module = _module(node, domain, version, given, small)
    wanted = set(module.input_names)
    found = interpret(module, {n: v for n, v in zip(names, values, strict=True) if n in wanted})
    return tuple(found.get(name) for name in own.output)


@onnx_layer.types
def _onnx_layer_types(
    *values: Type, inputs: tuple[str, ...], results: tuple[str, ...], **attrs: Any
) -> Type:
    if len(inputs) != len(values):
        raise GraphTypeError("T157", f"onnx.layer: {len(values)} inputs for {len(inputs)} types")
    types = (_fresh(type_named("onnx.layer", text)) for text in results)
    return TupleType(tuple(types))


@onnx_layer.once_known
def _onnx_layer_once_known(
    types: Sequence[Type],
    values: Sequence[Array | None],
    *,
    node: str,
    domain: str,
    version: int,
    captured: tuple[str, ...],
    **attrs: Any,
) -> Function | None:
    """Returns the layer, imported for these types; None where it cannot be: a branch that they rule
    out need not fit them.
    """
    own = _parsed(node)
    names = [*(name for name in own.input if name), *captured]
    constants = {n: v for n, v in zip(names, values, strict=True) if v is not None}
    inputs = list(zip(names, types, strict=True))
    try:
        module = _imported(own, domain, version, inputs, constants)
    except ClewError:
        return None
    taken = {p.name: p for p in module.main.params}
    params = [taken.get(name) or Var(name, type_) for name, type_ in inputs]
    results = dict(zip(module.output_names, _results(module.main.body), strict=True))
    fields = [results[name] if name else Tuple(()) for name in own.output]
    return Function(params, Tuple(fields))


def _results(body: Expr) -> Sequence[Expr]:
    return body.fields if isinstance(body, Tuple) else (body,)


def _fresh(type_: Type) -> Type:
    if isinstance(type_, TensorType):
        dims = tuple(d if isinstance(d, int) else unknown_dim() for d in type_.shape)
        return type_.with_(shape=dims)
    return type_


@lru_cache(maxsize=1024)
def _parsed(node: str) -> NodeProto:
    parsed: NodeProto = NodeProto.FromString(base64.b64decode(node))
    return parsed


def _met(value: Any, declared: Type) -> Type:
    """Returns the type of a value in a run; `declared` tells what the value does not."""
    match declared:
        case TensorType(dtype=dtype) | UnrankedType(dtype):
            return TensorType(np.shape(value), dtype)
        case SequenceType(TensorType(dtype=dtype) | UnrankedType(dtype)):
            shapes = {np.shape(v) for v in value}
            one = len(shapes) == 1
            return SequenceType(TensorType(shapes.pop(), dtype) if one else UnrankedType(dtype))
        case OptionalType(element):
            return OptionalType(element if value is None else _met(value, element))
    return declared


_modules: Final[OrderedDict[Any, Module]] = OrderedDict()
_lock: Final = Lock()


def _module(
    node: str,
    domain: str,
    version: int,
    inputs: tuple[tuple[str, Type], ...],
    constants: Mapping[str, Array],
) -> Module:
    """Returns the model of one node with inputs of given types; the last ones are kept."""
    held = tuple((name, array.dtype.str, array.tobytes()) for name, array in constants.items())
    key = (node, domain, version, inputs, held, current())
    with _lock:
        found = _modules.get(key)
    if found is None:
        found = _imported(_parsed(node), domain, version, inputs, constants)
        with _lock:
            _modules[key] = found
            while len(_modules) > _KEPT:
                _modules.popitem(last=False)
    return found


def _imported(
    node: NodeProto,
    domain: str,
    version: int,
    inputs: Sequence[tuple[str, Type]],
    constants: Mapping[str, Array],
) -> Module:
    from clew.frontends.onnx.importer import Importer  # noqa: PLC0415  (it imports this module)

    model = ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    if domain:
        newest = onnx.defs.onnx_opset_version()
        model.opset_import.append(onnx.helper.make_opsetid("", newest))
    model.graph.name = "layer"
    model.graph.node.append(node)
    for name, type_ in inputs:
        model.graph.input.add(name=name, type=type_proto(type_))
    for name in node.output:
        if name:
            model.graph.output.add(name=name)
    budgets = current()
    try:
        return Importer(read(model, budgets), budgets, constants=dict(constants)).run()
    except ClewError as error:
        if error.code not in RUN_TELLS:
            raise
        raise UnsupportedError(
            "U026", f"{display(node.op_type)}: an input that decides shapes has too many elements"
        ) from error
