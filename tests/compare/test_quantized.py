"""A float model against its quantized one: what is stored as integers is compared as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.machine.target import host

SIZES = {"w1": (32, 32), "w2": (32, 32), "w3": (32, 8)}
_STEP = 6 / 255


def network(path: Path, quantized: bool) -> Path:
    """Dense layers with ReLU between; quantized, between `QuantizeLinear` and its reverse."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    parameters: dict[str, Any] = {
        "zero": np.uint8(128),
        "step": np.float32(_STEP),
        "none": np.int8(0),
    }
    value = "x"
    for n, (name, shape) in enumerate(SIZES.items(), 1):
        weight = (rng.standard_normal(shape) / 6).astype(np.float32)
        if quantized:
            step = np.float32(np.abs(weight).max() / 127)
            parameters[f"{name}_step"] = step
            parameters[f"{name}_q"] = np.round(weight / step).astype(np.int8)
            made = [
                ("QuantizeLinear", [value, "step", "zero"], f"q{n}"),
                ("DequantizeLinear", [f"q{n}", "step", "zero"], f"dq{n}"),
                ("DequantizeLinear", [f"{name}_q", f"{name}_step", "none"], name),
            ]
            nodes += [helper.make_node(op, reads, [y], name=y) for op, reads, y in made]
            value = f"dq{n}"
        else:
            parameters[name] = weight
        nodes.append(helper.make_node("MatMul", [value, name], [f"fc{n}"], name=f"fc{n}"))
        value = f"fc{n}"
        if n < len(SIZES):
            nodes.append(helper.make_node("Relu", [value], [f"relu{n}"], name=f"relu{n}"))
            value = f"relu{n}"
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(v, name) for name, v in parameters.items() if name in used],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.skipif(
    not host().has("avx512vnni"), reason="without dot products of bytes relu1 is in no memory"
)
@pytest.mark.parametrize("swapped", [False, True])
def test_where_quantization_parts_from_the_float_model(tmp_path: Path, swapped: bool) -> None:
    paths = [network(tmp_path / f"{n}.onnx", bool(n)) for n in (0, 1)]
    models = [clew.compile(p, threads=1) for p in (paths[::-1] if swapped else paths)]
    feed = {"x": np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)}
    report = clew.diff(*models, feed, time=False)
    paired = [x.a for x in report.layers if x.a and x.b]
    assert paired == ["fc1", "relu1", "fc2", "relu2", "fc3"]
    assert {x.how for x in report.layers if x.a and x.b} == {"name"}
    relu = report.layer("relu1").numerics
    assert relu is not None
    assert relu.at == "relu1"
    assert relu.quantized == ("q2", "dq2")
    assert 1e-3 < relu.between.worst < 0.05
    assert report.summary.first_rise == "relu1"
    assert "stored quantized" in str(report)
    integers = report.layer("q2")
    state = integers.state_a or integers.state_b
    assert state is not None
    assert state.dtype == "u8"
