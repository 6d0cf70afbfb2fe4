"""Models that other tools quantized, in part or as a whole: their layers stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from small_models import drawn, model, node

import clew
from clew.support.errors import InputError

DATA = drawn(24, 16, seed=9)


def made(form: str, *, whole: bool) -> ModelProto:
    """Returns `first`, an integer product in a form of other tools, and `second`, one of floats
    unless `whole`.
    """
    constants = {
        "s": np.float32(0.03),
        "z": np.uint8(128),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "w": np.random.default_rng(1).integers(-127, 128, (16, 12)).astype(np.int8),
        "v": drawn(12, 8, scale=0.3),
    }
    domain = {"domain": "com.microsoft"} if form == "com.microsoft" else {}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"], name="in", **domain)]
    if form == "QOperator":
        given = ["q", "s", "z", "w", "ws", "wz", "s", "z"]
        nodes.append(node("QLinearMatMul", given, ["hq"], name="first"))
        nodes.append(node("DequantizeLinear", ["hq", "s", "z"], ["h"], name="out"))
    else:
        nodes += [
            node("DequantizeLinear", ["q", "s", "z"], ["xd"], name="in.d", **domain),
            node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="w.d", **domain),
            node("MatMul", ["xd", "wd"], ["h"], name="first"),
        ]
    nodes.append(node("Relu", ["h"], ["r"], name="act"))
    columns = 12
    if not whole:
        nodes.append(node("MatMul", ["r", "v"], ["y"], name="second"))
        columns = 8
    value = "r" if whole else "y"
    network = model(nodes, {"x": [4, 16]}, {value: [4, columns]}, {})
    used = {i for n in nodes for i in n.input}
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in used]
    network.graph.initializer.extend(held)
    network.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return network


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "com.microsoft"])
def test_only_layers_in_floats_are_quantized(form: str, tmp_path: Path) -> None:
    network = made(form, whole=False)
    onnx.save(network, tmp_path / "part.onnx")
    q = clew.quantize(tmp_path / "part.onnx", DATA, threads=1)
    assert [row.layer for row in q.layers] == ["second"]
    assert q.error is not None
    assert 0 < q.error < 0.02
    q.save(tmp_path / "int8.onnx")
    x = {"x": DATA[:4]}
    wanted = q.compile(threads=1).run(x)["y"]
    np.testing.assert_array_equal(
        clew.compile(tmp_path / "int8.onnx", threads=1).run(x)["y"], wanted
    )
    kept: dict[str, Any] = {n.name: n for n in onnx.load(tmp_path / "int8.onnx").graph.node}
    for before in network.graph.node:
        if before.name in ("in", "first"):
            assert list(kept[before.name].input) == list(before.input)


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "com.microsoft"])
def test_a_model_of_integers_is_refused(form: str) -> None:
    with pytest.raises(InputError) as error:
        clew.quantize(made(form, whole=True), DATA, threads=1)
    assert error.value.code == "I402"
    assert "quantized already" in error.value.message
