"""The operator of layers deferred to the run (`late.py`): it imports the layer for its actual
shapes, and evaluates the import with the operators' references.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from clew.frontends.deferred import RUN_TELLS
from clew.frontends.names import display
from clew.frontends.onnx.file.loader import read
from clew.frontends.onnx.importer import Importer
from clew.frontends.onnx.value_types import type_proto
from clew.ir.dims import unknown_dim
from clew.ir.expr import Expr, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import (
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
)
from clew.ops.data.optionals import type_named
from clew.ops.registry import Sample, register_op
from clew.support.budgets import current
from clew.support.caches import bounded_cache
from clew.support.errors import ClewError, GraphTypeError, UnsupportedError
from clew.support.locks import Lock
from clew.support.text_arrays import content

Array = np.ndarray[Any, Any]
# Inputs with at most this many elements may determine shapes; they are constants of the model.
_SMALL: Final = 64
_KEPT: Final = 512


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
    """A layer of an ONNX model, imported for its actual operands. `inputs` and `results` are types;
    `captured` names the outside values of its subgraphs, which are its last inputs.

    Errors: those of importing the layer with these shapes, and U026 for a layer that needs the
    value of a large input at import.
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
    # Integers are sizes, positions and counts; others (scales) are used only if integers do not
    # suffice.
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
    """Returns the layer imported for these types; None if that fails: these types may not fit a
    branch that is never taken.
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


@bounded_cache(1 << 20)
def _parsed(node: str) -> NodeProto:
    parsed: NodeProto = NodeProto.FromString(base64.b64decode(node))
    return parsed


def _met(value: Any, declared: Type) -> Type:
    """Returns the type of a value in a run; `declared` adds facts that the value does not show."""
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
    """Returns the model of one node with inputs of given types; the last models are cached."""
    held = tuple((name, array.dtype.str, content(array)) for name, array in constants.items())
    key = (node, domain, version, inputs, held, current())
    with _lock:
        found = _modules.get(key)
        if found is not None:
            _modules.move_to_end(key)
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
            "U026",
            f"{display(node.op_type)}: an input that determines shapes has too many elements",
        ) from error
