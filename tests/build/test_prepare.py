"""Programs for all sizes are prepared: the first call evaluates no dimension for the first time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew.ir.dim_code import DimCode


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[DimCode]:
    """The evaluators of dimensions made since."""
    found: list[DimCode] = []
    plain = DimCode.__init__

    def noted(self: DimCode, dims: object) -> None:
        found.append(self)
        plain(self, dims)  # type: ignore[arg-type]

    monkeypatch.setattr(DimCode, "__init__", noted)
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


def test_before_the_first_call(made: list[DimCode], tmp_path: Path) -> None:
    compiled = clew.compile(_model(), threads=1, cache=False)
    assert len(made) == 1
    compiled.run({"x": np.ones((3, 8), np.float32)})
    compiled.run({"x": np.ones((5, 8), np.float32)})
    assert len(made) == 1
    compiled.save(tmp_path / "m.clew")
    made.clear()
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    assert len(made) == 1
    loaded.run({"x": np.ones((4, 8), np.float32)})
    assert len(made) == 1
