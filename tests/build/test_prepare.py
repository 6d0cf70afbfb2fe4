"""Programs for all sizes are prepared: the first call evaluates no dimension for the first time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.ir.dim_code import DimLists
from clew.ir.dims import Dim


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[DimLists]:
    """The evaluators of dimensions made since."""
    found: list[DimLists] = []
    plain = DimLists.__init__

    def noted(self: DimLists, *lists: Sequence[Dim]) -> None:
        found.append(self)
        plain(self, *lists)

    monkeypatch.setattr(DimLists, "__init__", noted)
    return found


def _model() -> clew.Module:
    return clew.parse(
        """
        def @main(%x: f32[n, 8]) -> f32[n, 8] {
          %0: f32[n, 8] = nn.relu(%x)
          return %0
        }
        """
    )


def test_before_the_first_call(made: list[DimLists], tmp_path: Path) -> None:
    compiled = clew.compile(_model(), threads=1, cache=False)
    assert made
    made.clear()
    compiled.run({"x": np.ones((3, 8), np.float32)})
    compiled.run({"x": np.ones((5, 8), np.float32)})
    assert not made
    compiled.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    assert made
    made.clear()
    loaded.run({"x": np.ones((4, 8), np.float32)})
    assert not made
