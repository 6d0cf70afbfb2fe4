"""Builds graphs by hand, with ONNX's own operators and seeded weights."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_OPSET = [helper.make_opsetid("", 20)]


class Builder:
    """Collects nodes and weights; a node's first output is named after it."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)

    def node(self, op: str, name: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Adds a node; returns its output's name."""
        self.nodes.append(helper.make_node(op, inputs, [f"{name}.out"], name=name, **attrs))
        return f"{name}.out"

    def result(self, op: str, output: str, inputs: Sequence[str], **attrs: Any) -> None:
        """Adds a node, named like the graph's output that it computes."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attrs))

    def weight(self, name: str, value: np.ndarray) -> str:
        """Adds a constant; returns its name."""
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def drawn(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        """Adds a weight from the normal distribution; returns its name."""
        value = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        return self.weight(name, value)

    def ints(self, name: str, values: int | Sequence[int]) -> str:
        """Adds a constant of integers; returns its name."""
        return self.weight(name, np.array(values, np.int64))

    def linear(self, name: str, x: str, size_in: int, size_out: int) -> str:
        """Adds `x · W + b`; returns the output's name."""
        weight = self.drawn(f"{name}.weight", (size_in, size_out), 1 / math.sqrt(size_in))
        bias = self.drawn(f"{name}.bias", (size_out,), 0.1)
        product = self.node("MatMul", f"{name}.matmul", [x, weight])
        return self.node("Add", f"{name}.add", [product, bias])

    def norm(self, name: str, x: str, width: int) -> str:
        """Adds a layer normalization over the last axis; returns the output's name."""
        scale = self.rng.uniform(0.5, 1.5, width).astype(np.float32)
        scale_name = self.weight(f"{name}.scale", scale)
        shift = self.drawn(f"{name}.shift", (width,), 0.1)
        return self.node("LayerNormalization", name, [x, scale_name, shift], axis=-1, epsilon=1e-12)

    def save(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        path: Path,
    ) -> None:
        """Writes the graph as a checked model."""
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=_OPSET, ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)
