"""Reproducers fail as long as the defect is there, in this process and in others."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import nets
import numpy as np
import onnx
import pytest
import wrong_pass
from onnx import TensorProto, helper

import clew
from clew.bisection.reproducer import replay
from clew.cli import app
from clew.codegen.math import polynomials
from clew.compiling.extensions import extensions_of
from clew.frontends.building import call
from clew.frontends.onnx import registry
from clew.ir.textfile import load_arrays, save_arrays, save_module
from clew.support.errors import ClewError


def script(folder: Path) -> int:
    """Runs a reproducer in this process, where defects are wrong_pass."""
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(folder / "reproduce.py"), run_name="__main__")
    return int(left.value.code or 0)


def test_a_users_pass_goes_along(tmp_path: Path) -> None:
    verdict = clew.bisect(*nets.conv(), threads=1, cache=False, extend=[wrong_pass.smoother])
    assert (verdict.kind, verdict.pass_name) == ("pass", "smoother")
    folder = verdict.write(tmp_path / "found")
    names = {p.name for p in folder.iterdir()}
    assert {"module.clew", "inputs.npz", "expected.npz", "wrong_pass.py", "report.md"} <= names
    report = json.loads((folder / "report.json").read_text())
    assert report["pass_name"] == "smoother"
    assert report["reduced"]["operators"] == 1
    assert "nn.silu" in (folder / "report.md").read_text()
    done = subprocess.run(
        [sys.executable, str(folder / "reproduce.py")],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 1, done.stderr
    assert "off the expected result" in done.stdout
    (folder / "wrong_pass.py").unlink()
    with pytest.raises(ClewError) as raised:
        replay(folder)
    assert raised.value.code == "I175"


def test_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = nets.mlp()
    with monkeypatch.context() as plant:
        plant.setattr(polynomials, "TANH_F32", tuple(c * 1.3 for c in polynomials.TANH_F32))
        verdict = clew.bisect(
            module, inputs, threads=1, cache=False, extend=[wrong_pass.by_hand], reference="opt0"
        )
        # Level 0 has the same machine code: what the graph means decides.
        assert verdict.kind == "none", str(verdict)
        verdict = clew.bisect(module, inputs, threads=1, cache=False, extend=[wrong_pass.by_hand])
        assert verdict.kind == "codegen", str(verdict)
        folder = verdict.write(tmp_path)
        assert script(folder) == 1
    assert script(folder) == 0


def test_a_layer_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _one_layer(tmp_path)
    inputs = {"x": nets.array(2, 3)}
    with monkeypatch.context() as plant:
        for since in list(registry._CONVERTERS["", "Selu"]):
            plant.setitem(
                registry._CONVERTERS["", "Selu"],
                since,
                lambda layer: call("nn.relu", layer.input(0)),
            )
        verdict = clew.bisect(path, inputs, reference="onnxruntime", threads=1, cache=False)
        assert verdict.kind == "import", str(verdict)
        folder = verdict.write(tmp_path / "found")
        assert (folder / "model.onnx").exists()
        assert script(folder) == 1
    assert script(folder) == 0


def _one_layer(folder: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Selu", ["x"], ["y"], name="selu")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    path = folder / "one.onnx"
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_values_of_every_dtype_are_kept(tmp_path: Path) -> None:
    from clew.bisection import reproducer  # noqa: PLC0415

    values = {
        "a.b": np.arange(3).astype(ml_dtypes.bfloat16),
        "c": np.array([True, False]),
        "d": np.float32(2.5),
    }
    save_arrays(tmp_path / "values.npz", reproducer._arrays(values))
    found = dict(load_arrays(tmp_path / "values.npz"))
    assert {n: v.dtype for n, v in found.items()} == {
        n: np.asarray(v).dtype for n, v in values.items()
    }
    assert {n: v.shape for n, v in found.items()} == {"a.b": (3,), "c": (2,), "d": ()}
    np.testing.assert_array_equal(found["a.b"], values["a.b"])


def test_a_sound_model_leaves_a_report_alone(tmp_path: Path) -> None:
    verdict = clew.bisect(*nets.mlp(), threads=1)
    verdict.write(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.json", "report.md"]
    with pytest.raises(ClewError) as raised:
        replay(tmp_path)
    assert raised.value.code == "I175"
    with pytest.raises(ClewError) as raised:
        verdict.write(tmp_path / "report.md" / "below")
    assert raised.value.code == "I172"


# --- the command ----------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["bisect", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [
            helper.make_node("Exp", ["x"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="act"),
            helper.make_node("Tanh", ["b"], ["y"], name="last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
    )
    path = tmp_path / "net.onnx"
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, model, "--threads", 1, "-o", tmp_path / "right")
    assert code == 0, err
    assert out.startswith("none: ")
    assert "no error found" in err
    assert not (tmp_path / "right").exists()
    plants = Path(wrong_pass.__file__)
    asked = (model, "--threads", 1, "--extend", plants, "--against", "interpreter")
    code, out, err = command(capsys, *asked, "-o", tmp_path / "found")
    assert code == 0, err
    assert out.startswith("pass: smoother at act computes something else")
    assert "comparisons" in out
    assert "the part that fails alone" in out
    assert "reproducer in" in err
    assert (tmp_path / "found" / "reproduce.py").exists()
    code, out, err = command(capsys, *asked, "--json", "--seconds", 0)
    assert code == 0, err
    report: dict[str, Any] = json.loads(out)
    assert (report["kind"], report["layers"]) == ("pass", ["act"])
    assert "reduced" not in report


def test_an_outcome_that_nothing_explains(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = clew.load(model)
    verdict = clew.bisect(module, {"x": nets.array(2, 8)}, threads=1)
    unknown = type(verdict)("unknown", 1.0, 1e-3, "nothing", "nobody knows")
    monkeypatch.setattr(clew, "bisect", lambda *_, **__: unknown)
    code, out, err = command(capsys, model)
    assert code == 1
    assert "C094" in err
    assert "nobody knows" in out


def test_wrong_use(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys, "model.clew")[0] == 2
    code, _, err = command(capsys, model, "--against", "nobody")
    assert code == 1
    assert "I170" in err
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("x = \n")
    for name in ("empty.py", "broken.py", "missing.py"):
        with pytest.raises(ClewError) as raised:
            extensions_of([tmp_path / name])
        assert raised.value.code == "I176"


def test_the_file_of_a_reproducer_names_no_modules_of_others(tmp_path: Path) -> None:
    module, inputs = nets.mlp()
    del inputs
    record = {"kind": "pass", "tolerance": 0.0, "opt_level": 3, "target": None}
    report = {"check": {**record, "pass": {"module": "os", "name": "system", "options": {}}}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    save_module(module, tmp_path / "module.clew")
    for name in ("inputs.npz", "expected.npz"):
        np.savez(tmp_path / name)
    with pytest.raises(ClewError, match="clew has no pass system") as raised:
        replay(tmp_path)
    assert raised.value.code == "I175"
    report["check"]["pass"] = {
        "module": "clew.passes.simplify.dead_code",
        "name": "DeadCode",
        "options": {},
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(ClewError) as raised:
        replay(tmp_path)
    assert raised.value.code == "I022"  # the pass is found, the module's input is not
