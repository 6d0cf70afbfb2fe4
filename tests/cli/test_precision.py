"""`clew precision`: the layers that an error comes from, as a table and as JSON."""

from __future__ import annotations

import json

import pytest

import clew
import zoo
from clew.cli import app
from clew.compare.precision import Deviation, Kept, PrecisionReport


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["precision", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_layers_and_what_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("resnet_tiny")
    asked = (path, "--seeds", 2, "--error", "2e-3", "--savings", 2, "--threads", 1)
    code, out, err = command(capsys, *asked, "--layers", 3)
    assert code == 0, err
    assert "random inputs, seed 1" in err
    assert "more layers: --layers 0" in out
    assert "over 2 sets of inputs" in out
    assert "at most 0.002" in out
    code, out, err = command(capsys, *asked, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["precision"] == "bf16"
    assert report["kept"]["left"]["worst"] <= 2e-3
    assert all(name in out for name in report["kept"]["keep_f32"])
    assert [layer["without"] is not None for layer in report["layers"]][:3] == [True, True, False]


def test_a_bound_out_of_reach_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deviation(2e-2, 1e-2)
    report = PrecisionReport("bf16", 1, made, 0.0, (), Kept(1e-2, (), made, met=False))
    monkeypatch.setattr(clew, "precision_report", lambda *_, **__: report)
    code, out, err = command(capsys, zoo.path("resnet_tiny"), "--seeds", 1, "--error", "1e-2")
    assert code == 1
    assert "share" in out
    assert "C093" in err


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys, "model.clew")[0] == 2
    code, _, err = command(capsys, zoo.path("resnet_tiny"), "--precision", "f32")
    assert code == 1
    assert "I013" in err
