from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zoo
from clew.bench.engines import Engine, engines
from clew.frontends.pt2 import ExportedProgram
from clew.support.difference import relative_error


def test_an_engine_is_installed_when_all_its_modules_are() -> None:
    assert Engine("a", lambda *_: list, ("numpy",)).installed
    assert not Engine("a", lambda *_: list, ("numpy", "no_such_module")).installed


def test_engines_agree_on_a_small_network() -> None:
    path, feed = zoo.path("keyword_spotting"), zoo.inputs("keyword_spotting")
    known = [e for e in engines().values() if e.installed and "onnx" in e.reads]
    first, *others = [e.prepare(path, 1, "f32").run(feed) for e in known]
    assert others
    for values in others:
        assert max(map(relative_error, values, first)) < 1e-5


def test_a_program_of_torch_takes_inputs_by_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: object, *, scale: object) -> object:
            return {"difference": x - scale, "product": x * scale}  # type: ignore[operator]

    x, scale = np.ones((2, 3), "f4"), np.full((3,), 2.0, "f4")
    arguments = (torch.from_numpy(x),), {"scale": torch.from_numpy(scale)}
    path = tmp_path / "network.pt2"
    torch.export.save(torch.export.export(Network(), *arguments), path)
    for narrow in (False, True):
        run = ExportedProgram().compiled(path, 1, "eager", narrow)
        difference, product = run({"scale": scale, "x": x})
        assert (difference == -1).all()
        assert (product == 2).all()
