"""Stages of a compilation are timed without each other; the script runs on a small model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import typer
from typer.testing import CliRunner

import compile_stages
from harness.stages_child import LevelTimes
from zoo import handmade


def _spend(seconds: float) -> None:
    stop = time.process_time() + seconds
    while time.process_time() < stop:
        pass


def test_levels_are_timed_without_those_that_they_read() -> None:
    times = LevelTimes()
    source = SimpleNamespace(use="kernel")

    def lower(_: object) -> None:
        _spend(0.2)

    def emit(of: object) -> None:
        inner(of)
        _spend(0.05)

    inner = times.around(lower, "lowering")
    times.around(emit, "emission")(source)
    assert set(times.seconds) == {("kernel", "lowering"), ("kernel", "emission")}
    assert times.seconds["kernel", "lowering"] >= 0.2
    assert 0.05 <= times.seconds["kernel", "emission"] < 0.2


def test_script_lists_every_stage(tmp_path: Path) -> None:
    model, inputs, figures = tmp_path / "m.onnx", tmp_path / "x.npz", tmp_path / "figures.json"
    onnx.save(handmade.chain(8), model)
    np.savez(inputs, x=np.zeros((1, 64), np.float32))
    app = typer.Typer()
    app.command()(compile_stages.main)
    arguments = ["--file", model, "--inputs", inputs, "--rounds", "1", "--json", figures]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    ((one,),) = json.loads(figures.read_text())["m"]
    stages = {"imports", "passes", "lowering", "schedules", "emission", "workers", "first call"}
    assert stages <= one["stages"].keys()
    assert min(one["stages"].values()) >= 0
    assert one["llvm"]["text_bytes"] > 0
    assert one["kernels"]
