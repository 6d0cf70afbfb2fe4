"""The script times each form of a cache on a small decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import growing


def decoder(path: Path) -> Path:
    """Saves a model that adds up rows of a table, by way of a cache."""
    table = numpy_helper.from_array(np.eye(32, 8, dtype=np.float32), "table")
    axes = numpy_helper.from_array(np.array([1]), "axes")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Concat", ["past_k", "rows"], ["present_k"], axis=1),
        helper.make_node("ReduceSum", ["present_k", "axes"], ["y"]),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]),
            helper.make_tensor_value_info("past_k", floats, ["batch", "past", 8]),
        ],
        [
            helper.make_tensor_value_info("y", floats, ["batch", 1, 8]),
            helper.make_tensor_value_info("present_k", floats, ["batch", "total", 8]),
        ],
        [table, axes],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_a_small_decoder(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(growing.main)
    path = decoder(tmp_path / "decoder.onnx")
    result = CliRunner().invoke(app, [str(path), "--context", "3,9", "--tokens", "2"])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith(("| 3", "| 9", "|  9"))]
    for line in lines:
        *_, ratio = (float(cell) for cell in line.strip("| ").split("|"))
        assert ratio > 0
    assert len(lines) == 2
