"""Lists a file's operators with their options and subgraphs, without reading constants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from clew.frontends.limits import over
from clew.frontends.listing import Body, Line, Listing, Value
from clew.frontends.names import UniqueNames
from clew.frontends.tflite.file.model import File, GraphInfo, OperatorInfo, TensorInfo, read
from clew.frontends.tflite.file.names import wanted_name
from clew.frontends.tflite.layer import ACTIVATIONS
from clew.frontends.tflite.subgraphs import run_by
from clew.support.budgets import Budgets, current
from clew.support.files import read_bytes

_MOST_SHOWN: Final = 16
_PADDINGS: Final = ("same", "valid")


def list_model(path: str | os.PathLike[str], layers: Mapping[str, str] | None = None) -> Listing:
    """Returns the operators of the main graph and of the graphs of other signatures, with those of
    the subgraphs that they run. `layers` has the operator types of imported layers.

    Errors: those of reading a model (M..., U004); M009 for too many layers.
    """
    file, budgets = read(read_bytes(os.fspath(path)), current()), current()
    signatures = {each.graph: each.name for each in file.signatures if each.graph != 0}
    about = f"TFLite version 3, subgraphs: {len(file.graphs)}"
    lister = _Lister(file, layers, budgets)
    main = lister.entry("", 0)
    others = [
        lister.entry(name, number)
        for number, name in signatures.items()
        if number < len(file.graphs)
    ]
    return Listing(about, main, others)


@dataclass
class _Lister:
    """Lists graphs. `count` is the number of layers so far."""

    file: File
    layers: Mapping[str, str] | None
    budgets: Budgets
    count: int = 0
    names: UniqueNames = field(default_factory=UniqueNames)

    def entry(self, title: str, number: int) -> Body:
        """Returns the graph of a signature. Each import names its layers anew."""
        self.names = UniqueNames()
        return self._body(title, number, "", ())

    def _body(self, title: str, number: int, layer: str, around: tuple[int, ...]) -> Body:
        graph = self.file.graphs[number]
        lines = []
        for place, operator in enumerate(graph.operators):
            self.count += 1
            if self.count > self.budgets.nodes:
                raise over("M009", "layers", self.count, "nodes", self.budgets.nodes)
            wanted = wanted_name(graph, operator, place)
            name = self.names.claim(f"{layer}/{wanted}" if layer else wanted)
            line = _line(graph, operator, name)
            inside = (*around, number)
            for what, inner in run_by(operator):
                known = 0 <= inner < len(self.file.graphs) and inner not in inside
                if known and len(inside) <= self.budgets.nesting:
                    line.bodies.append(self._body(what, inner, name, inside))
            lines.append(line)
        imported = (
            self.layers is None or not lines or any(line.name in self.layers for line in lines)
        )
        return Body(
            title,
            [_value(graph.tensors[index]) for index in graph.inputs],
            [_value(graph.tensors[index]) for index in graph.outputs],
            [_value(tensor) for tensor in graph.tensors if tensor.data is not None],
            lines,
            imported or not layer,
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
