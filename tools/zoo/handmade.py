"""Small graphs written out by hand: control flow, and chains of any length."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from zoo.entries import Entry, Input, normal, scalar

_OPSET = [helper.make_opsetid("", 20)]
_IR_VERSION = 10


def entries() -> Iterator[Entry]:
    """Yields the hand-written models."""
    groups = frozenset({"handmade", "control_flow", "quick"})
    sources = (Path(__file__),)
    features = Input("x", (4, 16), normal)
    yield Entry("if_branches", groups, _build_if, (features,), sources)
    trips = Input("trips", (), scalar(2, 6))
    yield Entry("loop_recurrence", groups, _build_loop, (trips, features), sources)


def chain(length: int, width: int = 64) -> onnx.ModelProto:
    """Returns a chain of `length` operators on f32[1, width], each with its own constants.

    Values stay bounded: the chain repeats tanh, add, multiply, subtract.
    """
    rng = np.random.default_rng(length)
    nodes, initializers = [], []
    previous = "x"
    for index in range(length):
        name = f"v{index}"
        operator = ("Tanh", "Add", "Mul", "Sub")[index % 4]
        operands = [previous]
        if operator != "Tanh":
            constant = rng.uniform(0.5, 1.5, (1, width)).astype(np.float32)
            initializers.append(numpy_helper.from_array(constant, f"c{index}"))
            operands.append(f"c{index}")
        nodes.append(helper.make_node(operator, operands, [name], name=f"layer{index}"))
        previous = name
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width])
    y = helper.make_tensor_value_info(previous, TensorProto.FLOAT, [1, width])
    return _model(helper.make_graph(nodes, "chain", [x], [y], initializers))


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=_OPSET, ir_version=_IR_VERSION)


def _scalar(value: float, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, np.float32), name)


def _save(graph: onnx.GraphProto, path: Path) -> None:
    model = _model(graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _build_if(path: Path) -> None:
    """Two branches that compute different things of the outer scope; the data decide which runs."""
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((16, 16)).astype(np.float32) / 4
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [4, 16])
    then = helper.make_graph(
        [
            helper.make_node("Add", ["hidden", "x"], ["sum"], name="then/add"),
            helper.make_node("Relu", ["sum"], ["result"], name="then/relu"),
        ],
        "then",
        [],
        [result],
    )
    otherwise = helper.make_graph(
        [
            helper.make_node("Tanh", ["hidden"], ["tanh"], name="else/tanh"),
            helper.make_node("Mul", ["tanh", "half"], ["result"], name="else/mul"),
        ],
        "else",
        [],
        [result],
        [_scalar(0.5, "half")],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["hidden"], name="project"),
        helper.make_node("ReduceMean", ["hidden"], ["mean"], name="mean", keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"], name="positive"),
        helper.make_node(
            "If", ["positive"], ["chosen"], name="branch", then_branch=then, else_branch=otherwise
        ),
        helper.make_node("Softmax", ["chosen"], ["y"], name="softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "if_branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])],
        [numpy_helper.from_array(weight, "weight"), _scalar(0, "zero")],
    )
    _save(graph, path)


def _build_loop(path: Path) -> None:
    """A recurrence `state = tanh(state · W + x)` with a scan output and two ways to stop."""
    rng = np.random.default_rng(8)
    weight = rng.standard_normal((16, 16)).astype(np.float32) / 4
    state = [4, 16]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "weight"], ["moved"], name="body/matmul"),
            helper.make_node("Add", ["moved", "x"], ["driven"], name="body/add"),
            helper.make_node("Tanh", ["driven"], ["next_state"], name="body/tanh"),
            helper.make_node("Sub", ["next_state", "state"], ["change"], name="body/sub"),
            helper.make_node("Abs", ["change"], ["size"], name="body/abs"),
            helper.make_node("ReduceMax", ["size"], ["largest"], name="body/max", keepdims=0),
            helper.make_node("Greater", ["largest", "tolerance"], ["moving"], name="body/moving"),
            helper.make_node("ReduceMean", ["next_state"], ["mean"], name="body/mean", keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("moving", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_state", TensorProto.FLOAT, state),
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, []),
        ],
    )
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["origin"], name="origin"),
        helper.make_node(
            "Loop", ["trips", "", "origin"], ["final", "means"], name="recurrence", body=body
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "loop_recurrence",
        [
            helper.make_tensor_value_info("trips", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("final", TensorProto.FLOAT, state),
            helper.make_tensor_value_info("means", TensorProto.FLOAT, ["steps"]),
        ],
        [
            numpy_helper.from_array(weight, "weight"),
            _scalar(1e-3, "tolerance"),
        ],
    )
    _save(graph, path)
