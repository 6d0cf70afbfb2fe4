"""Writes functions of the graph IR as ONNX models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto, helper

from clew.exporters.onnx.builder import OPSET, GraphBuilder
from clew.exporters.onnx.joins import Join, Site, joins_in
from clew.exporters.onnx.registry import Writing, rule_of
from clew.ir.expr import (
    ArgRef,
    Call,
    Constant,
    Expr,
    Function,
    If,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.syntax import span_text
from clew.ir.types import HOST_DTYPES, TensorType, TupleType, Type
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.ops.rules import Refused
from clew.support.errors import UnsupportedError
from clew.trace.span import Span

_IR_VERSION: Final = 10
_MOST_SOURCES: Final = 4
# Protocol buffers hold less than 2 GiB; the rest is for nodes.
_MOST_BYTES: Final = (1 << 31) - (64 << 20)


@dataclass(frozen=True)
class WrittenModel:
    """An ONNX model of a function. `inputs` and `outputs` are names of values, in the order of
    parameters and results; `calls` has the calls that each node computes, by the node's name.
    """

    model: ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: Mapping[str, tuple[Call, ...]]

    def layers(self, node: str) -> tuple[str, ...]:
        """Returns the user's layers that a node serves; none for one without calls."""
        calls = self.calls.get(node, ())
        return tuple(dict.fromkeys(layer for call in calls for layer in call.layers))

    def nodes_in(self, name: str) -> tuple[str, ...]:
        """Returns the names of the nodes that an engine's name for one of its nodes mentions, in
        order. Engines append to the names of nodes (`conv:Conv#0_nchwc`), and list several for
        nodes that they fuse.
        """
        return tuple(dict.fromkeys(self._mentioned.findall(name)))

    @cached_property
    def _mentioned(self) -> re.Pattern[str]:
        names = sorted(self.calls, key=len, reverse=True)
        if not names:
            return re.compile("(?!)")
        longest = "|".join(map(re.escape, names))
        return re.compile(rf"(?<![\w.])(?:{longest})(?!\d| \[\d)")


def to_onnx(function: Function, *, name: str = "clew") -> ModelProto:
    """Returns the ONNX model of a function, as `write` does."""
    return write(function, name=name).model


def write(function: Function, *, name: str = "clew") -> WrittenModel:
    """Returns the ONNX model of a function of operator calls with static shapes: its parameters are
    the model's inputs, its results the outputs, and its constants initializers. Calls of composite
    functions are written as their bodies.

    A node is named after the layers that it serves (`dense:MatMul#0`), with a number if another
    node has the name.

    Errors: U070 for a call that has no ONNX form, U071 for 2 GiB of constants.
    """
    builder = GraphBuilder()
    inputs = []
    for param in function.params:
        _need_static("a parameter", param.type)
        inputs.append(builder.value(param.name, param.tensor.dtype))
    calls: dict[str, tuple[Call, ...]] = {}
    results = _body(function, [(name,) for name in inputs], builder, calls)
    types = _tensors(function.body.type)
    told = function.attrs.get("outputs", ())
    wanted = told if len(told) == len(results) else [f"result{n}" for n in range(len(results))]
    outputs = _outputs(builder, results, wanted)
    builder.prune(outputs)
    held = builder.constant_bytes(outputs)
    if held > _MOST_BYTES:
        raise UnsupportedError(
            "U071",
            f"constants of {held:,} bytes do not fit an ONNX model, which holds less than 2 GiB",
            hint="write smaller parts of the graph",
        )
    graph = helper.make_graph(
        builder.nodes,
        name,
        [_info(n, p.tensor) for n, p in zip(inputs, function.params, strict=True)],
        [_info(n, t) for n, t in zip(outputs, types, strict=True)],
        builder.initializers(outputs),
    )
    model = helper.make_model(
        graph,
        producer_name="clew",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
    )
    made = {node.name: calls[node.name] for node in builder.all_nodes if node.name in calls}
    return WrittenModel(model, tuple(inputs), tuple(outputs), made)


def can_write(call: Call) -> str | None:
    """Returns None if a call of an operator has an ONNX form of the same meaning, else the reason
    why not.
    """
    builder = GraphBuilder()
    try:
        _check(call)
        names = []
        for n, arg in enumerate(call.args):
            if isinstance(arg, Constant):
                names.append(builder.constant_of(arg))
            else:
                names.append(builder.value(f"x{n}", arg.tensor.dtype))
        _by_rule(call, names, builder)
    except Refused as found:
        return found.reason
    return None


# --- nodes ----------------------------------------------------------------------------------------


def _body(
    function: Function,
    args: Sequence[tuple[str, ...]],
    builder: GraphBuilder,
    calls: dict[str, tuple[Call, ...]],
) -> tuple[str, ...]:
    """Writes the body of a function over named arguments and returns the names of its results."""
    values = {p.id: names for p, names in zip(function.params, args, strict=True)}
    joins = joins_in(function.body, lambda call: can_write(call) is None)
    inner = {call.id for join in joins.values() for call in join.inner}
    for node in post_order(function.body):
        if node.id in values or node.id in inner or isinstance(node, Function):
            continue
        join = joins.get(node.id)
        if join is not None:
            assert isinstance(node, Call)
            values[node.id] = (_joined(node, join, values, builder, calls),)
        else:
            values[node.id] = _written(node, values, builder, calls)
    return values[function.body.id]


def _written(
    node: Expr,
    values: dict[int, tuple[str, ...]],
    builder: GraphBuilder,
    calls: dict[str, tuple[Call, ...]],
) -> tuple[str, ...]:
    """Returns the names of a node's values."""
    match node:
        case Constant():
            _need_static("a constant", node.type)
            return (builder.constant_of(node),)
        case Tuple() if all(isinstance(f.type, TensorType) for f in node.fields):
            return tuple(one for field in node.fields for one in values[field.id])
        case TupleGetItem():
            return (values[node.value.id][node.index],)
        case If():
            return _branched(node, values, builder, calls)
        case While():
            return _looped(node, values, builder, calls)
        case Call(op=Function() as called) if "composite" in called.attrs:
            return _body(called, [values[a.id] for a in node.args], builder, calls)
        case Call():
            first = len(builder.nodes)
            try:
                _check(node)
                names = _by_rule(node, [values[a.id][0] for a in node.args], builder)
            except Refused as found:
                raise UnsupportedError(
                    "U070",
                    f"{node.op_name} has no ONNX form: {found.reason}",
                    layer=", ".join(node.layers),
                ) from None
            calls.update((made.name, (node,)) for made in builder.nodes[first:])
            return names
    what = f"the variable {node.name}" if isinstance(node, Var) else type(node).__name__
    raise UnsupportedError("U070", f"{what} has no ONNX form")


def _branched(
    node: If,
    values: dict[int, tuple[str, ...]],
    builder: GraphBuilder,
    calls: dict[str, tuple[Call, ...]],
) -> tuple[str, ...]:
    """Writes branches, which read values of the graph around them; returns the names of results."""
    condition, args = values[node.cond.id], [values[arg.id] for arg in node.args]
    graphs = {}
    for key, branch in (("then_branch", node.then), ("else_branch", node.orelse)):
        with builder.subgraph():
            results = _body(branch, args, builder, calls)
            graphs[key] = _graph(builder, key, [], results, branch.body.type)
    label, dtypes = label_of(node.span), [t.dtype for t in _static_types(node.type)]
    return builder.control(label, "If", condition, dtypes, graphs)


def _looped(
    node: While,
    values: dict[int, tuple[str, ...]],
    builder: GraphBuilder,
    calls: dict[str, tuple[Call, ...]],
) -> tuple[str, ...]:
    """Writes a loop, and returns the names of its results. It has a trip count if that is known,
    and else a condition, which the body computes for the next iteration.
    """
    types = _static_types(node.type)
    first = [values[value.id] for value in node.init]
    counted = isinstance(node.trips, int)
    count, going = "", ""
    if counted:
        count = builder.constant(np.array(node.trips, np.int64))
    else:
        zero = builder.constant(np.array(0, np.int64))
        (going,) = _body(node.cond, [(zero,), *first], builder, calls)
    with builder.subgraph():
        held = builder.value("going", "bool")
        names = [builder.value(p.name, p.tensor.dtype) for p in node.body.params]
        results = _body(node.body, [(name,) for name in names], builder, calls)
        after = held
        if not counted:
            one = builder.constant(np.array(1, np.int64))
            (index,) = builder.node("", "Add", [names[0], one], 1, "", {})
            state = [(name,) for name in results[: len(first)]]
            (after,) = _body(node.cond, [(index,), *state], builder, calls)
        scalar = TensorType((), "bool")
        params = [(names[0], node.body.params[0].tensor), (held, scalar)]
        params += [(n, p.tensor) for n, p in zip(names[1:], node.body.params[1:], strict=True)]
        told = TupleType((scalar, *_static_types(node.body.body.type)))
        body = _graph(builder, "body", params, (after, *results), told)
    inputs = [count, going, *(name for (name,) in first)]
    dtypes = [t.dtype for t in types]
    return builder.control(label_of(node.span), "Loop", inputs, dtypes, {"body": body})


def _graph(
    builder: GraphBuilder,
    name: str,
    params: Sequence[tuple[str, TensorType]],
    results: Sequence[str],
    type_: Type,
) -> GraphProto:
    """Returns the subgraph of the nodes that were collected."""
    types = _static_types(type_)
    outputs = _outputs(builder, results, [f"{name}:result"] * len(results))
    builder.prune(outputs)
    return helper.make_graph(
        builder.nodes,
        name,
        [_info(n, t) for n, t in params],
        [_info(n, t) for n, t in zip(outputs, types, strict=True)],
    )


def _static_types(type_: Type) -> list[TensorType]:
    """Returns the types of a value's tensors. Errors: U070 for other values, or open sizes."""
    for each in _fields(type_):
        _need_static("a value of a loop or a branch", each)
    return _tensors(type_)


def _joined(
    call: Call,
    join: Join,
    values: dict[int, tuple[str, ...]],
    builder: GraphBuilder,
    calls: dict[str, tuple[Call, ...]],
) -> str:
    """Returns the name of the value of joined calls."""
    first, together = len(builder.nodes), (call, *reversed(join.inner))
    span = call.span
    for other in join.inner:
        span = span | other.span
    name = join.write(Site(values, builder, label_of(span)))
    assert builder.dtypes[name] == call.tensor.dtype, call.op_name
    calls.update((made.name, together) for made in builder.nodes[first:])
    return name


def _by_rule(call: Call, inputs: Sequence[str], builder: GraphBuilder) -> tuple[str, ...]:
    """Returns the names of a call's results, written by the operator's rule."""
    rule = rule_of(call.op_name)
    if rule is None:
        raise Refused("no ONNX operators of the same meaning are known")
    made = rule(Writing(call, inputs, builder, label_of(call.span)))
    names = (made,) if isinstance(made, str) else tuple(made)
    found, wanted = [builder.dtypes[name] for name in names], _tensors(call.type)
    assert found == [t.dtype for t in wanted], f"{call.op_name}: {found} for {call.type}"
    return names


def _check(call: Call) -> None:
    """Errors: Refused for calls that no rule takes."""
    if not isinstance(call.op, Op) or not call.op.is_builtin:
        raise Refused(f"{call.op_name} is not an operator of clew")
    if any(isinstance(value, ArgRef) for value in call.attrs.values()):
        raise Refused("attributes are known only during the run")
    for type_ in (*(a.type for a in call.args), *_fields(call.type)):
        if not isinstance(type_, TensorType):
            raise Refused(f"a value is of type {type_}")
        if not type_.is_static:
            raise Refused(f"the sizes of {type_} are not static")
        if 0 in type_.shape:
            raise Refused(f"{type_} has no elements")
        if type_.layout:
            raise Refused(f"{type_} has its own layout")


def _fields(type_: Type) -> tuple[Type, ...]:
    return type_.fields if isinstance(type_, TupleType) else (type_,)


def _tensors(type_: Type) -> list[TensorType]:
    return [t for t in _fields(type_) if isinstance(t, TensorType)]


def _need_static(what: str, type_: Type) -> None:
    static = isinstance(type_, TensorType) and type_.is_static
    if not isinstance(type_, TensorType) or not static or type_.dtype in HOST_DTYPES:
        raise UnsupportedError("U070", f"{what} of type {type_} has no ONNX form")


def _outputs(
    builder: GraphBuilder, results: Sequence[str], wanted: Sequence[str]
) -> tuple[str, ...]:
    """Returns the names of outputs. An input, a constant, or a value that is an output already, is
    passed through an identity.
    """
    renamed: dict[str, str] = {}
    outputs = []
    for result, want in zip(results, wanted, strict=True):
        name = builder.unique(want)
        if builder.is_result(result) and result not in renamed:
            renamed[result] = name
        else:
            builder.identity(renamed.get(result, result), name)
        outputs.append(name)
    builder.rename(renamed)
    return tuple(outputs)


def _info(name: str, type_: TensorType) -> ValueInfoProto:
    number = GraphBuilder.number_of(type_.dtype)
    return helper.make_tensor_value_info(name, number, type_.concrete)


def label_of(span: Span) -> str:
    """Returns the layers of a span in the notation of the text form (`dense:MatMul#0`); of many,
    the first ones.
    """
    marked = {s.without_output() for s in span.sources if s.output is not None}
    whole = [s for s in span.sources if s not in marked]
    sources = [s for s in whole if s.kind in ("layer", "edit")] or whole
    if not sources:
        return ""
    rest = ", …" if len(sources) > _MOST_SOURCES else ""
    return span_text(Span(sources[:_MOST_SOURCES]), sources[0].frontend) + rest
