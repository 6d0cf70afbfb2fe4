"""Convolutions and pooling with channels last or in blocks, as ONNX Runtime's optimizer saves
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import clew
from clew.frontends.onnx.contrib import nchwc
from clew.machine.target import target_of

from .one_node import RNG, agrees, draw, fails, run

MS = "com.microsoft"
NCHWC = "com.microsoft.nchwc"


class Net:
    """A graph to which layers are added; the last value is the result."""

    def __init__(self, channels: int) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.last, self.channels = "x", channels
        self.inputs = channels

    def add(self, op: str, *inputs: str, **attributes: Any) -> Net:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, *inputs], [name], **attributes))
        self.last = name
        return self

    def conv(self, outer: int, kernel: int = 3, group: int = 1, **attributes: Any) -> Net:
        number = len(self.nodes)
        weight = draw(outer, self.channels // group, kernel, kernel) / kernel
        self.tensors += [numpy_helper.from_array(weight, f"w{number}")]
        self.tensors += [numpy_helper.from_array(draw(outer), f"b{number}")]
        pads = [kernel // 2] * 4
        self.channels = outer
        return self.add("Conv", f"w{number}", f"b{number}", group=group, pads=pads, **attributes)

    def model(self) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, self.inputs, 12, 10])
        y = helper.make_empty_tensor_value_info(self.last)
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def optimized(net: Net, folder: Path) -> onnx.ModelProto:
    """Returns what ONNX Runtime's optimizer makes of a network for this machine."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "all.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    made = net.model().SerializeToString()
    ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "all.onnx")


def residual() -> Net:
    net = Net(3).conv(24).add("Relu")
    before, channels = net.last, net.channels
    net.conv(24).add("Relu").conv(24)
    assert channels == net.channels
    return net.add("Add", before).add("Relu").add("GlobalAveragePool")


NETS = {
    "few inputs": Net(3).conv(10).add("Relu"),
    "padded": Net(20).conv(24).conv(40, 1),
    "depthwise": Net(8).conv(32, 1).conv(32, 3, 32).add("Clip").conv(12, 1),
    "groups": Net(32).conv(64, 3, 2, strides=[2, 2]),
    "sum": residual(),
    "pools": Net(16).conv(32).add("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    .add("AveragePool", kernel_shape=[2, 2], strides=[2, 2]).add("GlobalMaxPool"),
    "resized": Net(16).conv(16).add("Upsample", "scales", mode="nearest"),
    "sigmoid": Net(16).conv(16).add("Sigmoid").conv(48).add("Tanh"),
}  # fmt: skip
NETS["resized"].nodes[-1] = helper.make_node(
    "Resize", ["v0", "", "scales"], ["v1"], mode="nearest", nearest_mode="floor",
    coordinate_transformation_mode="asymmetric",
)  # fmt: skip
NETS["resized"].tensors.append(numpy_helper.from_array(np.array([1, 1, 2, 3], "f4"), "scales"))


@pytest.mark.parametrize("name", NETS)
def test_blocks_of_channels(name, tmp_path):
    made = optimized(NETS[name], tmp_path)
    assert NCHWC in {node.domain for node in made.graph.node}
    x = draw(2, NETS[name].inputs, 12, 10)
    plain = ort.InferenceSession(NETS[name].model().SerializeToString()).run(None, {"x": x})[0]
    found = clew.compile(made, threads=1, cache=False).run({"x": x})
    (got,) = found.values()
    np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-4)


# --- blocks of 8, which ONNX Runtime makes on other machines --------------------------------------


def blocked(weight: Any, block: int, *, both: bool) -> Any:
    """Returns a weight filled up and in the order that ONNX Runtime gives it."""
    outer, inner, *kernel = weight.shape
    full = np.zeros(
        (-(-outer // block) * block, -(-inner // block) * block if both else inner, *kernel), "f4"
    )
    full[:outer, :inner] = weight
    if both:
        parts = full.reshape(full.shape[0] // block, block, -1, block, *kernel)
        return parts.transpose(0, 2, 4, 5, 3, 1).reshape(full.shape)
    parts = full.reshape(full.shape[0] // block, block, inner, *kernel)
    return parts.transpose(0, 2, 3, 4, 1).reshape(full.shape)


def blocked_model(weights: list[Any], channels: int) -> onnx.ModelProto:
    nodes, tensors = [], []
    last = "x"
    for n, weight in enumerate(weights):
        tensors.append(numpy_helper.from_array(weight, f"w{n}"))
        nodes.append(helper.make_node("Conv", [last, f"w{n}"], [f"v{n}"], domain=NCHWC))
        last = f"v{n}"
    nodes.append(helper.make_node("ReorderOutput", [last], ["y"], domain=NCHWC, channels=channels))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_empty_tensor_value_info("y")], tensors,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(("block", "middle", "last"), [(8, 24, 13), (16, 24, 5), (8, 40, 24)])
def test_the_block_follows_from_sizes(block, middle, last):
    first, second = draw(middle, 3, 1, 1), draw(last, middle, 3, 3)
    weights = [blocked(first, block, both=False), blocked(second, block, both=True)]
    made = blocked_model(weights, last)
    assert nchwc.channel_block(made.graph) == block
    x = draw(1, 3, 6, 6)
    (found,) = clew.compile(made, threads=1, cache=False).run({"x": x}).values()
    plain = Net(3)
    plain.tensors = [numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")]
    net = plain.add("Conv", "a").add("Conv", "b").model()
    net.graph.input[0].CopyFrom(made.graph.input[0])
    wanted = ort.InferenceSession(net.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_where_sizes_fit_both_the_machine_tells(monkeypatch):
    graph: GraphProto = blocked_model([draw(32, 3, 1, 1)], 32).graph
    for name, block in (("cpu-avx2", 8), ("cpu-avx512", 16), ("cpu-neon", 16)):
        monkeypatch.setattr(nchwc, "host", lambda name=name: target_of(name))
        assert nchwc.channel_block(graph) == block


def test_wrong_blocks():
    made = blocked_model([draw(20, 3, 1, 1)], 20)
    with pytest.raises(clew.ClewError) as caught:
        clew.load(made)
    assert caught.value.code == "M012"
    inputs = {"x": draw(1, 3, 6, 6), "w": draw(16, 3, 1, 1)}
    fails("U005", "Conv", inputs, domain=NCHWC)
    fails("M012", "ReorderOutput", {"x": draw(1, 8, 6, 6)}, domain=NCHWC, channels=9)


# --- channels last --------------------------------------------------------------------------------

X, W, B = draw(2, 7, 9, 4), draw(6, 4, 3, 3), draw(6)


def first(x: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def test_channels_last():
    z = draw(2, 7, 9, 6)
    inputs = {"x": X, "w": W, "b": B, "z": z}
    options = {"pads": [1] * 4, "domain": MS, "activation": "Relu"}
    wanted = run("FusedConv", {**inputs, "x": first(X), "z": first(z)}, **options)[2][0]
    found = run("NhwcFusedConv", inputs, **options)[2][0]
    np.testing.assert_allclose(first(found), wanted, rtol=1e-5, atol=1e-5)
    del options["activation"]
    plain = {"x": X, "w": W, "b": B}
    wanted = run("Conv", {**plain, "x": first(X)}, pads=[1] * 4)[2][0]
    found = run("NhwcConv", plain, **options)[2][0]
    np.testing.assert_allclose(first(found), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": [2, 2], "pads": [1, 0, 1, 0]},
        {"dilations": [2, 1]},
        {"ceil_mode": 1, "strides": [2, 2]},
    ],
)
def test_nhwc_max_pool(options):
    x = RNG.integers(0, 256, (2, 7, 9, 4)).astype("u1")
    agrees(
        "NhwcMaxPool", {"x": x}, by="ort", domain=MS, native=False, kernel_shape=[3, 2], **options
    )
