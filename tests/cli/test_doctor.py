"""`clew doctor`: what it reports, and how it fails."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clew.cli import app, doctor

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
OURS = {"test", "models", "exports", "bench", "demo", "dev", "site"}


def _run(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["doctor", *typed])
    return int(left.value.code or 0), capsys.readouterr().out


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    checks = {"one": lambda: "well"}
    monkeypatch.setattr(doctor, "_CHECKS", checks)
    return checks


def test_a_sound_installation_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = _run(capsys)
    assert code == 0, out
    assert "FAILED" not in out
    assert "layers traced" in out


def test_a_wrong_result_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_TOLERANCE", -1.0)
    code, out = _run(capsys, "--json")
    assert code == 1
    failed = [each for each in json.loads(out)["checks"] if not each["passed"]]
    assert [each["name"] for each in failed] == ["self-test"]
    assert "has an error of" in failed[0]["found"]


def test_a_cache_that_cannot_be_written_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setitem(doctor._CHECKS, "self-test", lambda: "")
    code, out = _run(capsys)
    assert code == 1
    assert "FAILED  cache: " in out


def test_missing_extras_are_shown_with_their_command(
    capsys: pytest.CaptureFixture[str], quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = doctor._installed
    monkeypatch.setattr(
        doctor, "_installed", lambda name: None if name == "pyarrow" else found(name)
    )
    code, out = _run(capsys)
    assert code == 0
    assert "ok      one: well" in out
    assert "pip install 'clew[map]' (needs pyarrow)" in out


def test_every_extra_for_users_is_described() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert set(extras) - OURS == set(doctor.EXTRAS)
