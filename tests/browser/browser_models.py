"""Small models for the page: one whose links are known, one with hostile names, one that is wrong,
one that takes long to compile.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KNOWN = ("conv1", "relu1", "conv2", "sum", "relu2", "pool", "flat", "fc", "softmax")

# What may become of a name on its way to the page: elements, attributes, scripts, styles, URLs,
# line breaks, text that runs the other way, long names, names of properties.
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "</script><script>alert(1)</script><!--",
    "two\nlines\r\nand\ttabs of שלום\u2069",
    "right\u202eto left\u202c\u2066",
    "javascript:alert(1)/../../etc/passwd?#%2e",
    "__proto__",
    "${alert(1)}{{7*7}}`" + "x" * 300,
    "&lt;b&gt; 'quoted' \\ \u0000-free \ud7ff",
)


def known(path: Path, channels: int = 16) -> Path:
    """Writes a residual block with a classifier; layers are named as `KNOWN` says."""
    return _save(_block(KNOWN, channels), path)


def hostile(path: Path) -> Path:
    """Writes the same with names as `HOSTILE`; values are named after their layers."""
    return _save(_block(HOSTILE, 16), path)


def wrong(path: Path) -> Path:
    """Writes a model whose layer `bad/matmul` multiplies matrices that do not fit."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], name="good/relu"),
            helper.make_node("MatMul", ["r", "w"], ["y"], name="bad/matmul"),
        ],
        "wrong",
        [_value("x", [4, 8])],
        [_value("y", [4, 4])],
        [numpy_helper.from_array(np.ones((5, 4), np.float32), "w")],
    )
    return _save(graph, path)


def slow(path: Path, layers: int = 500) -> Path:
    """Writes a small file of many kernels, all of different sizes, which no cache has."""
    draw = random.Random()
    first = size = draw.randrange(100, 5000)
    nodes, pads, value = [], [], "x"
    for n in range(layers):
        more = draw.randrange(1, 9)
        size += more
        pads.append(numpy_helper.from_array(np.array([0, 0, 0, more]), f"more{n}"))
        nodes.append(helper.make_node("Softmax", [value], [f"s{n}"], name=f"softmax{n}"))
        nodes.append(helper.make_node("Pad", [f"s{n}", f"more{n}"], [f"p{n}"], name=f"pad{n}"))
        value = f"p{n}"
    inputs, outputs = [_value("x", [3, first])], [_value(value, [3, size])]
    return _save(helper.make_graph(nodes, "slow", inputs, outputs, pads), path)


def _block(names: tuple[str, ...], channels: int) -> onnx.GraphProto:
    draw = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = draw.standard_normal(shape).astype(np.float32) / 8
        return numpy_helper.from_array(values, name)

    out = {name: f"{name}:out" for name in names}
    conv1, relu1, conv2, add, relu2, pool, flat, fc, softmax = names
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        ("Conv", ["x", "w1", "b1"], conv1, same),
        ("Relu", [out[conv1]], relu1, {}),
        ("Conv", [out[relu1], "w2", "b2"], conv2, same),
        ("Add", [out[conv2], out[relu1]], add, {}),
        ("Relu", [out[add]], relu2, {}),
        ("GlobalAveragePool", [out[relu2]], pool, {}),
        ("Flatten", [out[pool]], flat, {}),
        ("Gemm", [out[flat], "w3", "b3"], fc, {"transB": 1}),
        ("Softmax", [out[fc]], softmax, {"axis": 1}),
    ]
    return helper.make_graph(
        [helper.make_node(op, inputs, [out[n]], name=n, **more) for op, inputs, n, more in nodes],
        "block",
        [_value("x", [1, 8, 12, 12])],
        [_value(out[softmax], [1, 10])],
        [
            weight("w1", channels, 8, 3, 3),
            weight("b1", channels),
            weight("w2", channels, channels, 3, 3),
            weight("b2", channels),
            weight("w3", 10, channels),
            weight("b3", 10),
        ],
    )


def _value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _save(graph: onnx.GraphProto, path: Path) -> Path:
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path
