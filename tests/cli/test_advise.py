"""`clew advise` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.cli.app import main

from ..advised_models import two_linear_layers


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of a model with a late selection, which makes it many times slower."""
    path = tmp_path / "model.onnx"
    path.write_bytes(two_linear_layers().SerializeToString())
    return path


def ran(*arguments: Any) -> int:
    """Runs a command and returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in ("advise", *arguments)])
    code = ended.value.code
    return int(code) if isinstance(code, int) else 0


COMMON = ("--threads", 1, "--minutes", 0.1, "--rule", "late-selection")


def test_a_page_and_data(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(model, *COMMON) == 0
    out = capsys.readouterr().out
    assert "select 1 of 64 elements before 3 products, not after" in out
    assert "ceiling" in out
    assert ran(model, *COMMON, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "clew.advice/1"
    assert [a["rule"] for a in (*data["advice"], *data["others"])] == ["late-selection"]


def test_apply_writes_the_changed_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clew.advice import race  # noqa: PLC0415

    won = race.Outcome("won", 1e6, 0.5, 0.4, 0.6, 12)
    monkeypatch.setattr(race.Race, "race", lambda *a, **k: won)
    target = tmp_path / "better.onnx"
    assert ran(model, *COMMON, "--apply", 1, "-o", target) == 0
    x = np.random.default_rng(0).standard_normal((1, 64, 32)).astype("f")
    before, after = (next(iter(clew.compile(m).run({"x": x}).values())) for m in (model, target))
    np.testing.assert_allclose(before, after, rtol=1e-3, atol=1e-4)

    def refused(*a: Any, **k: Any) -> Any:
        raise AssertionError("the second time, nothing is measured")

    monkeypatch.setattr(race.Race, "race", refused)
    target.unlink()
    assert ran(model, *COMMON, "--apply", 1, "-o", target) == 0
    assert target.exists()
    assert ran(model, *COMMON, "--apply", 7, "-o", target) == 1


def test_wrong_use(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(model, "--apply", "1") == 2
    assert ran(model, "--apply", "one", "-o", tmp_path / "x.onnx") == 2
    assert ran(model, "--rule", "nothing") == 1
    assert "I513" in capsys.readouterr().err
    assert ran(tmp_path / "none.onnx") == 1


def test_rules_from_a_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from clew.advice.rule import _rules  # noqa: PLC0415

    program = tmp_path / "mine.py"
    program.write_text(
        "import clew\n"
        "from clew.advice import AdviceRule\n\n\n"
        "@clew.register_advice\n"
        "class Mine(AdviceRule):\n"
        "    name = 'mine'\n"
        "    title = 'nothing'\n\n"
        "    def find(self, subject):\n"
        "        return []\n"
    )
    try:
        assert ran(model, "--threads", 1, "--rules-from", program, "--rule", "mine") == 0
    finally:
        _rules.pop("mine", None)
    assert "no advice" in capsys.readouterr().out
