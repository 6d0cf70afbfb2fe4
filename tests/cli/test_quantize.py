"""`clew quantize`: files, a table, JSON, and wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.cli import app


def command(
    capsys: pytest.CaptureFixture[str], *arguments: object, name: str = "quantize"
) -> tuple[int, str, str]:
    threads = ("1", "1") if name == "diff" else ("1",)
    with pytest.raises(SystemExit) as left:
        app.main([name, *map(str, arguments), "--threads", *threads])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three dense layers, and data for them."""
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal((16, 16)) * 0.35).astype("f") for _ in range(3)]
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]], name=f"fc{n}")
        for n in range(3)
    ]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 16]) for n in ("x", "y")]
    held = [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "three", shapes[:1], shapes[1:], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((32, 16)).astype("f"))
    return tmp_path / "model.onnx"


def test_a_model_is_quantized_and_said_how(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    made, recipe, report = (tmp_path / n for n in ("int8.onnx", "recipe.json", "report.json"))
    files = ("-o", made, "--save-recipe", recipe, "--report", report)
    data = ("--calibration", tmp_path / "data.npz")
    picture = tmp_path / "errors.svg"
    more = ("--keep-first", 1, "--sensitivities", "--frontier", picture)
    code, out, err = command(capsys, model, *data, *files, *more)
    assert code == 0, err
    assert picture.read_text().startswith("<svg")
    assert "2 layers of 3 quantized" in out
    assert "asked for" in out
    assert all(f"written to {f}" in err for f in (made, recipe, report))
    held = json.loads(report.read_text())
    assert [row["kept"] for row in held["layers"]] == ["asked for", "", ""]
    x = np.load(tmp_path / "data.npz")["x"][:4]
    first = clew.compile(made, threads=1).run({"x": x})["y"]

    again = tmp_path / "again.onnx"
    code, out, err = command(capsys, model, "--recipe", recipe, "-o", again, "--json")
    assert code == 0, err
    assert json.loads(out)["recipe"] == held["recipe"]
    np.testing.assert_array_equal(clew.compile(again, threads=1).run({"x": x})["y"], first)


def test_the_smallest_set_in_floats(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    data = ("--calibration", tmp_path / "data.npz")
    code, out, err = command(capsys, model, *data, "--json")
    assert code == 0, err
    bound = 0.8 * json.loads(out)["error"]
    code, out, err = command(capsys, model, *data, "--max-error", bound)
    assert code == 0, err
    assert "if quantized as well" in out
    assert "evaluations over all samples" in out


def test_a_scheme_is_a_file_or_options(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "scheme.json").write_text('{"range": "minmax", "weight_bits": 7}')
    data = ("--calibration", tmp_path / "data.npz", "--json")
    code, out, err = command(
        capsys, model, *data, "--scheme", tmp_path / "scheme.json", "--weight-bits", 6,
        "--granularity", "tensor", "--no-bias-correction", "--keep", "fc[01]", "--keep-last", 0,
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)["recipe"]
    wanted = {"range": "minmax", "weight_bits": 6, "granularity": "tensor", "weights": "i8"}
    assert found["scheme"].items() >= wanted.items()
    assert found["scheme"]["bias_correction"] is False
    assert [n["layer"] for n in found["layers"]] == ["fc2"]


def test_layers_to_keep_are_a_list(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    data = ("--calibration", tmp_path / "data.npz", "--json")
    for keep in (("--keep", "fc0,fc1"), ("--keep", "fc0, fc1"), ("--keep", "fc0", "--keep", "fc1")):
        code, out, err = command(capsys, model, *data, *keep)
        assert code == 0, err
        assert [n["layer"] for n in json.loads(out)["recipe"]["layers"]] == ["fc2"]


def test_dynamic_ranges_need_no_data(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    code, out, err = command(capsys, model, "--activations", "dynamic")
    assert code == 0, err
    assert "dynamic x i8" in out


def test_weights_alone(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    made, packed = tmp_path / "int4.onnx", tmp_path / "packed.onnx"
    code, out, err = command(capsys, model, "--weight-only", "--group", 16, "-o", made)
    assert code == 0, err
    assert "float x u4 by 16" in out
    data = ("--calibration", tmp_path / "data.npz", "--rounding", "gptq", "--no-migration")
    recipe = tmp_path / "recipe.json"
    code, out, err = command(
        capsys, model, "--weight-only", "--weights", "i8", "--group", 0, *data, "--json",
        "-o", packed, "--form", "matmulnbits", "--save-recipe", recipe,
    )  # fmt: skip
    assert code == 0, err
    scheme = json.loads(out)["recipe"]["scheme"]
    wanted = {"weights": "i8", "group": 0, "rounding": "gptq", "migration": False}
    assert scheme.items() >= wanted.items()
    kinds = [{n.op_type for n in onnx.load(path).graph.node} for path in (made, packed)]
    assert "DequantizeLinear" in kinds[0]
    assert "MatMulNBits" in kinds[1]
    again = tmp_path / "again.onnx"
    code, _, err = command(
        capsys, model, "--recipe", recipe, "-o", again, "--form", "matmulnbits", "--json"
    )
    assert code == 0, err
    assert again.read_bytes() == packed.read_bytes()
    for code, given in {
        "I392": ("--weight-only", "--rounding", "gptq"),
        "I390": ("--weight-only", "--activations", "u8"),
    }.items():
        left, _, err = command(capsys, model, *given)
        assert (left, code in err) == (1, True), err
    left, _, err = command(capsys, model, "--weight-only", "--form", "gguf")
    assert (left, "I390" in err) == (1, True), err


def test_a_folder_and_drawn_data(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "0.npz", x=np.ones((4, 16), "f"))
    code, out, _ = command(capsys, model, "--calibration", tmp_path / "data", "--json")
    assert (code, json.loads(out)["recipe"]["samples"]) == (0, 1)
    code, _, err = command(capsys, model, "--calibration", "drawn")
    assert code == 0
    assert "I395" in err


def test_wrong_use(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    data = ("--calibration", tmp_path / "data.npz")
    (tmp_path / "list.json").write_text("[]")
    assert command(capsys, "model.clew", *data)[0] == 2
    for code, given in {
        "I392": (),
        "I390": (*data, "--range", "best"),
        "I394": ("--calibration", tmp_path / "absent"),
        "I398": ("--recipe", tmp_path / "data.npz"),
        "I404": (*data, "-o", tmp_path / "int8.bin"),
        "I405": (*data, "--scheme", tmp_path / "list.json"),
        "I050": (*data, "--keep", "conv*"),
        "I063": (*data, "-o", tmp_path / "absent" / "int8.onnx"),
    }.items():
        left, _, err = command(capsys, model, *given)
        assert left == 1
        assert code in err, err


def test_a_quantized_file_is_explained(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    made = tmp_path / "int8.onnx"
    data = ("--calibration", tmp_path / "data.npz")
    code, out, err = command(capsys, model, *data, "-o", made, "--times")
    assert code == 0, err
    assert "f32 µs" in out
    assert "a run takes" in out
    code, out, err = command(capsys, made, "--conversions", "--json", name="trace")
    assert code == 0, err
    rows = json.loads(out)
    assert [r["readers"] for r in rows if r["step"] == "quantize"] == [["fc0"], ["fc1"], ["fc2"]]
    code, out, err = command(capsys, made, "--layer", "fc1", name="trace")
    assert "range by mse" in out
    options = ("--random", "--no-time", "--no-reference", "--bound", "0.0001")
    code, out, err = command(capsys, model, made, *options, name="diff")
    assert code == 0, err
    assert "the first layer off by more than 0.0001 (rms) is fc" in out
