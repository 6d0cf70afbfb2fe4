"""New files out of good ones: by their structure, and blindly.

A mutant follows from its number and a seed alone, so that any of a run can be made again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

INTS: Final = (
    -(2**63), -(2**31) - 1, -(2**31), -65, -8, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31,
    33, 64, 100, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32,
    2**33 + 1, 2**40, 2**62, 2**63 - 1,
)  # fmt: skip
FLOATS: Final = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e-38, 1e38, -1e38, 1e300, float("inf"), float("-inf"),
    float("nan"), 1e-7, 255.0, 2.0**31, 2.0**63,
)  # fmt: skip
TEXTS: Final = (
    "", " ", "x", "y", "a\nb", "a\0b", "..", "../secret.bin", "/etc/passwd", "link.bin", "hard.bin",
    "sub/../../secret.bin", "linked/secret.bin", "pipe", "n" * 300, "é漢🙂", '"}\n;', "%s%n",
    "ij,jk->ik", "...i->i", "a,b->ab", "ii->i", "linear", "cubic", "nearest", "reflect", "wrap",
    "constant", "edge", "SAME_UPPER", "VALID", "bidirectional", "reverse", "Relu", "Affine",
    "ai.onnx", "ai.onnx.ml", "com.example", "(a+)+$", "[", "mean", "sum", "none", "float32",
)  # fmt: skip
OPERATORS: Final = tuple(sorted({s.name for s in onnx.defs.get_all_schemas()}))

_KINDS: Final[tuple[Any, ...]] = tuple(AttributeProto.AttributeType.values())
_BLIND: Final = 0.2


def mutant(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Returns a model's bytes changed; `others` are models to take parts from."""
    if draw.random() < _BLIND:
        return blind(data, draw.choice(others), draw)
    try:
        model = ModelProto.FromString(data)
        other = ModelProto.FromString(draw.choice(others))
    except Exception:  # made blindly before
        return blind(data, data, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        draw.choice(_CHANGES)(model, other, draw)
    changed: bytes = model.SerializeToString()
    return blind(changed, data, draw) if draw.random() < 0.03 else changed


# --- blindly --------------------------------------------------------------------------------------


def blind(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Returns bytes with some flipped, cut out, doubled, put in, or replaced by another file's."""
    made = bytearray(data or b"\0")
    for _ in range(draw.choice((1, 1, 2, 4, 8))):
        place = draw.randrange(len(made) + 1)
        size = min(draw.choice((1, 1, 2, 4, 16, 64, 1000)), len(made) - place)
        match draw.randrange(8):
            case 0 | 1 if place < len(made):
                made[place] ^= 1 << draw.randrange(8)
            case 2 if place < len(made):
                made[place] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
            case 3:
                del made[place:]
            case 4:
                del made[place : place + size]
            case 5:
                made[place:place] = made[place : place + size]
            case 6:
                made[place:place] = draw.randbytes(draw.choice((1, 2, 9)))
            case _:
                start = draw.randrange(len(other) + 1)
                made[place : place + size] = other[start : start + draw.choice((1, 4, 32, 500))]
        made = made or bytearray(b"\0")
    return bytes(made)


# --- by structure ---------------------------------------------------------------------------------


def _descend(message: Message, draw: random.Random) -> tuple[Message, Any]:
    """Returns a message somewhere inside and one of its fields, of which half are set."""
    while True:
        fields = [f for f, _ in message.ListFields()]
        inner = [f for f in fields if f.message_type is not None]
        if not inner or draw.random() < 0.3:
            chosen = fields if fields and draw.random() < 0.75 else message.DESCRIPTOR.fields
            return message, draw.choice(list(chosen))
        below = getattr(message, draw.choice(inner).name)
        message = below if isinstance(below, Message) else draw.choice(list(below))


def _random_field(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    message, field = _descend(model, draw)
    value = getattr(message, field.name)
    try:
        if not hasattr(value, "extend"):
            _set(message, field, other, draw)
            return
        match draw.randrange(5):
            case 0 if value:
                del value[draw.randrange(len(value))]
            case 1 if value:
                _append(value, value[draw.randrange(len(value))])
            case 2 if len(value) > 1 and field.message_type is None:
                a, b = draw.randrange(len(value)), draw.randrange(len(value))
                value[a], value[b] = value[b], value[a]
            case 3 if value and field.message_type is None:
                value[draw.randrange(len(value))] = _plain(field, draw)
            case _:
                value.append(_plain(field, draw)) if field.message_type is None else value.add()
    except (TypeError, ValueError):  # out of the field's range
        return


def _append(values: Any, value: Any) -> None:
    if isinstance(value, Message):
        values.add().CopyFrom(value)
    else:
        values.append(value)


def _set(message: Message, field: Any, other: ModelProto, draw: random.Random) -> None:
    if field.message_type is not None:
        if draw.random() < 0.5:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
    elif draw.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _plain(field, draw))


def _plain(field: Any, draw: random.Random) -> Any:
    """Returns a value for a field that is no message."""
    kind = field.cpp_type
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT32):
        return draw.choice(INTS)
    if kind == field.CPPTYPE_UINT64:
        return draw.choice(INTS) % 2**64
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw.choice(FLOATS)
    if kind == field.CPPTYPE_ENUM:
        return draw.choice([v.number for v in field.enum_type.values])
    text = draw.choice(TEXTS)
    return text.encode() if field.type == field.TYPE_BYTES else text


def _graphs(model: ModelProto) -> list[Any]:
    """Returns all graphs and functions, which both have nodes."""
    found: list[Any] = [model.graph, *model.functions]
    for graph in found:
        for node in graph.node:
            found.extend(a.g for a in node.attribute if a.HasField("g"))
    return found


def _node(model: ModelProto, draw: random.Random) -> tuple[Any, NodeProto] | None:
    graphs = [g for g in _graphs(model) if g.node]
    if not graphs:
        return None
    graph = draw.choice(graphs)
    return graph, draw.choice(list(graph.node))


def _names(graph: Any) -> list[str]:
    names = ["", "gone"]
    for node in graph.node:
        names += [*node.input, *node.output]
    return names


def _rewire(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    found = _node(model, draw)
    if found is None:
        return
    graph, node = found
    values = node.input if draw.random() < 0.75 else node.output
    name = draw.choice(_names(graph))
    match draw.randrange(4):
        case 0:
            values.append(name)
        case 1 if values:
            del values[draw.randrange(len(values))]
        case _ if values:
            values[draw.randrange(len(values))] = name


def _operator(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    found = _node(model, draw)
    if found is not None:
        found[1].op_type = draw.choice(OPERATORS)


def _nodes(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    """Drops, doubles, moves or takes over nodes."""
    found = _node(model, draw)
    if found is None:
        return
    graph, node = found
    match draw.randrange(4):
        case 0:
            graph.node.remove(node)
        case 1:
            copy = graph.node.add()
            copy.CopyFrom(node)
            for n, name in enumerate(copy.output):
                copy.output[n] = f"{name}_copy"
        case 2:
            nodes = list(graph.node)
            draw.shuffle(nodes)
            kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
            del graph.node[:]
            graph.node.extend(kept)
        case _:
            taken = _node(other, draw)
            if taken is not None:
                node.attribute.extend(taken[1].attribute)
                node.op_type = taken[1].op_type
                node.domain = taken[1].domain


def _attribute(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    found = _node(model, draw)
    if found is None:
        return
    node = found[1]
    if not node.attribute or draw.random() < 0.2:
        _new_attribute(node, draw)
        return
    attribute = draw.choice(list(node.attribute))
    match draw.randrange(6):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            attribute.type = draw.choice(_KINDS)
        case 2:
            attribute.f = draw.choice(FLOATS)
        case _:
            attribute.i = draw.choice(INTS)
            if attribute.ints:
                attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(INTS)
            if attribute.s:
                attribute.s = draw.choice(TEXTS).encode()


def _new_attribute(node: NodeProto, draw: random.Random) -> None:
    """Adds one that the operator's schema knows, of a type that it may not."""
    try:
        known = list(onnx.defs.get_schema(node.op_type, domain=node.domain).attributes)
    except onnx.defs.SchemaError:
        known = []
    made = AttributeProto(name=draw.choice([*known, "axis", "x"]))
    made.type = draw.choice((1, 2, 3, 6, 7, 8))  # type: ignore[assignment]
    made.i, made.f = draw.choice(INTS), draw.choice(FLOATS)
    made.s = draw.choice(TEXTS).encode()
    made.ints.extend(draw.choice(INTS) for _ in range(draw.randrange(5)))
    made.floats.extend(draw.choice(FLOATS) for _ in range(draw.randrange(5)))
    node.attribute.append(made)


def _tensors(model: ModelProto) -> list[TensorProto]:
    found: list[TensorProto] = []
    for graph in _graphs(model):
        found += getattr(graph, "initializer", [])
        found += [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    return found


def _tensor(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    tensors = _tensors(model)
    if not tensors:
        _random_field(model, other, draw)
        return
    tensor = draw.choice(tensors)
    match draw.randrange(6):
        case 0 if tensor.dims:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(INTS)
        case 1:
            tensor.dims.append(draw.choice(INTS))
        case 2:
            tensor.data_type = draw.randrange(-1, 30)
        case 3:
            tensor.raw_data = tensor.raw_data[: draw.randrange(len(tensor.raw_data) + 1)]
        case 4 if tensor.external_data:
            draw.choice(list(tensor.external_data)).value = draw.choice(TEXTS)
        case _:
            _elements(tensor, draw)


def _elements(tensor: TensorProto, draw: random.Random) -> None:
    """Changes values, above all those that say sizes and places."""
    if tensor.data_type == TensorProto.INT64:
        if tensor.raw_data and len(tensor.raw_data) % 8 == 0:
            values = np.frombuffer(tensor.raw_data, np.int64).copy()
            values[draw.randrange(len(values))] = draw.choice(INTS)
            tensor.raw_data = values.tobytes()
        elif tensor.int64_data:
            place = draw.randrange(len(tensor.int64_data))
            tensor.int64_data[place] = draw.choice(INTS)
    elif tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) >= 4:
        place = draw.randrange(len(tensor.raw_data) // 4) * 4
        value = struct.pack("<f", np.float32(min(max(draw.choice(FLOATS), -3e38), 3e38)))
        tensor.raw_data = tensor.raw_data[:place] + value + tensor.raw_data[place + 4 :]


def _value(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    """Changes types and shapes that are declared."""
    values = [*model.graph.input, *model.graph.output]
    if not values:
        return
    kind = draw.choice(values).type
    dims = kind.tensor_type.shape.dim
    match draw.randrange(5):
        case 0:
            kind.tensor_type.elem_type = draw.randrange(-1, 30)
        case 1 if dims:
            draw.choice(list(dims)).dim_param = draw.choice(("n", "m", "a b", *TEXTS))
        case 2:
            dims.add().dim_value = draw.choice(INTS)
        case 3 if dims:
            del dims[draw.randrange(len(dims))]
        case _ if dims:
            draw.choice(list(dims)).dim_value = draw.choice(INTS)


def _version(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    if model.opset_import:
        draw.choice(list(model.opset_import)).version = draw.choice((*range(1, 30), *INTS))


def _initializer(model: ModelProto, other: ModelProto, draw: random.Random) -> None:
    """Makes an input a constant, so that its value is known at import."""
    if not model.graph.input:
        return
    given = draw.choice(list(model.graph.input))
    made = model.graph.initializer.add(name=given.name, data_type=TensorProto.INT64)
    count = draw.randrange(5)
    made.dims.append(count)
    made.int64_data.extend(draw.choice(INTS) for _ in range(count))


_Change = Callable[[ModelProto, ModelProto, random.Random], None]
_CHANGES: Final[tuple[_Change, ...]] = (
    _random_field, _random_field, _rewire, _rewire, _operator, _nodes, _attribute, _attribute,
    _attribute, _tensor, _tensor, _value, _version, _initializer,
)  # fmt: skip
