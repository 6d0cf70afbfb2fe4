"""The page is built when its sources change, by whichever Node there is, or it is said why not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import build_explorer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A frontend of three files, and the folder for what is built of it."""
    frontend = tmp_path / "frontend"
    (frontend / "src").mkdir(parents=True)
    for name in build_explorer._FILES:
        (frontend / name).write_text("{}")
    (frontend / "src" / "main.tsx").write_text("1")
    static = tmp_path / "static"
    monkeypatch.setattr(build_explorer, "FRONTEND", frontend)
    monkeypatch.setattr(build_explorer, "STATIC", static)
    monkeypatch.setattr(build_explorer, "STAMP", static / ".digest")
    return frontend


def test_a_page_is_fresh_until_a_source_changes(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def run(npm: list[str], *words: str) -> None:
        calls.append(words)
        build_explorer.STATIC.mkdir(exist_ok=True)

    monkeypatch.setattr(build_explorer, "_npm", lambda: ["npm"])
    monkeypatch.setattr(build_explorer, "_run", run)
    assert not build_explorer.is_fresh()
    build_explorer.build(say=lambda _: None)
    assert [words[:2] for words in calls] == [("ci", "--include=dev"), ("run", "build")]
    assert build_explorer.is_fresh()
    build_explorer.build(say=lambda _: None)
    assert len(calls) == 2
    for change in ("src/main.tsx", "package-lock.json"):
        before = (tree / change).read_text()
        (tree / change).write_text("changed")
        assert not build_explorer.is_fresh()
        (tree / change).write_text(before)
    (tree / "src" / "more.ts").write_text("")
    assert not build_explorer.is_fresh()


@pytest.mark.parametrize(
    ("version", "taken"), [("v20.1.0", True), ("v24.0.0", True), ("v18.19.0", False), ("", False)]
)
def test_nodes_that_are_too_old_are_not_taken(
    version: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_explorer.shutil, "which", lambda name: f"/bin/{name}")
    answered = SimpleNamespace(stdout=version)
    monkeypatch.setattr(build_explorer.subprocess, "run", lambda *a, **k: answered)
    assert build_explorer.node_on_path() == (["/bin/npm"] if taken else None)


def test_a_failure_says_why_and_what_to_do(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_explorer, "_npm", lambda: ["false"])
    with pytest.raises(build_explorer.BuildError, match="CLEW_SKIP_BUNDLE") as raised:
        build_explorer.build(say=lambda _: None)
    assert "npm ci" in str(raised.value)
    assert not build_explorer.is_fresh()


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((ROOT / "frontend" / "package-lock.json").read_text())
    packages = {k: v for k, v in lock["packages"].items() if k}
    assert packages
    assert [name for name, about in packages.items() if "resolved" in about] == []
    assert [name for name, about in packages.items() if "integrity" not in about] == []


def test_no_build_product_is_in_git() -> None:
    done = subprocess.run(
        ["git", "ls-files", "src/clew/static", "frontend/node_modules", "frontend/dist-test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
