"""Files of exported programs."""

from __future__ import annotations

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


def test_a_damaged_file_is_a_coded_error(tmp_path: Path) -> None:
    (tmp_path / "network.pt2").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(clew.ClewError, match="M052"):
        clew.load(tmp_path / "network.pt2")
