"""A profile's rows say what was timed: each operator in order, with its sizes and attributes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import arrays, compiled

import clew
from clew.correlate import describe_kernel
from clew.profile.report import Profile

QUICK: Any = {"repeats": 2, "warmup": 0, "sample": False, "roofline": False}
CONVOLUTION = """
clew 1
def @main(
  %x: f32[n, 16, 12, 12],
  %w: f32[32, 4, 3, 5],
  %b: f32[32, 1, 1]
) -> (f32[n, 32, 6, 12], f32[n, 32, 3, 6]) with outputs=["y", "z"] {
  %0 = nn.conv2d(%x, %w, strides=[2, 1], padding=[1, 2, 0, 2], groups=4)  // conv:Conv#0
  %1 = add(%0, %b)  // bias:Add#0
  %2 = nn.relu(%1)  // act:Relu#0
  %3 = nn.max_pool2d(%2, kernel=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0])  // pool:MaxPool#0
  %4 = (%2, %3)
  return %4
}
"""


@pytest.fixture(scope="module")
def model() -> clew.CompiledModel:
    return clew.compile(clew.parse(CONVOLUTION))


@pytest.fixture(scope="module")
def profile(model: clew.CompiledModel) -> Profile:
    shapes = ((3, 16, 12, 12), (32, 4, 3, 5), (32, 1, 1))
    return model.profile(*(np.ones(shape, np.float32) for shape in shapes), **QUICK)


def rows(profile: Profile, by: Any, folder: Path) -> list[dict[str, str]]:
    profile.to_csv(folder / "p.csv", by=by)
    with (folder / "p.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_the_filter_and_what_is_fused_with_it(profile: Profile, tmp_path: Path) -> None:
    found = rows(profile, "kernel", tmp_path)
    (conv,) = [row for row in found if row["anchor"] == "nn.conv2d"]
    sizes = {
        "groups": 4, "channels_in": 16, "channels_out": 32, "kernel_h": 3, "kernel_w": 5,
        "stride_h": 2, "stride_w": 1, "dilation_h": 1, "dilation_w": 1,
        "batch": 4, "m": 3 * 6 * 12, "n": 8, "k": 4 * 3 * 5,
        "product_flops": 2 * 3 * 6 * 12 * 32 * 4 * 3 * 5,
    }  # fmt: skip
    assert {name: int(conv[name]) for name in sizes} == sizes
    assert conv["kernel_d"] == conv["stride_d"] == ""
    assert conv["dtype"] == "f32"
    operators = json.loads(conv["operators"])
    assert [o["op"] for o in operators] == conv["ops"].split("; ")
    assert {"nn.conv2d", "add", "nn.relu"} <= {o["op"] for o in operators}
    (pool,) = [row for row in found if row["anchor"] == "nn.max_pool2d"]
    assert (pool["kernel_h"], pool["stride_w"], pool["k"]) == ("2", "2", "")
    assert pool["output_shapes"].startswith("3x")


def test_layers_say_by_which_operators_they_are_served(profile: Profile, tmp_path: Path) -> None:
    found = {row["layer"]: row for row in rows(profile, "layer", tmp_path)}
    assert found["conv"]["anchor"] == "nn.conv2d"
    assert found["conv"]["kernel_w"] == "5"
    pads = [found["conv"][f"pad_{end}_{axis}"] for end in ("begin", "end") for axis in "hw"]
    assert pads == ["1", "2", "0", "2"]  # a kernel may pad by an operator of its own
    assert found["act"]["anchor"] == "nn.relu"
    assert found["act"]["kernel_w"] == ""
    for layer in profile.layers:
        assert sum(part.ns for part in layer.parts) == layer.ns
        assert list(dict.fromkeys(part.kernel for part in layer.parts)) == list(layer.kernels)


def test_a_convolution_by_winograd_has_the_window_of_its_layer(tmp_path: Path) -> None:
    module = clew.parse("""
clew 1
def @main(%x: f32[1, 64, 28, 28]) -> (f32[1, 64, 28, 28],) with outputs=["y"] {
  %0: f32[64, 64, 3, 3] = const @c0 "w"  // parameter w
  %1 = nn.conv2d(%x, %0, padding=[1, 1, 1, 1])  // conv:Conv#0
  %2 = (%1,)
  return %2
}
""", {"c0": np.ones((64, 64, 3, 3), np.float32)})  # fmt: skip
    found = clew.compile(module, tuned=None).profile(np.ones((1, 64, 28, 28), np.float32), **QUICK)
    (conv,) = [row for row in rows(found, "kernel", tmp_path) if row["product_flops"]]
    # nn.conv2d_winograd on machines where it is faster
    assert conv["anchor"].startswith("nn.conv2d")
    window = [conv[f"{name}_{axis}"] for name in ("kernel", "stride", "pad_end") for axis in "hw"]
    assert window == ["3", "3", "1", "1", "1", "1"]
    (layer,) = [row for row in rows(found, "layer", tmp_path) if row["layer"] == "conv"]
    assert (layer["anchor"], layer["kernel_h"], layer["layout"]) == ("nn.conv2d", "3", "NCHW")


def test_operators_have_a_row_each(profile: Profile, tmp_path: Path) -> None:
    found = rows(profile, "operator", tmp_path)
    assert [row["op"] for row in found] == [op for k in profile.kernels for op in k.ops]
    (conv,) = [row for row in found if row["op"] == "nn.conv2d"]
    (facts,) = json.loads(conv["operators"])
    assert facts["attrs"]["groups"] == 4
    assert int(conv["argument_bytes"]) == sum(i["bytes"] for i in facts["inputs"])
    assert "anchor" not in conv
    shown = profile.table("operator", width=200)
    assert "3x5/2x1, 4 groups" in shown


@pytest.mark.parametrize("name", ["keyword_spotting", "loop_recurrence"])
def test_facts_are_those_of_correlate(name: str) -> None:
    model = compiled(name)
    found = model.profile(*arrays(name), **QUICK)
    kernels = {kernel.name: kernel for kernel in model.kernels}
    seen = 0
    for row in found.kernels:
        if row.kind != "kernel":
            continue
        described = describe_kernel(kernels[row.name])
        assert row.facts["key"] == described["key"]
        for operator, facts in zip(row.operators, described["ops"], strict=True):
            seen += 1
            assert {"op": operator.op, "layers": facts["layers"], **operator.facts} == facts
    assert seen


def test_host_steps_are_described() -> None:
    texts = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [2])
    joined = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [2])
    node = onnx.helper.make_node("StringConcat", ["x", "x"], ["y"], name="join")
    graph = onnx.helper.make_graph([node], "g", [texts], [joined])
    model = clew.compile(onnx.helper.make_model(graph))
    found = model.profile(np.array(["a", "b"], object), **QUICK)
    facts = [o.facts for k in found.kernels if k.kind == "host" for o in k.operators]
    assert [f["inputs"][0]["shape"] for f in facts] == [[2]]


def test_a_saved_model_has_none(
    model: clew.CompiledModel, profile: Profile, tmp_path: Path
) -> None:
    model.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew")
    shapes = ((3, 16, 12, 12), (32, 4, 3, 5), (32, 1, 1))
    found = loaded.profile(*(np.ones(shape, np.float32) for shape in shapes), **QUICK)
    assert all(not o.facts for o in found.operators)
    assert [row["kernel"] for row in rows(found, "kernel", tmp_path)] == [
        k.name for k in found.kernels
    ]


def test_regions_list_their_operators() -> None:
    module = clew.parse(CONVOLUTION.replace("[n, ", "[3, "))
    model = clew.compile(module, backends=["numpy"])
    shapes = ((3, 16, 12, 12), (32, 4, 3, 5), (32, 1, 1))
    found = model.profile(*(np.ones(shape, np.float32) for shape in shapes), **QUICK)
    regions = [k for k in found.kernels if k.kind == "region"]
    assert regions
    inside = [op["op"] for k in regions for o in k.operators for op in o.facts["ops"]]
    assert "nn.conv2d" in inside
