"""Small ONNX models with products, and numbers to calibrate them on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


def transformer(
    culprits: Collection[str] = (), blocks: int = 2, width: int = 16, rows: int = 6, by: float = 400
) -> ModelProto:
    """Returns pre-norm blocks `b0`, `b1`, ..., each with products `q`, `k`, `v`, `out`, `up` and
    `down`. The operand of each culprit (`b1.out`, say) has three channels of large numbers, with
    small weights for them, so that the network computes the same.
    """
    nodes: list[NodeProto] = []
    constants: dict[str, Array] = {}
    large = [2, 7, 11]
    value = "x"

    def product(name: str, operand: str, size: tuple[int, int], seed: int) -> str:
        constants[f"{name}.w"] = drawn(*size, seed=seed, scale=size[0] ** -0.5)
        nodes.append(node("MatMul", [operand, f"{name}.w"], [f"{name}.y"], name=name))
        return f"{name}.y"

    def norm(name: str, operand: str, seed: int) -> str:
        constants[f"{name}.g"] = 1 + drawn(width, seed=seed, scale=0.1)
        constants[f"{name}.b"] = drawn(width, seed=seed + 1, scale=0.1)
        given = [operand, f"{name}.g", f"{name}.b"]
        nodes.append(node("LayerNormalization", given, [f"{name}.y"], name=name))
        return f"{name}.y"

    for n in range(blocks):
        b, seed = f"b{n}", 100 * n
        normed = norm(f"{b}.norm1", value, seed)
        q, k, v = (product(f"{b}.{p}", normed, (width, width), seed + m + 10)
                   for m, p in enumerate("qkv"))  # fmt: skip
        nodes += [
            node("Transpose", [k], [f"{b}.kt"], name=f"{b}.turn", perm=[1, 0]),
            node("MatMul", [q, f"{b}.kt"], [f"{b}.scores"], name=f"{b}.scores"),
            node("Softmax", [f"{b}.scores"], [f"{b}.p"], name=f"{b}.softmax", axis=-1),
            node("MatMul", [f"{b}.p", v], [f"{b}.context"], name=f"{b}.mix"),
        ]
        out = product(f"{b}.out", f"{b}.context", (width, width), seed + 20)
        nodes.append(node("Add", [value, out], [f"{b}.r1"], name=f"{b}.add1"))
        up = product(f"{b}.up", norm(f"{b}.norm2", f"{b}.r1", seed + 4), (width, 2 * width), seed)
        nodes.append(node("Relu", [up], [f"{b}.act"], name=f"{b}.relu"))
        down = product(f"{b}.down", f"{b}.act", (2 * width, width), seed + 30)
        nodes.append(node("Add", [f"{b}.r1", down], [f"{b}.r2"], name=f"{b}.add2"))
        value = f"{b}.r2"
    makers = {"out": ("v.w",), "down": ("up.w",), "up": ("norm2.g", "norm2.b")}
    for culprit in culprits:
        block, layer = culprit.split(".")
        for maker in makers[layer]:
            constants[f"{block}.{maker}"][..., large] *= by
        constants[f"{culprit}.w"][large] /= by
    return model(nodes, {"x": [rows, width]}, {value: [rows, width]}, constants)


def residual() -> ModelProto:
    """Returns two residual blocks behind a max pool, the second with a downsampling convolution
    `down`, and a classifier.
    """
    sizes = {
        "stem": (8, 3, 3),
        "one.a": (8, 8, 3),
        "one.b": (8, 8, 3),
        "two.a": (12, 8, 3),
        "two.b": (12, 12, 3),
        "down": (12, 8, 1),
    }
    constants: dict[str, Array] = {"head.w": drawn(6, 12, scale=0.4), "head.b": drawn(6)}
    for seed, (name, (outputs, inputs, taps)) in enumerate(sizes.items()):
        scale = (inputs * taps * taps) ** -0.5
        constants[f"{name}.w"] = drawn(outputs, inputs, taps, taps, seed=seed, scale=scale)
        constants[f"{name}.b"] = drawn(outputs, seed=seed, scale=0.2)

    def conv(name: str, operand: str, stride: int = 1) -> NodeProto:
        given = [operand, f"{name}.w", f"{name}.b"]
        pad = constants[f"{name}.w"].shape[2] // 2
        attrs = {"strides": [stride] * 2, "pads": [pad] * 4}
        return node("Conv", given, [f"{name}.y"], name=name, **attrs)

    def relu(name: str, operand: str) -> NodeProto:
        return node("Relu", [operand], [f"{name}.y"], name=name)

    nodes = [
        conv("stem", "image"),
        relu("stem.act", "stem.y"),
        node("MaxPool", ["stem.act.y"], ["pool.y"], name="pool", kernel_shape=[2, 2],
             strides=[2, 2]),
        conv("one.a", "pool.y"),
        relu("one.act", "one.a.y"),
        conv("one.b", "one.act.y"),
        node("Add", ["one.b.y", "pool.y"], ["one.sum.y"], name="one.sum"),
        relu("one.out", "one.sum.y"),
        conv("two.a", "one.out.y", 2),
        relu("two.act", "two.a.y"),
        conv("two.b", "two.act.y"),
        conv("down", "one.out.y", 2),
        node("Add", ["two.b.y", "down.y"], ["two.sum.y"], name="two.sum"),
        relu("two.out", "two.sum.y"),
        node("GlobalAveragePool", ["two.out.y"], ["mean.y"], name="mean"),
        node("Flatten", ["mean.y"], ["flat.y"], name="flat"),
        node("Gemm", ["flat.y", "head.w", "head.b"], ["scores"], name="head", transB=1),
    ]  # fmt: skip
    return model(nodes, {"image": [1, 3, 16, 16]}, {"scores": [1, 6]}, constants)
