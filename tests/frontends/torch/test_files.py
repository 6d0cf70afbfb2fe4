"""Files of exported programs."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import clew


def test_a_saved_program_is_a_model(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    torch.export.save(torch.export.export(network, (x,)), tmp_path / "network.pt2")
    compiled = clew.compile(tmp_path / "network.pt2")
    np.testing.assert_allclose(compiled(x), network(x).detach(), atol=1e-5)
    assert {"0", "1", "2"} <= set(compiled.trace.layers)


def test_a_damaged_file_is_a_coded_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch logs the reason, which the error has instead."""
    (tmp_path / "network.pt2").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(clew.ClewError, match=r"M052.*not a ZIP archive"):
        clew.load(tmp_path / "network.pt2")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("torch.export").filters


def test_an_operator_that_torch_does_not_know(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(4, 8), (torch.randn(3, 4),))
    torch.export.save(program, tmp_path / "linear.pt2")
    with (
        zipfile.ZipFile(tmp_path / "linear.pt2") as archive,
        zipfile.ZipFile(tmp_path / "other.pt2", "w") as other,
    ):
        for name in archive.namelist():
            other.writestr(name, archive.read(name).replace(b"aten.linear", b"aten.lineal"))
    with pytest.raises(clew.ClewError, match=r"M052.*no operator torch.ops.aten.lineal"):
        clew.load(tmp_path / "other.pt2")


@pytest.mark.parametrize("made", ["scripted", "traced", "frozen"])
def test_torchscript_is_imported(made: str, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    script = torch.jit.trace(network, x) if made == "traced" else torch.jit.script(network)
    script = torch.jit.freeze(script) if made == "frozen" else script
    torch.jit.save(script, tmp_path / "network.pt")
    with pytest.raises(clew.ClewError, match=r"I002.*TorchScript(?s:.*)torch\.jit\.load"):
        clew.load(tmp_path / "network.pt")
    loaded = torch.jit.load(tmp_path / "network.pt").eval()
    compiled = clew.compile(clew.from_torch(loaded, (x,)), threads=1)
    np.testing.assert_allclose(compiled(x), network(x).detach(), atol=1e-5)
    with pytest.raises(clew.ClewError, match=r"I410.*fixed sizes"):
        clew.from_torch(loaded, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with pytest.raises(clew.ClewError, match="M050"):
        clew.from_torch(loaded, (torch.randn(3, 5),))
