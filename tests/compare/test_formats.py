"""One network as an ONNX and as a TFLite file, compared layer by layer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import clew
from tflite_files import Graph

_RNG = np.random.default_rng(0)
_WEIGHTS = [_RNG.standard_normal((8, 8, 3, 3)).astype(np.float32) for _ in range(2)]


def _tflite() -> bytes:
    graph = Graph()
    y, shape = graph.input("image", (1, 6, 5, 8), "f32"), (1, 6, 5, 8)
    window = {"padding": 0, "stride_w": 1, "stride_h": 1, "activation": 1}
    for n, weight in enumerate(_WEIGHTS):
        w = graph.constant(np.ascontiguousarray(weight.transpose(0, 2, 3, 1)))
        made = [(f"t/conv{n}", shape, "f32")]
        (y,) = graph.operator("CONV_2D", [y, w], made, ("Conv2DOptions", window))
        (y,) = graph.operator("LOGISTIC", [y], [(f"t/gate{n}", shape, "f32")])
    return graph.file([y])


def _onnx() -> onnx.ModelProto:
    """The same, with the channels of images last at the border alone."""
    nodes = [helper.make_node("Transpose", ["image"], ["y"], "first", perm=[0, 3, 1, 2])]
    for n in range(2):
        nodes += [
            helper.make_node("Conv", ["y" if not n else f"g{n - 1}", f"w{n}"], [f"c{n}"],
                             f"o/conv{n}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{n}"], [f"r{n}"], f"o/relu{n}"),
            helper.make_node("Sigmoid", [f"r{n}"], [f"g{n}"], f"o/gate{n}"),
        ]  # fmt: skip
    nodes.append(helper.make_node("Transpose", ["g1"], ["out"], "last", perm=[0, 2, 3, 1]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 6, 5, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 6, 5, 8])],
        [numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(_WEIGHTS)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_layers_of_two_formats_are_paired_and_equal() -> None:
    image = _RNG.standard_normal((1, 6, 5, 8)).astype(np.float32)
    a, b = (clew.compile(model, threads=1) for model in (_onnx(), _tflite()))
    report = clew.diff(a, b, [image], time=False)
    paired = {row.a: row for row in report.layers if row.a and row.b}
    for n in range(2):
        for kind in ("conv", "gate"):
            row = paired[f"o/{kind}{n}"]
            assert row.b == f"t/{kind}{n}"
            assert not {"operator", "values"} & row.differs.keys()
