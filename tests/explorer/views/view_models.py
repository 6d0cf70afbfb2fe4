"""Small ONNX models, put together in a line or two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

import clew
from clew.explorer.session import Session

F32 = TensorProto.FLOAT


def value(name: str, shape: Sequence[int | str], dtype: int = F32) -> onnx.ValueInfoProto:
    """Returns an input or output."""
    return helper.make_tensor_value_info(name, dtype, list(shape))


def weight(name: str, *shape: int) -> TensorProto:
    """Returns a parameter with the same elements each time."""
    size = int(np.prod(shape)) if shape else 1
    return numpy_helper.from_array(np.linspace(-1, 1, size, dtype=np.float32).reshape(shape), name)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """Returns a model."""
    graph = helper.make_graph(nodes, "model", inputs, outputs, list(weights))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def session_of(made: onnx.ModelProto | Path, folder: Path, **options: object) -> Session:
    """Returns a session of a model, which is written to a folder."""
    path = made if isinstance(made, Path) else folder / "model.onnx"
    if isinstance(made, onnx.ModelProto):
        onnx.save(made, path)
    compiled = clew.compile(path, **options)  # type: ignore[arg-type]
    return Session(compiled, model=path.name, path=path)


def conv_block() -> onnx.ModelProto:
    """Returns `conv`, `bn`, `relu`, in groups by their names, and `size`, which goes at import."""
    node = helper.make_node
    return model(
        [
            node("Conv", ["x", "w"], ["c"], name="stem/conv", pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="stem/bn"),
            node("Relu", ["n"], ["r"], name="stem/relu"),
            node("Shape", ["r"], ["size"], name="head/size"),
            node("Reshape", ["r", "size"], ["y"], name="head/shape"),
        ],
        [value("x", [1, 3, 8, 8])],
        [value("y", [1, 16, 8, 8])],
        [weight("w", 16, 3, 3, 3), weight("s", 16), weight("b", 16), weight("m", 16),
         numpy_helper.from_array(np.ones(16, np.float32), "v")],
    )  # fmt: skip


def control_model() -> onnx.ModelProto:
    """Returns `branch` (If), `known` (If of a constant), `repeat` (Loop) and `call` (function)."""
    node = helper.make_node
    of_four = [4, 8]
    then = helper.make_graph(
        [node("Relu", ["h"], ["a"], name="then/relu"), node("Exp", ["a"], ["b"])],
        "then", [], [value("b", of_four)],
    )  # fmt: skip
    other = helper.make_graph(
        [node("Tanh", ["h"], ["t"], name="else/tanh")], "else", [], [value("t", of_four)]
    )
    taken = helper.make_graph(
        [node("Neg", ["chosen"], ["n"], name="neg")], "taken", [], [value("n", of_four)]
    )
    left = helper.make_graph(
        [node("Abs", ["chosen"], ["m"], name="abs")], "left", [], [value("m", of_four)]
    )
    body = helper.make_graph(
        [
            node("MatMul", ["state", "w"], ["moved"], name="body/matmul"),
            node("Sigmoid", ["moved"], ["next"], name="body/sigmoid"),
            node("Identity", ["go"], ["go_on"], name="body/go"),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL),
         value("state", of_four)],
        [value("go_on", [], TensorProto.BOOL), value("next", of_four)],
    )  # fmt: skip
    twice = helper.make_function(
        "own", "twice", ["v"], ["two"],
        [node("Add", ["v", "v"], ["two"], name="sum")], [helper.make_opsetid("", 20)],
    )  # fmt: skip
    return model(
        [
            node("MatMul", ["x", "w"], ["h"], name="block/project"),
            node("Shape", ["h"], ["size"], name="block/size"),
            node("ReduceMean", ["h"], ["mean"], name="block/mean", keepdims=0),
            node("Greater", ["mean", "zero"], ["positive"], name="block/positive"),
            # The file has the branches in the other order than the import takes them.
            node("If", ["positive"], ["chosen"], name="branch", else_branch=other,
                 then_branch=then),
            node("If", ["yes"], ["kept"], name="known", then_branch=taken, else_branch=left),
            node("Loop", ["three", "", "kept"], ["last"], name="repeat", body=body),
            node("twice", ["last"], ["doubled"], name="call", domain="own"),
            node("Reshape", ["doubled", "size"], ["y"], name="shape"),
        ],
        [value("x", of_four)],
        [value("y", of_four)],
        [
            weight("w", 8, 8),
            numpy_helper.from_array(np.float32(0), "zero"),
            numpy_helper.from_array(np.array(True), "yes"),
            numpy_helper.from_array(np.int64(3), "three"),
        ],
        [twice],
    )  # fmt: skip
