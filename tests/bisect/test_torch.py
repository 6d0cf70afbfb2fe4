"""Exported programs, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew.cli.app import main
from clew.frontends.building import call
from clew.frontends.torch import registry
from clew.support.errors import ClewError
from opinfo.quick import quicken


class Net(nn.Module):
    """A network with a buffer that each call changes, and several results."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(8, 8), nn.LeakyReLU(0.3)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.steps.add_(1)
        low, high = (self.act(self.up(x)) * self.steps).chunk(2, -1)
        return {"high": high.tanh(), "low": low}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    quicken()
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("programs") / "net.pt2"
    torch.export.save(torch.export.export(Net().eval(), (torch.randn(3, 8),)), path)
    return path


def inputs() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)}


def test_a_wrong_converter_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(layer: Any) -> Any:
        return call("nn.leaky_relu", layer.tensor("self"), alpha=0.01)

    monkeypatch.setitem(registry._CONVERTERS, "leaky_relu", {1: wrong})
    verdict = clew.bisect(model, inputs(), reference="torch", threads=1)
    assert (verdict.kind, verdict.layers, verdict.reference) == ("import", ("act",), "torch")
    assert verdict.reduced is not None
    assert verdict.reduced.operators == 1


def test_other_models_are_refused(model: Path) -> None:
    module = clew.load(model)
    assert set(clew.Inputs(module).named_inputs(inputs()["x"])) == {"x", "steps"}
    with pytest.raises(ClewError, match="I174"):
        clew.bisect(module, inputs(), reference="torch")


def test_the_command_runs_torch_for_its_files(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["clew", "bisect", str(model), "--threads", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "none: the outputs are correct" in printed
    assert "off torch" in printed
