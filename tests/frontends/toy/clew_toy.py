"""A format of model files in one file, as a package would add it: networks as JSON.

```
{
    "toy": 1,
    "inputs": {"x": ["n", 4]},
    "parameters": {"w": [[1, 0, 0, 2]]},
    "outputs": ["y"],
    "layers": [
        {"name": "first", "op": "dense", "in": ["x", "w"], "out": "h"},
        {"name": "last", "op": "clamp", "in": ["h"], "out": "y", "max": 3},
    ],
}
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clew.frontends.builder import Fault, GraphBuilder, coded
from clew.frontends.building import call
from clew.frontends.cutting import CutLayer, Cutter
from clew.frontends.format import FileRun, Format
from clew.frontends.layer import Layer
from clew.frontends.listing import Body, Line, Listing, Value
from clew.frontends.registry import Converters
from clew.ir.dims import SymDim
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.support.errors import ClewError, ModelError, UnsupportedError, locate
from clew.support.files import read_json_file
from clew.support.recognize import Head
from clew.support.writing import write_text
from clew.trace.span import Source

CONVERTERS: Converters[str, Callable[[Layer], Expr]] = Converters()


@CONVERTERS.register("dense")
def dense(layer: Layer) -> Expr:
    """A product with a matrix `[out, in]`."""
    return call("nn.dense", layer.input(0), layer.input(1), weight_layout="NK")


@CONVERTERS.register("add")
def add(layer: Layer) -> Expr:
    """A sum."""
    return call("add", *layer.present())


@CONVERTERS.register("clamp")
def clamp(layer: Layer) -> Expr:
    """Values between 0 and `max`."""
    return call("clip", layer.input(0), min=0.0, max=layer.real("max"))


@CONVERTERS.register("pass")
def pass_on(layer: Layer) -> Expr:
    """The operand itself."""
    return layer.input(0)


def _unforeseen(op: str, error: Exception) -> ClewError:
    return ModelError("M031", f"{op} makes no sense: {error}", hint="the file is damaged")


FAULTS = (Fault((ArithmeticError, ValueError, LookupError, TypeError), _unforeseen),)


def built(
    file: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    outputs: Sequence[str] = (),
) -> Module:
    """Returns the module of a file, for other shapes of its inputs, or with other outputs."""
    builder = GraphBuilder("toy")
    values: dict[str, Expr] = {}
    for name, given in file["parameters"].items():
        values[name] = builder.constant(name, partial(np.array, given, np.float32))
    for name, shape in {**file["inputs"], **(shapes or {})}.items():
        sizes = tuple(SymDim.symbol(s) if isinstance(s, str) else int(s) for s in shape)
        values[name] = builder.input(name, TensorType(sizes, "f32"))
    for entry in file["layers"]:
        with locate(layer=entry["name"]):
            values[entry["out"]] = _imported(entry, values, builder)
    names = list(outputs or file["outputs"])
    return builder.module([values[n] for n in names], names, {})


def _imported(entry: Mapping[str, Any], values: Mapping[str, Expr], builder: GraphBuilder) -> Expr:
    name, op, out = entry["name"], entry["op"], entry["out"]
    convert = CONVERTERS.find(op)
    if convert is None:
        raise UnsupportedError("U001", f"{op} is not supported")
    builder.start_layer()
    source = Source(name, op, builder.frontend)
    with builder.layer(source) as results:
        with coded(op, FAULTS):
            inputs = [values[n] for n in entry["in"]]
            found = convert(Layer(name, op, inputs, [out], entry, builder))
        value = results.bind(0, found, out)
    builder.account(source, [value])
    return value


class ToyCutter(Cutter):
    """A file to cut."""

    def __init__(self, file: Mapping[str, Any], shapes: Mapping[str, Sequence[int | str]]) -> None:
        self._file, self._shapes = file, shapes
        layers = [CutLayer(e["name"], tuple(e["in"]), (e["out"],)) for e in file["layers"]]
        super().__init__(built(file, shapes), layers, file["parameters"], file["outputs"])

    def giving(self, names: Sequence[str]) -> Module:
        """Returns the module with these values as outputs."""
        return built(self._file, self._shapes, names)

    def write(
        self,
        path: Path,
        numbers: Collection[int],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        notes: Mapping[str, str] | None = None,
    ) -> list[Path]:
        """Writes layers as a file of their own."""
        own = sorted(self.with_fixed(numbers))
        used = self.used_by(own)
        part = {
            "toy": 1,
            "inputs": {name: list(array.shape) for name, array in inputs.items()},
            "parameters": {n: v for n, v in self._file["parameters"].items() if n in used},
            "outputs": list(outputs),
            "layers": [self._file["layers"][n] for n in own],
        }
        write_text(path, json.dumps(part))
        return [path]


class ToyRun(FileRun):
    """A run by NumPy, the reference engine of the format."""

    def __init__(self, file: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        values = {n: np.array(v, np.float32) for n, v in file["parameters"].items()}
        values.update(inputs)
        self._values: dict[tuple[str, int], Any] = {}
        for entry in file["layers"]:
            x, *rest = (values[n] for n in entry["in"])
            match entry["op"]:
                case "dense":
                    found = x @ rest[0].T
                case "add":
                    found = x + rest[0]
                case "clamp":
                    found = np.clip(x, 0, entry["max"])
                case _:
                    found = x
            values[entry["out"]] = self._values[entry["name"], 0] = found
        super().__init__({name: values[name] for name in file["outputs"]})

    def layers(self) -> Mapping[tuple[str, int], Any]:
        """Returns the values of layers."""
        return self._values


class Toy(Format):
    """Networks as JSON."""

    name = "toy"
    title = "toy"
    what = "a toy network"
    suffix = ".toy"
    engine = engine_title = "toy-numpy"
    may_seem = ("json",)

    def recognizes(self, head: Head) -> bool:
        """Whether it begins with the format's version."""
        return head.start.lstrip().startswith(b'{"toy"')

    def load(self, source: Any, **options: Any) -> Module:
        """Returns the module."""
        return built(read_json_file(source), options.get("inputs"))

    def listing(self, path: Any, layers: Mapping[str, str] | None = None) -> Listing:
        """Returns the layers."""
        file = read_json_file(path)
        held = {n: str(list(np.shape(v))) for n, v in file["parameters"].items()}
        lines = [
            Line(
                e["name"], e["op"], tuple(e["in"]), (e["out"],),
                tuple((k, str(v)) for k, v in e.items() if k not in ("name", "op", "in", "out")),
                {n: held[n] for n in e["in"] if n in held},
            )
            for e in file["layers"]
        ]  # fmt: skip
        inputs = [Value(n, f"f32{s}") for n, s in file["inputs"].items()]
        outputs = [Value(n) for n in file["outputs"]]
        return Listing("toy, version 1", Body("", inputs, outputs, [], lines))

    def cutter(self, path: Any, shapes: Mapping[str, Sequence[int | str]]) -> Cutter:
        """Returns a file to cut."""
        return ToyCutter(read_json_file(path), shapes)

    def run(self, path: Path, inputs: Mapping[str, Any], /, **options: Any) -> FileRun:
        """Returns a run in NumPy."""
        return ToyRun(read_json_file(path), inputs)


TOY = Toy()
