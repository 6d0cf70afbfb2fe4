"""Small models with loops, for tests: of known length, in each other, ended by a value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES = 16


def scan(path: Path, iterations: int = 40) -> Path:
    """Writes a scan named `walk` over `iterations` rows. Its body has the layers `mix`, `squash`,
    and `keep`; after it stands `total`. Iteration n of `keep` adds row n of the input.
    """
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "weight"], ["mixed"], name="mix"),
            helper.make_node("Tanh", ["mixed"], ["squashed"], name="squash"),
            helper.make_node("Add", ["squashed", "row"], ["next"], name="keep"),
            helper.make_node("Identity", ["next"], ["seen"], name="see"),
        ],
        "body",
        [_value("state", [1, FEATURES]), _value("row", [1, FEATURES])],
        [_value("next", [1, FEATURES]), _value("seen", [1, FEATURES])],
    )
    nodes = [
        helper.make_node(
            "Scan", ["start", "rows"], ["last", "all"], name="walk", body=body, num_scan_inputs=1
        ),
        helper.make_node("ReduceSum", ["all"], ["y"], name="total", keepdims=0),
    ]
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((FEATURES, FEATURES)).astype(np.float32) / 4
    graph = helper.make_graph(
        nodes,
        "scan",
        [_value("start", [1, FEATURES]), _value("rows", [iterations, 1, FEATURES])],
        [_value("last", [1, FEATURES]), _value("y", [])],
        [numpy_helper.from_array(weight, "weight")],
    )
    return _save(graph, path)


def nested(path: Path, outer: int = 3, inner: int = 40) -> Path:
    """Writes a loop named `outer` around one named `inner`, whose body has the layer `deep`."""
    flags = [helper.make_tensor_value_info(n, TensorProto.INT64, []) for n in ("i", "j")]
    going = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("a", "b", "c", "d")]
    low = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "weight"], ["t"], name="deep_mix"),
            helper.make_node("Tanh", ["t"], ["u"], name="deep"),
            helper.make_node("Identity", ["c"], ["d"], name="on"),
        ],
        "low",
        [flags[1], going[2], _value("s", [4, FEATURES])],
        [going[3], _value("u", [4, FEATURES])],
    )
    high = helper.make_graph(
        [
            helper.make_node("Loop", ["inner_trips", "", "v"], ["w"], name="inner", body=low),
            helper.make_node("Identity", ["a"], ["b"], name="go_on"),
        ],
        "high",
        [flags[0], going[0], _value("v", [4, FEATURES])],
        [going[1], _value("w", [4, FEATURES])],
    )
    draw = np.random.default_rng(1)
    weight = draw.standard_normal((FEATURES, FEATURES)).astype(np.float32) / 4
    graph = helper.make_graph(
        [helper.make_node("Loop", ["outer_trips", "", "x"], ["y"], name="outer", body=high)],
        "nested",
        [_value("x", [4, FEATURES])],
        [_value("y", [4, FEATURES])],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.array(outer, np.int64), "outer_trips"),
            numpy_helper.from_array(np.array(inner, np.int64), "inner_trips"),
        ],
    )
    return _save(graph, path)


def ended(path: Path) -> Path:
    """Writes a loop named `grow` that runs until a value is large: only a run determines the trip
    count. Its body has the layer `double`; from ones it runs 7 times.
    """
    counters = [helper.make_tensor_value_info("i", TensorProto.INT64, [])]
    going = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("a", "b")]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "s"], ["t"], name="double"),
            helper.make_node("ReduceMax", ["t"], ["most"], name="most", keepdims=0),
            helper.make_node("Less", ["most", "limit"], ["b"], name="small"),
        ],
        "body",
        [*counters, going[0], _value("s", [4, FEATURES])],
        [going[1], _value("t", [4, FEATURES])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "yes", "x"], ["y"], name="grow", body=body)],
        "ended",
        [_value("x", [4, FEATURES])],
        [_value("y", [4, FEATURES])],
        [
            numpy_helper.from_array(np.array(100, np.float32), "limit"),
            numpy_helper.from_array(np.array(True), "yes"),
        ],
    )
    return _save(graph, path)


def branched(path: Path, iterations: int = 40) -> Path:
    """Writes a loop named `turning` whose body takes the branch of `rare` or of `often` after the
    layer `always`, and beside the loop a branch with the layer `aside`.
    """
    state = [4, FEATURES]

    def branch(name: str, op: str, value: str) -> onnx.GraphProto:
        node = helper.make_node(op, [value], [f"{name}_out"], name=name)
        return helper.make_graph([node], name, [], [_value(f"{name}_out", state)])

    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["s"], ["t"], name="always"),
            helper.make_node("ReduceSum", ["t"], ["sum"], name="sum", keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["up"], name="up"),
            helper.make_node(
                "If", ["up"], ["u"], name="either",
                then_branch=branch("rare", "Neg", "t"), else_branch=branch("often", "Exp", "t"),
            ),
            helper.make_node("Identity", ["a"], ["b"], name="on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("a", TensorProto.BOOL, []),
            _value("s", state),
        ],
        [helper.make_tensor_value_info("b", TensorProto.BOOL, []), _value("u", state)],
    )  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("ReduceSum", ["x"], ["whole"], name="before", keepdims=0),
            helper.make_node("Greater", ["whole", "zero"], ["positive"], name="positive"),
            helper.make_node(
                "If", ["positive"], ["v"], name="beside",
                then_branch=branch("aside", "Neg", "x"), else_branch=branch("other", "Exp", "x"),
            ),
            helper.make_node("Loop", ["trips", "", "v"], ["y"], name="turning", body=body),
        ],
        "branched",
        [_value("x", state)],
        [_value("y", state)],
        [
            numpy_helper.from_array(np.array(0, np.float32), "zero"),
            numpy_helper.from_array(np.array(iterations, np.int64), "trips"),
        ],
    )  # fmt: skip
    return _save(graph, path)


def recurrent(path: Path, iterations: int = 40) -> Path:
    """Writes a layer `lstm` over `iterations` steps."""
    draw = np.random.default_rng(2)
    shapes = {"w": (1, 4 * FEATURES, FEATURES), "r": (1, 4 * FEATURES, FEATURES)}
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=FEATURES)],
        "recurrent",
        [_value("x", [iterations, 1, FEATURES])],
        [_value("y", [iterations, 1, 1, FEATURES])],
        [
            numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32) / 4, name)
            for name, shape in shapes.items()
        ],
    )
    return _save(graph, path)


def _value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _save(graph: onnx.GraphProto, path: Path) -> Path:
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path
