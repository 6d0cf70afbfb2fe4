"""The script times prompts and tokens of a small model, and leaves out engines that are missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import typer
from tests.generation.folders import write_model
from typer.testing import CliRunner

import language_models


def test_a_small_model(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(language_models.main)
    folder = write_model(tmp_path / "model")
    options = ("--context", "5", "--tokens", "2", "--rounds", "1", "--precision", "f32,auto")
    found = CliRunner().invoke(app, [str(folder), *options])
    assert found.exit_code == 0, found.output
    lines = [line for line in found.output.splitlines() if "clew," in line]
    assert len(lines) == 2
    assert all("| 5 |" in line for line in lines)


def test_a_missing_engine_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Model:
        wiring = type("Wiring", (), {"vocabulary": 7})()

    def made(*_: object) -> object:
        return type("Made", (), {"model": Model()})()

    monkeypatch.setattr(language_models, "Clew", made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    engines, vocabulary = language_models.engines_of(Path("model.gguf"), 1, ["f32"], 8)
    assert (list(engines), vocabulary) == (["clew, f32"], 7)
    assert "llama_cpp is not installed" in capsys.readouterr().out
