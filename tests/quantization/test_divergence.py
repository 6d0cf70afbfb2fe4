"""The divergence of logits by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.generation.folders import VOCABULARY, write_model

import clew
from clew.quantization import Scheme
from clew.quantization.divergence import divergence

Array = np.ndarray[Any, Any]
SCHEME = Scheme.weight_only(weight_range="minmax", migration=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small")


def distributions(model: Any, ids: Array) -> Array:
    x = clew.compile(model, threads=1).session()(ids)[0].astype(np.float64)
    power = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def test_each_layer_alone_and_all_together(folder: Path) -> None:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, 40))
    q = clew.quantize(folder, [ids], scheme=SCHEME, sensitivities=True, threads=1)
    exact = distributions(folder, ids)

    def measured(model: Any) -> float:
        found = distributions(model, ids)
        return float(np.mean(np.sum(exact * np.log(exact / found), -1)))

    assert q.divergence == pytest.approx(measured(q.module), rel=1e-3)
    names = [row.layer for row in q.layers]
    for row in q.layers[::3]:
        others = [name for name in names if name != row.layer]
        alone = clew.quantize(folder, [ids], scheme=SCHEME, keep=others, threads=1)
        assert row.divergence == pytest.approx(measured(alone.module), rel=1e-2)
    assert q.to_json()["layers"][0]["divergence"] == q.layers[0].divergence
    text = str(q)
    assert "KL" in text
    assert all(name in text for name in names)  # long names are not cut


def test_positions_may_be_drawn_and_outputs_named(folder: Path) -> None:
    with pytest.warns(clew.ClewWarning, match="I395"):
        q = clew.quantize(folder, "drawn", scheme=SCHEME, sensitivities=True, threads=1)
    assert all(row.divergence is not None and row.divergence > 0 for row in q.layers)
    plain = clew.quantize(folder, [np.array([[3, 4]])], scheme=SCHEME, threads=1)
    assert plain.divergence is None
    with pytest.raises(clew.ClewError, match="I408"):
        clew.quantize(folder, [np.array([[3, 4]])], scheme=SCHEME, logits="scores")


def test_divergences_add_positions() -> None:
    a, b = (np.random.default_rng(n).standard_normal((1, 600, 5)) for n in range(2))
    whole = divergence([a], [b])
    parts = divergence([a[:, :7], a[:, 7:]], [b[:, :7], b[:, 7:]])
    assert whole == pytest.approx(parts)
    assert divergence([a], [a]) == 0
    assert divergence([], []) == 0
