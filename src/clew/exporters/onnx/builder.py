"""Builds ONNX graphs node by node; dtypes are checked against the standard's schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, defs, helper, numpy_helper

from clew.frontends.onnx.file.tensors import number_of
from clew.ir.expr import Constant
from clew.ir.types import from_numpy, to_numpy
from clew.ops.rules import Refused
from clew.support.text_arrays import content

Array: TypeAlias = "NDArray[Any] | np.generic"

OPSET: Final = 24
"""The opset of written models: the newest that ONNX Runtime 1.32 and OpenVINO 2026.4 read."""


class GraphBuilder:
    """Collects constants and nodes. Values are names, and `dtypes` has their dtypes in clew's
    notation.

    A node's name is its label, with a number if another node has it. A node's only result has the
    node's name.
    """

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.dtypes: dict[str, str] = {}
        self._constants: dict[str, Callable[[], NDArray[Any]]] = {}
        self._bytes: dict[str, int] = {}
        self._of_nodes: dict[int, str] = {}
        self._derived: dict[tuple[str, str], str] = {}
        self._results: set[str] = set()
        self._taken: dict[str, int] = {}
        self._small: dict[tuple[Any, ...], str] = {}

    @staticmethod
    def number_of(dtype: str) -> int:
        """Returns ONNX's number of a dtype."""
        return number_of(dtype)

    def unique(self, name: str) -> str:
        """Returns a name that no value or node has."""
        name = name or "value"
        while True:
            count = self._taken.get(name, 0) + 1
            self._taken[name] = count
            if count == 1:
                return name
            name = f"{name} [{count}]"

    def value(self, name: str, dtype: str) -> str:
        """Adds a value that comes from outside the graph and returns its name."""
        name = self.unique(name)
        self.dtypes[name] = dtype
        return name

    def constant(self, array: NDArray[Any]) -> str:
        """Adds a constant and returns its name; equal short vectors of integers share one."""
        key = (from_numpy(array.dtype), array.shape, content(array)) if array.size <= 16 else None
        if key is not None and key in self._small:
            return self._small[key]
        dtype = from_numpy(array.dtype)
        name = self.lazy_constant("constant", dtype, array.nbytes, lambda: array)
        if key is not None:
            self._small[key] = name
        return name

    def constant_of(self, node: Constant) -> str:
        """Adds a constant of the graph, once, and returns its name."""
        found = self._of_nodes.get(node.id)
        if found is None:
            type_, name = node.tensor, node.name or "constant"
            found = self.lazy_constant(name, type_.dtype, type_.size_bytes, lambda: node.data)
            self._of_nodes[node.id] = found
        return found

    def lazy_constant(
        self, name: str, dtype: str, size_bytes: int, data: Callable[[], NDArray[Any]]
    ) -> str:
        """Adds a constant whose data are read when the model is written; returns its name."""
        name = self.value(name, dtype)
        self._constants[name] = data
        self._bytes[name] = size_bytes
        return name

    def derived(
        self,
        name: str,
        how: str,
        change: Callable[[NDArray[Any]], NDArray[Any]],
        dtype: str = "",
    ) -> str | None:
        """Returns the name of a constant that is computed from another one, in a dtype if one is
        given; None if the value is not a constant. `how` identifies the computation.
        """
        data = self._constants.get(name)
        if data is None:
            return None
        found = self._derived.get((name, how))
        if found is None:
            wanted = dtype or self.dtypes[name]
            numbers = to_numpy(wanted)
            size = self._bytes[name] // to_numpy(self.dtypes[name]).itemsize * numbers.itemsize
            found = self.lazy_constant(name, wanted, size, lambda: change(data()).astype(numbers))
            self._derived[name, how] = found
        return found

    def node(
        self,
        label: str,
        op: str,
        inputs: Sequence[str | None],
        outputs: int,
        dtype: str,
        attrs: Mapping[str, Any],
    ) -> tuple[str, ...]:
        """Adds a node and returns the names of its results.

        Errors: Refused if the standard does not define the operator for the dtypes.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        given = [None if name is None else self.dtypes[name] for name in inputs]
        results = result_dtypes(op, given, outputs, dtype)
        name = self.unique(label or op)
        names = (name,) if outputs == 1 else tuple(f"{name}:{n}" for n in range(outputs))
        names = names if outputs == 1 else tuple(map(self.unique, names))
        self.dtypes.update(zip(names, results, strict=True))
        self._results.update(names)
        made: dict[str, Any] = {
            k: int(v) if isinstance(v, bool) else v for k, v in attrs.items() if v is not None
        }
        self.nodes.append(
            helper.make_node(op, [name or "" for name in inputs], names, name=name, **made)
        )
        return names

    @contextmanager
    def subgraph(self) -> Iterator[None]:
        """Collects the nodes of a subgraph separately from those of the graph around it."""
        outer = self.nodes, self._results
        self.nodes, self._results = [], set()
        try:
            yield
        finally:
            self.nodes, self._results = outer

    def control(
        self,
        label: str,
        op: str,
        inputs: Sequence[str],
        dtypes: Sequence[str],
        graphs: Mapping[str, GraphProto],
    ) -> tuple[str, ...]:
        """Adds a node that runs subgraphs and returns the names of its results."""
        name = self.unique(label or op)
        names = tuple(self.unique(f"{name}:{n}") for n in range(len(dtypes)))
        self.dtypes.update(zip(names, dtypes, strict=True))
        self._results.update(names)
        self.nodes.append(helper.make_node(op, inputs, names, name=name, **graphs))
        return names

    @property
    def all_nodes(self) -> list[NodeProto]:
        """The nodes, with those of subgraphs."""
        return [each for node in self.nodes for each in _with_inner(node)]

    def prune(self, results: Sequence[str]) -> None:
        """Drops the nodes whose results nothing reads."""
        read = set(results)
        kept = []
        for node in reversed(self.nodes):
            if read.intersection(node.output):
                kept.append(node)
                read |= _read_by([node])
        self.nodes = kept[::-1]

    def is_result(self, name: str) -> bool:
        """Whether a value is the result of a node."""
        return name in self._results

    def identity(self, name: str, output: str) -> None:
        """Adds a node that passes a value on under another name, which `unique` returned."""
        self.nodes.append(helper.make_node("Identity", [name], [output], name=output))

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives values other names."""
        if not names:
            return
        for node in self.all_nodes:
            for values in (node.input, node.output):
                for n, value in enumerate(values):
                    if value in names:
                        values[n] = names[value]

    def initializers(self, results: Sequence[str]) -> list[TensorProto]:
        """Returns the constants that nodes or results of the graph read."""
        read = _read_by(self.nodes) | set(results)
        return [_tensor(name, data()) for name, data in self._constants.items() if name in read]

    def constant_bytes(self, results: Sequence[str]) -> int:
        """Returns the number of bytes of the constants that nodes or results of the graph read.
        Those computed from others count as many elements as the others have.
        """
        read = _read_by(self.nodes) | set(results)
        return sum(size for name, size in self._bytes.items() if name in read)


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
    """Yields a node and the nodes of its subgraphs."""
    yield node
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _with_inner(inner)


def _read_by(nodes: Sequence[NodeProto]) -> set[str]:
    """Returns the names of the values that nodes read, also in their subgraphs."""
    return {name for node in nodes for each in _with_inner(node) for name in each.input}


def _tensor(name: str, array: NDArray[Any]) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


# --- dtypes ---------------------------------------------------------------------------------------

_SCHEMA_NAMES: Final = {
    "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float", "f64": "double",
    "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
    "f8e4m3fn": "float8e4m3fn", "f8e4m3fnuz": "float8e4m3fnuz", "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz", "f8e8m0fnu": "float8e8m0", "f4e2m1fn": "float4e2m1",
}  # fmt: skip
_CLEW_NAMES: Final = {f"tensor({name})": dtype for dtype, name in _SCHEMA_NAMES.items()}


class _Schema:
    """The dtypes that the standard defines for an operator."""

    def __init__(self, op: str) -> None:
        schema = defs.get_schema(op, OPSET, "")
        allowed = {
            c.type_param_str: {_CLEW_NAMES[t] for t in c.allowed_type_strs if t in _CLEW_NAMES}
            for c in schema.type_constraints
        }
        self.allowed = allowed
        self.inputs = [i.type_str for i in schema.inputs]
        self.outputs = [o.type_str for o in schema.outputs]
        variadic = defs.OpSchema.FormalParameterOption.Variadic
        self.variadic = bool(schema.inputs) and schema.inputs[-1].option == variadic
        self.many = bool(schema.outputs) and schema.outputs[-1].option == variadic

    def input(self, n: int) -> str:
        """Returns the type of an input: a parameter, or a fixed type."""
        return self.inputs[min(n, len(self.inputs) - 1) if self.variadic else n]

    def output(self, n: int) -> str:
        """Returns the type of an output."""
        return self.outputs[min(n, len(self.outputs) - 1) if self.many else n]

    def dtypes(self, type_: str) -> set[str]:
        """Returns the dtypes that a type stands for."""
        found = self.allowed.get(type_)
        return {_CLEW_NAMES[type_]} if found is None else found


@cache
def _schema(op: str) -> _Schema:
    return _Schema(op)


def result_dtypes(op: str, inputs: Sequence[str | None], outputs: int, dtype: str) -> list[str]:
    """Returns the dtypes of a node's results. `dtype` is that of the first one, if the inputs do
    not determine it.

    Errors: Refused if the standard does not define the operator for the dtypes.
    """
    schema = _schema(op)
    bound: dict[str, str] = {}
    for n, given in enumerate(inputs):
        if given is None:
            continue
        type_ = schema.input(n)
        if given not in schema.dtypes(type_):
            raise Refused(f"ONNX defines {op} for no {given}")
        wanted = bound.setdefault(type_, given)
        assert wanted == given, f"{op} of {wanted} and {given}"
    found = []
    for n in range(outputs):
        type_ = schema.output(n)
        one = schema.dtypes(type_)
        if dtype and n == 0:
            if dtype not in one:
                raise Refused(f"ONNX defines {op} with no result of {dtype}")
            found.append(dtype)
        elif type_ in bound:
            found.append(bound[type_])
        else:
            assert len(one) == 1, f"{op} does not determine the dtype of result {n}"
            found.append(next(iter(one)))
    return found
