"""Writes TFLite files for tests and benchmarks, in the notation of the reader's schema.

from tflite_files import Graph

graph = Graph()
x = graph.input("x", (1, 4), "f32")
y = graph.operator("RESHAPE", [x, graph.constant(np.int32([2, 2]))], [("y", (2, 2), "f32")])
Path("model.tflite").write_bytes(graph.file(y))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import flatbuffers
import numpy as np
from numpy.typing import NDArray

from clew.frontends.tflite.file import options, schema
from clew.frontends.tflite.file.flatbuffer import Schema
from clew.ir.types import from_numpy

_SCHEMA: Final = Schema({**schema.RECORDS, **options.RECORDS}, {**schema.UNIONS, **options.UNIONS})
_WRITERS: Final = {
    "bool": "Bool", "i8": "Int8", "u8": "Uint8", "i16": "Int16", "u16": "Uint16", "i32": "Int32",
    "u32": "Uint32", "i64": "Int64", "u64": "Uint64", "f32": "Float32",
}  # fmt: skip
_DTYPES: Final = {
    "bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16,
    "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "f32": np.float32,
}  # fmt: skip


def written(record: str, values: Mapping[str, Any]) -> bytes:
    """Returns a FlatBuffer with a record. A union is a pair of its record's name and its values."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(_record(builder, record, values), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _record(builder: Any, record: str, values: Mapping[str, Any]) -> int:
    fields = _SCHEMA.fields(record)
    unknown = set(values) - {field.name for field in fields}
    assert not unknown, f"{record} has no {unknown}"
    made: list[tuple[Any, Any]] = []
    for field in fields:
        if field.name not in values:
            continue
        given = values[field.name]
        if field.form == "<":
            name, inner = given
            kind = _SCHEMA.unions[field.type].index(name)
            before = next(f for f in fields if f.name == f"{field.name}_type")
            made += [(before, kind), (field, _record(builder, name, inner))]
        elif field.form == "[":
            made.append((field, _vector(builder, field.type, given)))
        elif field.type == "str":
            made.append((field, builder.CreateString(given)))
        elif field.type in _WRITERS:
            made.append((field, given))
        else:
            made.append((field, _record(builder, field.type, given)))
    builder.StartObject(max((field.slot for field in fields), default=-1) + 1)
    for field, value in made:
        if field.form == "" and field.type in _WRITERS:
            getattr(builder, f"Prepend{_WRITERS[field.type]}Slot")(field.slot, value, None)
        else:
            builder.PrependUOffsetTRelativeSlot(field.slot, value, 0)
    return int(builder.EndObject())


def _vector(builder: Any, kind: str, given: Any) -> int:
    if kind in _WRITERS:
        return int(builder.CreateNumpyVector(np.ascontiguousarray(given, _DTYPES[kind])))
    places = [
        builder.CreateString(each) if kind == "str" else _record(builder, kind, each)
        for each in given
    ]
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())


class Graph:
    """A graph that is built operator by operator. Tensors are numbers. Other graphs of the same
    file are made by `graph`.
    """

    def __init__(self, main: Graph | None = None) -> None:
        self._graphs: list[Graph] = [] if main is None else main._graphs
        self._graphs.append(self)
        self.number: Final = len(self._graphs) - 1
        self._tensors: list[dict[str, Any]] = []
        self._buffers: list[dict[str, Any]] = [{}] if main is None else main._buffers
        self._codes: list[dict[str, Any]] = [] if main is None else main._codes
        self.outputs: Sequence[int] = ()
        self._operators: list[dict[str, Any]] = []
        self._inputs: list[int] = []

    def graph(self) -> Graph:
        """Returns a new graph of the same file; its `outputs` are to be set."""
        return Graph(self)

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        *,
        scale: Sequence[float] = (),
        zero: Sequence[int] = (),
        axis: int = 0,
        **more: Any,
    ) -> int:
        """Returns a new tensor. A size of -1 is free."""
        made: dict[str, Any] = {
            "name": name,
            "shape": [1 if size < 0 else size for size in shape],
            "type": schema.DTYPES.index(dtype),
            **more,
        }
        if any(size < 0 for size in shape):
            made["shape_signature"] = list(shape)
        if len(scale):
            made["quantization"] = {
                "scale": scale,
                "zero_point": zero if len(zero) else [0] * len(scale),
                "quantized_dimension": axis,
            }
        self._tensors.append(made)
        return len(self._tensors) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str, **more: Any) -> int:
        """Returns a new input."""
        self._inputs.append(self.tensor(name, shape, dtype, **more))
        return self._inputs[-1]

    def constant(self, value: NDArray[Any], name: str = "", **more: Any) -> int:
        """Returns a constant."""
        self._buffers.append({"data": np.frombuffer(value.tobytes(), np.uint8)})
        return self.tensor(
            name or f"constant_{len(self._tensors)}",
            value.shape,
            from_numpy(value.dtype),
            buffer=len(self._buffers) - 1,
            **more,
        )

    def same_buffer(self, tensor: int, other: int) -> None:
        """Gives a tensor the bytes of another one."""
        self._tensors[tensor]["buffer"] = self._tensors[other]["buffer"]

    def scales(self, tensor: int) -> NDArray[Any]:
        """Returns the scales of a tensor."""
        return np.asarray(self._tensors[tensor]["quantization"]["scale"])

    def operator(
        self,
        op: str,
        inputs: Sequence[int],
        results: Sequence[tuple[Any, ...] | int],
        given: tuple[str, Mapping[str, Any]] | None = None,
        version: int = 1,
        intermediates: Sequence[int] = (),
        *,
        custom: bytes | None = None,
        **quantization: Any,
    ) -> list[int]:
        """Returns the results of an operator: tensors, or names with shapes and dtypes, and perhaps
        with more about the tensor. An operator that is not builtin is a custom one, with options of
        its own.
        """
        outputs = [
            each
            if isinstance(each, int)
            else self.tensor(*each[:3], **{**quantization, **(each[3] if each[3:] else {})})
            for each in results
        ]
        builtin = op if op in options.OPERATORS else "CUSTOM"
        number = options.OPERATORS.index(builtin)
        code: dict[str, Any] = {
            "deprecated_builtin_code": min(number, 127), "builtin_code": number, "version": version,
        }  # fmt: skip
        if builtin != op:
            code["custom_code"] = op
        if code not in self._codes:
            self._codes.append(code)
        made: dict[str, Any] = {
            "opcode_index": self._codes.index(code), "inputs": inputs, "outputs": outputs,
        }  # fmt: skip
        if intermediates:
            made["intermediates"] = intermediates
        if custom is not None:
            made["custom_options"] = np.frombuffer(custom, np.uint8)
        if given is not None:
            second = given[0] not in options.UNIONS["BuiltinOptions"]
            made["builtin_options2" if second else "builtin_options"] = given
        self._operators.append(made)
        return outputs

    def file(self, outputs: Sequence[int], **more: Any) -> bytes:
        """Returns the file."""
        self.outputs = outputs
        graphs = [
            {
                "tensors": graph._tensors, "inputs": graph._inputs, "outputs": graph.outputs,
                "operators": graph._operators,
            }
            for graph in self._graphs
        ]  # fmt: skip
        model = {
            "version": 3, "operator_codes": self._codes, "subgraphs": graphs,
            "buffers": self._buffers, **more,
        }  # fmt: skip
        return written("Model", model)
