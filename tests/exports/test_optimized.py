"""Models that ONNX Runtime's tools save, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from clew.backends.onnxruntime.limits import saturates_sums
from exports import __main__ as command
from exports import optimized
from exports.optimized import Case

RNG = np.random.default_rng(4)


@pytest.fixture
def small(tmp_path, monkeypatch) -> str:
    """Puts a small network in the place of one of the zoo's, whose name it returns."""
    weight = numpy_helper.from_array(RNG.standard_normal((16, 3, 3, 3)).astype("f4") / 4, "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 6, 6])
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)

    def inputs(name: str, seed: int = 0) -> dict[str, Any]:
        draw = np.random.default_rng(seed).standard_normal((1, 3, 8, 8))
        return {"x": draw.astype("f4")}

    monkeypatch.setattr(optimized.zoo, "path", lambda name: path)
    monkeypatch.setattr(optimized.zoo, "inputs", inputs)
    return "resnet_tiny"


@pytest.mark.parametrize(
    ("variant", "ops"),
    [("extended", ["FusedConv"]), ("all", ["Conv", "ReorderOutput"]), ("qoperator", [])],
)
def test_a_variant_is_made_and_agrees(
    small: str, tmp_path: Path, variant: str, ops: list[str]
) -> None:
    case = Case(small, variant)
    assert optimized.contrib(case.made(tmp_path)) == ops
    found = optimized.checked(case, tmp_path)
    if variant == "qoperator" and saturates_sums():
        pytest.skip("ONNX Runtime's products of bytes saturate here")
    assert found.status in ("agrees", "one step"), found.error


def test_a_variant_that_changes_nothing(small: str, tmp_path: Path) -> None:
    found = optimized.checked(Case(small, "4bits"), tmp_path)
    assert found.status == "not made"


def test_the_command(small: str) -> None:
    result = CliRunner().invoke(command.app, ["optimized", small, "--variant", "basic"])
    assert result.exit_code == 0, result.output
    assert f"{small}.basic" in result.output
    assert "agrees" in result.output
    for words in (["unheard"], [small, "--variant", "unheard"]):
        result = CliRunner().invoke(command.app, ["optimized", *words])
        assert result.exit_code == 2
        assert "unheard" in result.output
