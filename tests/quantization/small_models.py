"""Small ONNX models with products, and numbers to calibrate them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
node = helper.make_node


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Returns normally distributed numbers."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype("f")


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, Array],
    opset: int = 17,
) -> ModelProto:
    """Returns a model of floats."""
    values = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each.items()]
        for each in (inputs, outputs)
    ]
    held = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(list(nodes), "small", *values, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def convolutional(batch: int | str = 1) -> ModelProto:
    """Returns two convolutions, the first with a batch norm, and a classifier."""
    constants = {
        "w1": drawn(8, 3, 3, 3, scale=0.2),
        "gamma": 1 + drawn(8, seed=1, scale=0.2),
        "beta": drawn(8, seed=2, scale=0.2),
        "mean": drawn(8, seed=3, scale=0.2),
        "variance": 1 + drawn(8, seed=4, scale=0.1) ** 2,
        "w2": drawn(8, 8, 3, 3, scale=0.15),
        "b2": drawn(8, seed=5, scale=0.1),
        "w3": drawn(6, 8, scale=0.4),
        "b3": drawn(6, seed=6, scale=0.1),
    }
    nodes = [
        node("Conv", ["image", "w1"], ["a"], name="stem.conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "gamma", "beta", "mean", "variance"], ["n"], name="norm"),
        node("Relu", ["n"], ["r"], name="stem.act"),
        node("Conv", ["r", "w2", "b2"], ["c"], name="body.conv", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "w3", "b3"], ["scores"], name="head", transB=1),
    ]
    return model(nodes, {"image": [batch, 3, 8, 8]}, {"scores": [batch, 6]}, constants)


def stack(weights: Sequence[Array], rows: int = 4) -> ModelProto:
    """Returns layers `fc0`, `fc1`, ... of square weights with ReLU between them."""
    size, nodes, value = len(weights[0]), [], "x"
    for n in range(len(weights)):
        nodes.append(node("MatMul", [value, f"w{n}"], [f"y{n}"], name=f"fc{n}"))
        nodes.append(node("Relu", [f"y{n}"], [f"z{n}"], name=f"act{n}"))
        value = f"z{n}"
    nodes.pop()
    shapes = {"x": [rows, size]}, {f"y{len(weights) - 1}": [rows, size]}
    return model(nodes, *shapes, {f"w{n}": w for n, w in enumerate(weights)})
