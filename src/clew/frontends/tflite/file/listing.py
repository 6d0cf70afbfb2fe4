"""Lists a file's operators in order, with their options, without reading constants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.listing import Body, Line, Listing, Value
from clew.frontends.names import UniqueNames
from clew.frontends.tflite.file.model import GraphInfo, OperatorInfo, TensorInfo, read
from clew.frontends.tflite.file.names import wanted_name
from clew.frontends.tflite.layer import ACTIVATIONS
from clew.support.budgets import current
from clew.support.files import read_bytes

_MOST_SHOWN: Final = 16
_PADDINGS: Final = ("same", "valid")


def list_model(path: str | os.PathLike[str]) -> Listing:
    """Returns the operators of the main graph.

    Errors: those of reading a model (M..., U004).
    """
    file = read(read_bytes(os.fspath(path)), current())
    graph = file.graphs[0]
    names = UniqueNames()
    lines = [
        _line(graph, operator, names.claim(wanted_name(graph, operator, number)))
        for number, operator in enumerate(graph.operators)
    ]
    return Listing(
        f"TFLite version 3, subgraphs: {len(file.graphs)}",
        Body(
            "",
            [_value(graph.tensors[index]) for index in graph.inputs],
            [_value(graph.tensors[index]) for index in graph.outputs],
            [_value(tensor) for tensor in graph.tensors if tensor.data is not None],
            lines,
        ),
    )


def _line(graph: GraphInfo, operator: OperatorInfo, name: str) -> Line:
    held = [graph.tensors[index] for index in operator.inputs if index >= 0]
    return Line(
        name,
        operator.op,
        _names(graph, operator.inputs),
        _names(graph, operator.outputs),
        tuple((key, _option(key, value)) for key, value in operator.options.items()),
        {tensor.name: _type(tensor) for tensor in held if tensor.data is not None},
    )


def _names(graph: GraphInfo, indices: Sequence[int]) -> tuple[str, ...]:
    return tuple(graph.tensors[index].name if index >= 0 else "" for index in indices)


def _value(tensor: TensorInfo) -> Value:
    return Value(tensor.name, _type(tensor))


def _type(tensor: TensorInfo) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape)
    return f"{tensor.dtype}[{sizes}]"


def _option(key: str, value: Any) -> str:
    """Returns an option's value as text, shortened if long."""
    if key == "activation" and 0 <= value < len(ACTIVATIONS):
        return str(ACTIVATIONS[value][0])
    if key == "padding" and isinstance(value, int) and 0 <= value < len(_PADDINGS):
        return _PADDINGS[value]
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, np.ndarray):
        more = f", ... {value.size} in all" if value.size > _MOST_SHOWN else ""
        return f"[{', '.join(map(str, value[:_MOST_SHOWN].tolist()))}{more}]"
    return str(value)
