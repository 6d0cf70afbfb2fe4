"""The comparison: what counts as a difference, and that it sees a build for new values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from exports.comparing import Feed, Result, compare, difference, judge

INFINITE = float("inf")


def write(path: Path, nodes: list[onnx.NodeProto], k: bool = False) -> Path:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])]
    if k:
        inputs.append(helper.make_tensor_value_info("k", TensorProto.INT64, [1]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, "n"])]
    graph = helper.make_graph(nodes, "test", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def values(seed: int) -> Feed:
    return {"x": np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32)}


def test_a_model_that_agrees_is_built_once(tmp_path: Path) -> None:
    phases: list[str] = []
    path = write(tmp_path / "m.onnx", [helper.make_node("Softmax", ["x"], ["y"])])
    found = compare(path, values, values, phases.append)
    assert (found.status, found.error, found.deciding) == ("agrees", "", [])
    assert found.later >= 2
    assert found.built_later == 0
    assert found.difference < 1e-6
    assert found.ratio > 0
    assert found.shapes == [[4, 8]]
    assert phases[:4] == ["onnxruntime", "compile", "first call", "later calls"]
    assert phases[4:] == ["other sizes of onnxruntime", "other sizes"]


def test_each_build_for_new_values_counts(tmp_path: Path) -> None:
    nodes = [helper.make_node("CumSum", ["x", "k"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, k=True)

    def draw(seed: int) -> Feed:
        return {**values(seed), "k": np.array([seed % 4 - 2])}

    found = compare(path, draw)
    assert found.status == "agrees"
    assert found.deciding == ["k"]
    assert 0 < found.built_later <= found.later


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (np.float32([1, 2]), np.float32([1, 4]), 0.5),
        (np.float32([np.nan, 1]), np.float32([np.nan, 1]), 0.0),
        (np.float32([np.nan, 1]), np.float32([0, 1]), INFINITE),
        (np.float32([0, 1]), np.float32([np.inf, 1]), INFINITE),
        (np.float32([-np.inf]), np.float32([np.inf]), INFINITE),
        (np.float64([1]), np.float32([1]), INFINITE),
        (np.int64([1, 2]), np.int64([1, 2]), 0.0),
        (np.int64([1, 2]), np.int64([1, 3]), INFINITE),
        (np.float32([]), np.float32([]), 0.0),
        (np.float32([0, 0]), np.float32([0, 0]), 0.0),
    ],
)
def test_difference(ours: np.ndarray, theirs: np.ndarray, expected: float) -> None:
    assert difference(ours, theirs) == pytest.approx(expected)


def test_the_first_disagreement_is_told() -> None:
    found = Result()
    judge([np.zeros((2, 3))], [np.zeros((2, 3))], found)
    assert found.status == "agrees"
    judge([np.zeros((0, 3))], [np.zeros((2, 3))], found)
    judge([np.ones((2, 3))], [np.zeros((2, 3)) + 3], found, "at other sizes: ")
    assert (found.status, found.error) == ("differs", "output 0 has shape (0, 3), not (2, 3)")
    assert found.difference == pytest.approx(2 / 3)


def test_sizes_that_the_peer_refuses_say_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["shape"], value_ints=[8, 4]),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    path = write(tmp_path / "m.onnx", nodes)
    found = compare(path, values, lambda seed: {"x": np.zeros((5, 8), np.float32)})
    assert (found.status, found.fixed_sizes) == ("agrees", True)
