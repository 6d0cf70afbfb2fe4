"""What tests of comparisons share: a small network, as ONNX, with defects planted by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = np.ndarray[Any, Any]
WEIGHTS: dict[str, tuple[int, ...]] = {
    "conv1.w": (16, 3, 3, 3),
    "conv2.w": (16, 16, 3, 3),
    "conv3.w": (16, 16, 1, 1),
    "fc.w": (10, 16),
}
# name, operator, inputs, attributes; the output is the name.
NODES: list[tuple[str, str, list[str], dict[str, Any]]] = [
    ("conv1", "Conv", ["x", "conv1.w"], {"pads": [1, 1, 1, 1]}),
    ("relu1", "Relu", ["conv1"], {}),
    ("conv2", "Conv", ["relu1", "conv2.w"], {"pads": [1, 1, 1, 1]}),
    ("relu2", "Relu", ["conv2"], {}),
    ("add", "Add", ["relu2", "relu1"], {}),
    ("conv3", "Conv", ["add", "conv3.w"], {}),
    ("relu3", "Relu", ["conv3"], {}),
    ("pool", "GlobalAveragePool", ["relu3"], {}),
    ("flat", "Flatten", ["pool"], {}),
    ("fc", "Gemm", ["flat", "fc.w"], {"transB": 1}),
]


class Network:
    """The network's parts, to be changed before it is written."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.weights: dict[str, Array] = {
            name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
            for name, shape in WEIGHTS.items()
        }
        self.nodes = [(name, op, list(reads), dict(attrs)) for name, op, reads, attrs in NODES]
        self.input = ("x", [1, 3, 16, 16])
        self.output = ("fc", [1, 10])

    def insert(self, after: str, name: str, op: str, **attrs: Any) -> None:
        """Puts a layer behind another; all who read that read the new one."""
        for _, _, reads, _ in self.nodes:
            reads[:] = [name if read == after else read for read in reads]
        at = next(n for n, node in enumerate(self.nodes) if node[0] == after)
        self.nodes.insert(at + 1, (name, op, [after], attrs))

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives layers other names; values keep theirs."""
        self.names = dict(names)

    names: Mapping[str, str] = {}

    def write(self, path: Path) -> Path:
        """Writes the model."""
        nodes = [
            helper.make_node(op, reads, [name], name=self.names.get(name, name), **attrs)
            for name, op, reads, attrs in self.nodes
        ]
        x, y = (
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (self.input, self.output)
        )
        weights = [numpy_helper.from_array(w, name) for name, w in self.weights.items()]
        graph = helper.make_graph(nodes, "net", [x], [y], weights)
        opsets = [helper.make_opsetid("", 20)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
        return path


Write: TypeAlias = Callable[[Network], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes networks into files of their own."""
    count = iter(range(100))
    return lambda network: network.write(tmp_path / f"net{next(count)}.onnx")


@pytest.fixture
def feed() -> dict[str, Array]:
    """An input of the network."""
    shape: Sequence[int] = (1, 3, 16, 16)
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
