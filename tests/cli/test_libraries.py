"""C libraries on the command line: `clew compile --emit c` and `clew trace --address`."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import zoo
from clew.cli import app
from clew.codegen.disassemble import code_lines


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err  # type: ignore[return-value]


def test_a_model_becomes_a_library_whose_addresses_lead_to_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = zoo.path("if_branches")
    code, out, err = _run(capsys, "compile", model, "--emit", "c", "-o", tmp_path)
    assert code == 0
    assert "rule" in out
    assert f"exported C library if_branches to {tmp_path}" in err
    assert "if_branches_run" in (tmp_path / "if_branches.h").read_text()
    file = tmp_path / "if_branches.o"
    functions = code_lines(file.read_bytes()).functions
    trace = json.loads((tmp_path / "if_branches.trace.json").read_text())
    name = next(iter(trace["functions"]))
    address = hex(functions[name][0])
    code, out, _ = _run(capsys, "trace", file, "--address", address, "--json")
    assert code == 0
    assert json.loads(out)["function"] == name
    assert json.loads(out)["layers"] == trace["functions"][name]["layers"]["1"]
    code, out, _ = _run(capsys, "trace", file, "--address", address)
    assert f"function  {name}" in out
    code, _, err = _run(capsys, "trace", file, "--address", "here")
    assert code == 2
    assert "not an address" in err


def test_options_of_libraries_need_emit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = zoo.path("if_branches")
    targets = ("--targets", "x86-64-v3")
    for options in (
        ("--emit", "c"), ("--name", "x"), ("--weights-file",), ("--state", "h=y"), targets,
        (*targets, "--emit", "c", "-o", tmp_path, "--target", "x86-64-v2"),
    ):  # fmt: skip
        code, _, err = _run(capsys, "compile", model, *options)
        assert code == 2
        assert options[0] in err


def test_states_of_libraries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("h", "x", "h_new")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["h", "x"], ["h_new"])], "g", shape[:2], shape[2:]
    )
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "cell.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    options = ("--emit", "c", "-o", tmp_path, "--state", "h=h_new")
    code, _, err = _run(capsys, "compile", path, *options)
    assert code == 0
    assert "of workspace, its state 64" in err
    assert "cell_state_reset" in (tmp_path / "cell.h").read_text()


def test_targets_of_libraries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--emit", "c", "-o", tmp_path, "--targets", "x86-64-v2, x86-64-v3")
    code, _, _ = _run(capsys, "compile", zoo.path("if_branches"), *options)
    assert code == 0
    header = (tmp_path / "if_branches.h").read_text()
    assert "IF_BRANCHES_TARGET_X86_64_V2 = 0" in header
    assert "IF_BRANCHES_TARGET_X86_64_V3 = 1" in header
