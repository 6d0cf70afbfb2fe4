"""`clew profile`: tables, JSON, files, and one kernel's lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.generation.folders import write_model

import zoo
from clew.cli import app

QUICK = ("--threads", 1, "--repeats", 2, "--no-roofline")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["profile", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_kernels_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("keyword_spotting")
    code, out, err = command(capsys, path, *QUICK, "--sample", 0, "--top", 2)
    assert code == 0, err
    assert "random inputs, seed 0" in err
    assert "11 more" in out
    assert "outside kernels" in out
    assert "estimate" in out
    code, out, err = command(capsys, path, *QUICK, "--sample", 0, "--all", "--by", "operator")
    assert code == 0, err
    assert "known by" in out
    assert "FLOPs (estimate)" in out
    assert len([line for line in out.splitlines() if "nn." in line]) > 20


def test_data_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("if_branches")
    code, out, err = command(capsys, path, *QUICK, "--sample", 0, "--json", "--mode", "both")
    assert code == 0, err
    report = json.loads(out)
    assert report["schema"] == "clew.profile/2"
    assert report["model"] == str(path)
    assert report["unfused"]["mode"] == "unfused"
    assert report["gains"][0]["layer"] is None


@pytest.mark.parametrize("name", ["p.json", "p.trace.json", "p.parquet", "p.csv"])
def test_files(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = zoo.path("loop_recurrence")
    code, _, err = command(capsys, path, *QUICK, "--sample", 0, "-o", tmp_path / name)
    assert code == 0, err
    assert f"written to {tmp_path / name}" in err
    assert (tmp_path / name).stat().st_size > 100
    if name == "p.trace.json":
        assert "traceEvents" in json.loads((tmp_path / name).read_text())


def test_the_lines_of_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("keyword_spotting")
    code, _, err = command(capsys, path, *QUICK, "--sample", 0, "--kernel", "conv2d_add_relu")
    assert code == 1
    assert "error[I114]" in err
    code, _, err = command(capsys, path, *QUICK, "--sample", 0, "--kernel", "conv9")
    assert code == 1
    assert "error[I113] no kernel named 'conv9' has run" in err


@pytest.mark.parametrize(
    "arguments",
    [("--mode", "melted"), ("--by", "line"), ("-o", "p.txt"), ("--top", "0"), ("--sample", "-1")],
)
def test_wrong_use(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, zoo.path("if_branches"), *arguments)
    assert code == 2
    assert not out
    assert arguments[0].lstrip("-") in err or "-o" in err


def test_costs_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path / "model")
    code, out, err = command(capsys, folder, "--length", 8, "--prompt", 4, "--threads", 1)
    assert code == 0, err
    assert "decode: 1 after 8 tokens" in out
    assert "prefill: 4 after 0 tokens" in out
