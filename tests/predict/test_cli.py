"""`clew dataset` and `clew predict`: data on stdout, notes on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from clew.cli.app import main
from clew.machine.rates import DEFAULT_RATES, Rates
from clew.predict.table import read_table
from zoo import loops


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    out = capsys.readouterr()
    return int(left.value.code or 0), out.out, out.err


@pytest.fixture
def model(tmp_path: Path, small_network: Any) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(small_network(1), path)
    return path


def test_a_models_kernels_are_measured(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.parquet"
    words = ("dataset", str(model), "-o", str(table), "--threads", "1", "--json")
    code, out, _ = _run(capsys, *words)
    assert code == 0
    said = json.loads(out)
    assert (said["networks"], said["rows"]) == (1, read_table(table).num_rows)
    code, out, _ = _run(capsys, *words[:-1])
    assert code == 0
    assert "skipped" in out


@pytest.mark.parametrize(
    "words",
    [("--threads", "none"), ("--precision", "f8"), ("--fuse", "some"), ("--networks", "-1")],
)
def test_wrong_options_of_dataset(
    words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(capsys, "dataset", *words)[0] == 2


def test_regions_on_other_backends_are_left_out_and_named(
    model: Path, lawful: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("predict", str(model), "--table", str(lawful), "--threads", "1", "--json")
    code, out, _ = _run(capsys, *words)
    assert code == 0
    whole = json.loads(out)
    code, out, err = _run(capsys, *words, "--backend", "numpy")
    assert code == 0
    rest = json.loads(out)
    assert len(rest["kernels"]) < len(whole["kernels"])
    assert " on numpy" in err
    assert "not native kernels and are not included" in " ".join(err.split())
    code, _, err = _run(capsys, *words, "--backend", "numpy", "--place", "auto")
    assert code == 1
    assert "I357" in err


def test_a_model_is_predicted(
    model: Path, lawful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _run(
        capsys, "predict", str(model), "--table", str(lawful), "--threads", "1", "--json"
    )
    assert code == 0
    said = json.loads(out)
    assert said["low_ns"] < said["total_ns"] < said["high_ns"]
    predictor = tmp_path / "p.clewp"
    code, out, _ = _run(capsys, "predict", "--train", str(lawful), "-o", str(predictor))
    assert code == 0
    assert "networks held out" in out
    words = ("predict", str(model), "--predictor", str(predictor), "--threads", "1")
    code, out, _ = _run(capsys, *words)
    assert code == 0
    assert "predicted, not run" in out
    assert "estimated" in out
    code, out, _ = _run(capsys, *words, "--json")
    assert json.loads(out)["total_ns"] == pytest.approx(said["total_ns"])


def test_a_loops_iterations_are_shown(
    lawful: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("predict", "--table", str(lawful), "--threads", "1")
    _, out, _ = _run(capsys, *words, str(loops.scan(tmp_path / "scan.onnx", 40)))
    assert "µs/iteration" in out
    _, out, err = _run(capsys, *words, str(loops.ended(tmp_path / "ended.onnx")))
    assert "known only during a run" in err
    assert "?" in out


def test_rates_that_cannot_be_stored_are_no_error(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    (tmp_path / "machine.json").mkdir()
    monkeypatch.setattr("clew.machine.measure.measured_rates", lambda say: DEFAULT_RATES)
    code, out, err = _run(capsys, "predict", str(model), "--threads", "1", "--json")
    assert code == 0
    assert json.loads(out)["total_ns"] > 0
    assert "I291" in err
    assert "description" in err


def test_a_model_is_predicted_without_a_table(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    measured: list[Any] = []

    def rates(say: Any) -> Rates:
        measured.append(say)
        return DEFAULT_RATES

    monkeypatch.setattr("clew.machine.measure.measured_rates", rates)
    for _ in range(2):
        code, out, err = _run(capsys, "predict", str(model), "--threads", "1", "--json")
        assert code == 0
        said = json.loads(out)
        assert said["low_ns"] < said["total_ns"] < said["high_ns"]
        assert "description" not in err
    assert len(measured) == 1  # the rates are stored
    code, out, err = _run(capsys, "predict", str(model), "--target", "cpu-avx512")
    assert code == 0
    assert "description" in err
    assert "predicted, not run" in out


def test_what_is_missing_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--table", "t.parquet", "--predictor", "p.clewp")
    code, _, err = _run(capsys, "predict", str(model), "--threads", "1", *both)
    assert code == 1
    assert "I187" in err
    assert _run(capsys, "predict")[0] == 2
    assert _run(capsys, "predict", "--train", "t.parquet")[0] == 2
    assert _run(capsys, "predict", "model.clew", "--table", "t.parquet")[0] == 2
