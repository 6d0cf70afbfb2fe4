"""A page that wants much at once stays in command: a browser has six connections, no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from explorer_page import ExplorerPage
from playwright.sync_api import expect


@pytest.fixture
def slow(models: dict[str, Path], tmp_path: Path) -> Path:
    """A model of this test alone: no server has compiled it."""
    path = tmp_path / "slow.onnx"
    path.write_bytes(models["slow"].read_bytes())
    return path


def test_many_panes_of_a_build_under_way(
    explore: Callable[..., ExplorerPage], slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", "0")
    page = explore(slow, "--b", "opt_level=0")
    kinds = ("stage:0", "loops:0", "llvm:0", "asm:0", "model:0", "schedule:0", "kernels:0")
    panes = "&".join(f"p={build}/{kind}" for build in "ab" for kind in kinds)
    page.page.goto(f"{page.url}#{panes}")
    for build in "AB":
        page.page.get_by_role("button", name=f"Cancel Compiling {build}").click()
    expect(page.page.get_by_role("button", name="Cancel Compiling")).to_have_count(0)
    start = page.page.evaluate("fetch('api/start').then((r) => r.json())")
    assert {build["state"] for build in start["builds"]} == {"cancelled"}
