"""Small models that parts are taken out of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: Any = (2, 8), dtype: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op: str, inputs: list[str], outputs: list[str], name: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=name, **attrs)


def array(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    drawn = np.random.default_rng(len(name) + sum(shape)).standard_normal(shape)
    return array(name, drawn.astype(np.float32))


def made(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    parameters: list[Any] = [],  # noqa: B006
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, parameters, **more.pop("graph", {}))
    imports = [helper.make_opsetid("", 20), *more.pop("opsets", [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, **more)


def blocks() -> onnx.ModelProto:
    """Two blocks with a residual, a scaled weight, two outputs."""
    return made(
        [
            node("MatMul", ["x", "w1"], ["a"], "first"),
            node("Relu", ["a"], ["b"], "act"),
            node("Mul", ["w2", "two"], ["w2x"], "scale"),
            node("MatMul", ["b", "w2x"], ["c"], "second"),
            node("Add", ["c", "a"], ["d"], "residual"),
            node("Split", ["d"], ["left", "right"], "cut", axis=1, num_outputs=2),
            node("Add", ["left", "right"], ["e"], "join"),
            node("Tanh", ["e"], ["y"], "out"),
            node("Neg", ["b"], ["z"], "side"),
        ],
        [info("x")],
        [info("y", (2, 4)), info("z")],
        [weights("w1", 8, 8), weights("w2", 8, 8), array("two", np.float32(2))],
    )


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    def save(model: onnx.ModelProto) -> Path:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return path

    return save


@pytest.fixture
def file(saved: Callable[[onnx.ModelProto], Path]) -> Path:
    return saved(blocks())
