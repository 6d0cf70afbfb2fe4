"""Incorrectly imported layers, against ONNX Runtime and against files of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nets
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.frontends.building import call
from clew.frontends.onnx import registry
from clew.ir.expr import Call
from clew.ir.interpret import interpret_values
from clew.ir.visit import post_order
from clew.support.errors import ClewError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {"w1": nets.array(16, 8, scale=0.3), "w2": nets.array(4, 16, scale=0.3)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1"], ["a"], name="fc1", transB=1),
            helper.make_node("LeakyRelu", ["a"], ["b"], name="act", alpha=0.3),
            helper.make_node("Gemm", ["b", "w2"], ["c"], name="fc2", transB=1),
            helper.make_node("Sigmoid", ["c"], ["y"], name="last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path
    )
    return path


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(layer: Any) -> Any:
        return call("nn.leaky_relu", layer.input(0), alpha=0.01)

    monkeypatch.setitem(registry._CONVERTERS[("", "LeakyRelu")], 1, wrong)
    for since in list(registry._CONVERTERS[("", "LeakyRelu")]):
        monkeypatch.setitem(registry._CONVERTERS[("", "LeakyRelu")], since, wrong)


def inputs() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}


def test_a_sound_import(model: Path) -> None:
    for reference in ("onnxruntime", "opt0", "interpreter"):
        verdict = clew.bisect(model, inputs(), reference=reference, threads=1)
        assert verdict.kind == "none", str(verdict)


def test_a_wrong_converter_against_onnxruntime(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    verdict = clew.bisect(model, inputs(), reference="onnxruntime", threads=1, cache=False)
    assert verdict.kind == "import", f"{verdict}\n{verdict.evidence}"
    assert verdict.layers == ("act",)
    assert verdict.reduced is not None
    assert verdict.reduced.operators == 1
    assert verdict.reduced.file is not None
    assert verdict.reduced.fails()


def test_a_wrong_converter_against_a_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = clew.load(model)
    right = clew.compile(graph, threads=1).run(inputs())
    nodes = {n.span.layers[0]: n.id for n in post_order(graph.main) if isinstance(n, Call)}
    values = interpret_values(graph.main, list(inputs().values()), set(nodes.values()))
    layers = {name: values[id_] for name, id_ in nodes.items()}
    np.savez(tmp_path / "values.npz", **right, **layers)
    np.savez(tmp_path / "outputs.npz", **right)
    np.savez(tmp_path / "strange.npz", other=np.zeros(3))

    plant(monkeypatch)
    verdict = clew.bisect(model, inputs(), reference=tmp_path / "values.npz", cache=False)
    assert (verdict.kind, verdict.layers) == ("import", ("act",)), str(verdict)
    assert verdict.reduced is not None
    assert verdict.reduced.operators == 1
    assert verdict.reduced.fails()
    verdict = clew.bisect(model, inputs(), reference=tmp_path / "outputs.npz", cache=False)
    assert (verdict.kind, verdict.layers) == ("import", ()), str(verdict)
    with pytest.raises(ClewError) as raised:
        clew.bisect(model, inputs(), reference=tmp_path / "strange.npz")
    assert raised.value.code == "I171"


def test_references_that_there_are_not(model: Path, tmp_path: Path) -> None:
    for reference, code in (("pytorch", "I170"), (tmp_path / "none.npz", "I171")):
        with pytest.raises(ClewError) as raised:
            clew.bisect(model, inputs(), reference=reference)
        assert raised.value.code == code
    with pytest.raises(ClewError) as raised:
        clew.bisect(clew.load(model), inputs(), reference="onnxruntime")
    assert raised.value.code == "I174"
