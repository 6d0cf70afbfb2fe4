"""Hostile cases, and their building blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import clew

Attack: TypeAlias = "Callable[[Path], Any]"
T = TypeVar("T", contravariant=True)


class Part(Protocol[T]):
    """An attack with something given."""

    def __call__(self, folder: Path, given: T) -> Any:
        """Attacks."""
        ...


Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Case:
    """An attack, and how it has to end: `expected` are codes of errors, `ok` for a result. `slow`
    ones take seconds, and are left out of the tests.
    """

    name: str
    attack: Attack
    expected: tuple[str, ...]
    slow: bool = False


ALL: Final[list[Case]] = []


def case(*expected: str, name: str = "", slow: bool = False) -> Callable[[Attack], Attack]:
    """Puts a function of an empty folder into the catalog."""

    def register(attack: Attack) -> Attack:
        ALL.append(Case(name or attack.__name__, attack, expected, slow))
        return attack

    return register


def each(prefix: str, table: Mapping[Any, T], *expected: str) -> Callable[[Part[T]], Part[T]]:
    """Makes a case of each entry of a table, of a function of a folder and the entry's value."""

    def register(attack: Part[T]) -> Part[T]:
        for key, given in table.items():
            case(*expected, name=f"{prefix}_{key}")(partial(attack, given=given))
        return attack

    return register


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    """Returns a node."""
    made: NodeProto = helper.make_node(op, inputs, outputs, **attributes)
    return made


def value(name: str, shape: Sequence[int | str] | None, dtype: int = TensorProto.FLOAT) -> Any:
    """Returns the declaration of an input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def ints(name: str, values: Any) -> TensorProto:
    """Returns an initializer of whole numbers."""
    made: TensorProto = numpy_helper.from_array(np.array(values, np.int64), name)
    return made


def model(
    nodes: Sequence[NodeProto],
    initializers: Sequence[TensorProto] = (),
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    opset: int = 21,
    functions: Sequence[Any] = (),
) -> ModelProto:
    """Returns a model with input `x` of f32[2, 3] and output `y`, by default."""
    taken = [value("x", [2, 3])] if inputs is None else list(inputs)
    given = [value("y", None)] if outputs is None else list(outputs)
    graph = helper.make_graph(list(nodes), "g", taken, given, list(initializers))
    imports = [helper.make_opsetid("", opset)]
    if functions:
        imports.append(helper.make_opsetid("own", 1))
    made: ModelProto = helper.make_model(
        graph, opset_imports=imports, functions=list(functions), ir_version=10
    )
    return made


def compiled(what: Any, **options: Any) -> Any:
    """Returns a model compiled as by users, but for one thread and without the cache."""
    module = clew.load(what) if isinstance(what, Path) else load(what)
    return clew.compile(module, threads=1, cache=False, **options)


def load(what: Any, **options: Any) -> Any:
    """Returns the graph of a message or bytes."""
    from clew.frontends import onnx as frontend  # noqa: PLC0415  (1 s, and some cases need none)

    return frontend.load(what, **options)


def run(what: Any, *arrays: Any, **options: Any) -> Any:
    """Returns a model's results."""
    return compiled(what, **options)(*arrays)


def field(number: int, data: bytes) -> bytes:
    """Returns a length-delimited field of a protobuf message."""
    size, length = b"", len(data)
    while length >= 128:
        size, length = size + bytes([length % 128 | 128]), length // 128
    tag, rest = number << 3 | 2, b""
    if tag >= 128:
        tag, rest = tag % 128 | 128, bytes([tag // 128])
    return bytes([tag]) + rest + size + bytes([length]) + data


def message(graph: bytes) -> bytes:
    """Returns the bytes of a model with a graph, IR 10 and operator set 21."""
    return b"\x08\x0a" + field(8, b"\x10\x15") + field(7, graph)


def written(folder: Path, made: ModelProto | bytes, name: str = "model.onnx") -> Path:
    """Returns the path of a model's file."""
    path = folder / name
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


X: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
NEWEST: Final = onnx.defs.onnx_opset_version()
