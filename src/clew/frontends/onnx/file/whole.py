"""Models for other engines: whole messages, with inner values as outputs, and single layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from onnx.external_data_helper import load_external_data_for_model

from clew.frontends.onnx.file.order import uses_of
from clew.frontends.onnx.file.survey import with_inner
from clew.support.files import read_bytes


def read_whole(path: Path) -> ModelProto:
    """Returns the message of a file that was imported before, with its weights.

    Raises `OSError` or `ValueError` if it can no longer be read.
    """
    try:
        model: ModelProto = ModelProto.FromString(read_bytes(path))
    except DecodeError as error:
        raise ValueError(str(error)) from None
    # The import has checked that these are plain files beside the model.
    load_external_data_for_model(model, str(path.parent))
    return model


def drop_repeated_names(model: ModelProto) -> bool:
    """Removes the names of a model's nodes if two nodes have the same one, which other engines
    refuse; returns whether there were such nodes.
    """
    nodes = with_inner(chain(model.graph.node, *(f.node for f in model.functions)))
    names = [node.name for node in nodes if node.name]
    if len(set(names)) == len(names):
        return False
    for node in nodes:
        node.name = ""
    return True


def giving_out(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """Returns a model with inner values as additional outputs."""
    made = ModelProto()
    made.CopyFrom(model)
    known = {o.name for o in made.graph.output}
    for name in dict.fromkeys(names):
        if name not in known:
            made.graph.output.append(ValueInfoProto(name=name))
    return made


def one_layer(model: ModelProto, outputs: Sequence[str], values: Mapping[str, Any]) -> bytes | None:
    """Returns a model of the one layer that has these outputs, with `values` for the layer's
    operands; None for layers inside functions and branches.
    """
    node = _node(model, outputs)
    if node is None:
        return None
    held = {t.name: t for t in model.graph.initializer}
    reads = dict.fromkeys([*filter(None, node.input), *sorted(uses_of(node))])
    given = {n: values[n] for n in reads if n not in held and n in values}
    if any(n not in held and n not in given for n in reads):
        return None
    results = {n: values[n] for n in node.output if n and n in values}
    graph = helper.make_graph(
        [node],
        "one_layer",
        [_info(n, v) for n, v in given.items()],
        [_info(n, v) for n, v in results.items()],
        [held[n] for n in reads if n in held],
    )
    made = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    made.ir_version = model.ir_version
    data: bytes = made.SerializeToString()
    return data


def _node(model: ModelProto, outputs: Sequence[str]) -> NodeProto | None:
    """Returns the node of the main graph that has these outputs."""
    wanted = tuple(outputs)
    return next((n for n in model.graph.node if wanted and tuple(n.output) == wanted), None)


def _info(name: str, value: Any) -> ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return helper.make_tensor_value_info(name, dtype, np.shape(value))
