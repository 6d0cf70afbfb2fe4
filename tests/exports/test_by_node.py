"""A model's nodes checked one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from exports import by_node

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[4, 8] x) => (uint8[4, 8] y, float[4, 8] e) {
    scale = Constant <value = float {0.25}> ()
    zero = Constant <value = uint8 {128}> ()
    e = Exp (x)
    y = QuantizeLinear (e, scale, zero)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


FEED = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}


def test_nodes_that_agree(model: Path) -> None:
    assert by_node.off_by_more(model, FEED, 1e-4) == []


def test_a_node_that_is_off_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = by_node._values

    def changed(*args: Any) -> Any:
        found = values(*args)
        found["y"] = np.where(found["y"] < 200, found["y"] + 2, found["y"]).astype(np.uint8)
        return found

    monkeypatch.setattr(by_node, "_values", changed)
    (name,) = by_node.off_by_more(model, FEED, 1e-4)
    assert name.startswith("QuantizeLinear")
