"""Operators of users' that are bound to ONNX's: how they are imported, and what is said of
mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clew
from clew import te
from clew.support.errors import ClewError


def model(tmp_path: Path, op: str, outputs: int = 1, version: int = 1, **attributes: Any) -> Path:
    names = [f"y{n}" for n in range(outputs)]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="act"),
        helper.make_node(op, ["a"], names, name="own", domain="bound.tests", **attributes),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bound.tests", version)]
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(nodes, "g", [x], info)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def declare(name: str, onnx_name: str, factor: float, since: int = 1) -> Any:
    @clew.register_op(name, onnx=onnx_name, since=since, overwrite=True)
    def op(x: te.Tensor, *, scale: float = 1.0, mode: str = "up") -> te.Tensor:
        sign = 1.0 if mode == "up" else -1.0
        return te.compute(x.shape, lambda *i: x[i] * (factor * scale * sign), "own")

    return op


X = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")


@pytest.mark.parametrize(
    ("attributes", "factor"), [({}, 2.0), ({"scale": 3.0}, 6.0), ({"mode": "down"}, -2.0)]
)
def test_a_bound_operator_is_imported(
    tmp_path: Path, attributes: dict[str, Any], factor: float
) -> None:
    declare("bound.own", "bound.tests::Own", 2.0)
    compiled = clew.compile(model(tmp_path, "Own", **attributes))
    np.testing.assert_allclose(compiled.run({"x": X})["y0"], np.maximum(X, 0) * factor, rtol=1e-6)
    (kernel,) = compiled.kernels
    assert kernel.ops == ("nn.relu", "bound.own")
    assert kernel.layers == ("act", "own")
    assert compiled.trace.check() == []


def test_several_results(tmp_path: Path) -> None:
    @clew.register_op("bound.both", onnx="bound.tests::Both", overwrite=True)
    def both(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        low = te.compute(x.shape, lambda *i: x[i] - 1.0, "low")
        return low, te.compute(x.shape, lambda *i: x[i] + 1.0, "high")

    found = clew.compile(model(tmp_path, "Both", 2)).run({"x": X})
    np.testing.assert_allclose(found["y0"], np.maximum(X, 0) - 1)
    np.testing.assert_allclose(found["y1"], np.maximum(X, 0) + 1)


def test_the_newest_fitting_version_is_taken(tmp_path: Path) -> None:
    declare("bound.v1", "bound.tests::Versions", 1.0)
    declare("bound.v3", "bound.tests::Versions", 3.0, since=3)
    for version, factor in ((1, 1.0), (2, 1.0), (3, 3.0), (4, 3.0)):
        compiled = clew.compile(model(tmp_path, "Versions", version=version))
        np.testing.assert_allclose(compiled.run({"x": X})["y0"], np.maximum(X, 0) * factor)


@pytest.mark.parametrize(
    ("op", "attributes", "code"),
    [("Unheard", {}, "U003"), ("Own", {"size": 3}, "T011"), ("Own", {"scale": "wide"}, "T013")],
)
def test_mistakes_in_the_model(
    tmp_path: Path, op: str, attributes: dict[str, Any], code: str
) -> None:
    declare("bound.own", "bound.tests::Own", 2.0)
    with pytest.raises(ClewError) as caught:
        clew.load(model(tmp_path, op, **attributes))
    assert caught.value.code == code
    assert op in str(caught.value) or "own" in str(caught.value)


def test_mistakes_in_the_binding() -> None:
    declare("bound.own", "bound.tests::Own", 2.0)
    for name, onnx_name, code in (
        ("bound.other", "bound.tests::Own", "T015"),
        ("bound.other", "::Own", "T018"),
        ("bound other", "bound.tests::Other", "T018"),
    ):
        with pytest.raises(ClewError) as caught:
            declare(name, onnx_name, 1.0)
        assert caught.value.code == code
        assert caught.value.hint
