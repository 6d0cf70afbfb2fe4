"""Commands on a model of free sizes, which inputs in files settle: kernels and graphs show the
names, figures and values are those of the inputs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import zoo
from clew.cli import app
from clew.machine.target import host

NAME = "bert_tiny_dynamic"
BATCH, SEQUENCE = 2, 7
# With a matrix unit, a layer of free rows has two forms.
GELU = f"dense{'_by_rows' if host().tile_shape('bf16', 'bf16') else ''}_add_gelu"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    files = []
    for name, value in zoo.inputs(NAME, batch=BATCH, sequence=SEQUENCE).items():
        np.save(tmp_path / f"{name}.npy", value)
        files += ["-i", f"{name}={tmp_path / name}.npy"]

    def run(name: str, *arguments: str) -> str:
        with pytest.raises(SystemExit) as left:
            app.main([name, str(zoo.path(NAME)), *arguments, *files])
        captured = capsys.readouterr()
        assert not left.value.code, captured.err
        return captured.out

    return run


def test_a_story_and_loops_have_names(command: Any) -> None:
    story = command("trace", "--layer", "node_MatMul_119")
    assert "f32[batch, sequence, 512]" in story
    kernel = json.loads(command("trace", "--kernel", GELU, "--json"))
    head, *loops = kernel["loops"].splitlines()
    assert "in0: f32[batch*sequence, 128]" in head
    assert "  size %s0 = batch*sequence" in loops
    assert any(re.search(r"parallel .* in .*%s\d+.*:$", line) for line in loops)


def test_a_trace_needs_no_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        app.main(["trace", str(zoo.path(NAME)), "--layer", "node_MatMul_119", "--threads", "1"])
    captured = capsys.readouterr()
    assert not left.value.code, captured.err
    assert "f32[batch, sequence, 512]" in captured.out


def test_every_link_holds(command: Any) -> None:
    found = json.loads(command("trace", "--verify", "--json"))
    assert found["ok"]
    assert found["checked"] > 300
    assert found["skipped"] == 0


def test_figures_are_those_of_the_inputs(command: Any) -> None:
    graph = json.loads(command("correlate", "--json"))
    assert graph["attrs"]["shape"][0] == [BATCH, SEQUENCE]
    assert all(isinstance(n, int) for shape in graph["attrs"]["shape"] for n in shape)
    assert all(isinstance(kernel["flops"], int) for kernel in graph["kernels"])
    found = json.loads(command("profile", "--json", "--repeats", "3", "--sample", "0"))
    dense = next(k for k in found["kernels"] if k["name"] == GELU)
    products = 2 * BATCH * SEQUENCE * 128 * 512
    assert dense["roof"]["flops"] > products
    assert dense["roof"]["bytes"] > 4 * BATCH * SEQUENCE * (128 + 512)


def test_values(command: Any) -> None:
    found = json.loads(command("tap", "--json", "--layer", "node_layer_norm_1"))
    assert str([BATCH, SEQUENCE, 128]) in json.dumps(found)
    assert "values are the same wherever they can be read" in command(
        "diff", str(zoo.path(NAME)), "--no-time"
    )


@pytest.fixture
def of_unknown_rank(tmp_path: Path) -> Path:
    """A model whose rank its free size decides: Squeeze removes the axis of size n if n is 1."""
    info, tensor = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["row"]),
        helper.make_node("Squeeze", ["row"], ["q"]),
        helper.make_node("MatMul", ["q", "w"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1, -1, 4]), "shape"),
        numpy_helper.from_array(np.ones((4, 3), np.float32), "w"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", tensor, ["n", 4])], [info("y", tensor, None)], constants
    )
    file = tmp_path / "rank.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file
    )
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--random"),
        ("diff", "--random", "--opt-level", "0", "3", "--rounds", "2"),
        ("bench", "--random", "--rounds", "1", "--threads", "1"),
        ("bisect", "--random"),
        ("report", "--no-profile", "--output", "report.html"),
        ("precision",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_fixed_sizes_settle_an_unknown_rank(
    of_unknown_rank: Path,
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(of_unknown_rank.parent)
    name, *others = arguments
    with pytest.raises(SystemExit) as left:
        app.main([name, str(of_unknown_rank), "--sizes", "n=2", *others])
    assert not left.value.code, capsys.readouterr().err
    if name == "diff":  # without sizes, nothing tells the rank
        with pytest.raises(SystemExit) as left:
            app.main([name, str(of_unknown_rank), *others])
        assert left.value.code == 1
        assert "U002" in capsys.readouterr().err
