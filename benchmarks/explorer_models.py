"""Writes a model for the explorer's figures: `python benchmarks/explorer_models.py OUT.onnx`.

The model has 200 named blocks with residuals, about 10,000 nodes in total, like large exported
models.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH: Final = 32
NODES_A_BRANCH: Final = 8
BRANCHES: Final = 6


@dataclass
class _Writer:
    """Nodes and parameters of a graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    parameters: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def node(self, operator: str, name: str, *inputs: str) -> str:
        """Adds an operator; returns its result."""
        result = f"{name}_output"
        self.nodes.append(helper.make_node(operator, list(inputs), [result], name=name))
        return result

    def parameter(self, name: str, *shape: int) -> str:
        """Adds a parameter."""
        values = self.rng.standard_normal(shape).astype(np.float32) / 16
        self.parameters.append(numpy_helper.from_array(values, name))
        return name


def blocks(count: int) -> onnx.ModelProto:
    """Returns `count` blocks of 54 nodes on f32[1, 32]: branches that join, and a residual."""
    writer = _Writer()
    value = "x"
    for index in range(count):
        value = _block(writer, f"/blocks.{index}", value)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])
    y = helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, WIDTH])
    graph = helper.make_graph(writer.nodes, "blocks", [x], [y], writer.parameters)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _block(writer: _Writer, name: str, value: str) -> str:
    parts = [_branch(writer, f"{name}/branch.{n}", value) for n in range(BRANCHES)]
    joined = parts[0]
    for n, part in enumerate(parts[1:]):
        joined = writer.node("Add", f"{name}/join.{n}", joined, part)
    return writer.node("Add", f"{name}/residual", joined, value)


def _branch(writer: _Writer, name: str, value: str) -> str:
    for n in range(NODES_A_BRANCH // 4):
        weight = writer.parameter(f"{name}.{n}.weight", WIDTH, WIDTH)
        value = writer.node("MatMul", f"{name}/MatMul_{n}", value, weight)
        bias = writer.parameter(f"{name}.{n}.bias", WIDTH)
        value = writer.node("Add", f"{name}/Add_{n}", value, bias)
        value = writer.node("Tanh", f"{name}/Tanh_{n}", value)
        scale = writer.parameter(f"{name}.{n}.scale", WIDTH)
        value = writer.node("Mul", f"{name}/Mul_{n}", value, scale)
    return value


def main() -> None:
    """Writes the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--blocks", type=int, default=185)
    options = parser.parse_args()
    model = blocks(options.blocks)
    onnx.save(model, options.out)
    print(f"{options.out}: {len(model.graph.node)} nodes")


if __name__ == "__main__":
    main()
