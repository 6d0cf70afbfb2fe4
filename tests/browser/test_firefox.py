"""The page works in Firefox: served, and as a report from disk."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from firefox import Firefox, firefox

import clew
from clew.explorer.report import report

_PROGRAM = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = pytest.mark.skipif(_PROGRAM is None, reason="no Firefox")
_LINES = """document.querySelector('.pane[data-kind="model"] .code-host')?.shadowRoot
  ?.querySelectorAll('.cm-line[data-ref]')"""
_TEXT_BYTES, _PAINTED_S = 30_000, 20.0  # the picture of a page without text is smaller
_PANES = "#p=a/model:0&p=a/stage:0!graph&p=a/loops:1&at=a/layer:conv1&theme=light"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    assert _PROGRAM is not None
    with firefox(_PROGRAM, tmp_path_factory.mktemp("profile")) as started:
        yield started


def _pictured(window: Firefox) -> int:
    """Returns the bytes of a picture: a busy machine paints text some frames after it is there."""
    end = time.monotonic() + _PAINTED_S
    while (found := len(window.picture())) <= _TEXT_BYTES and time.monotonic() < end:
        time.sleep(0.1)
    return found


def check(window: Firefox, url: str) -> None:
    """Opens panes at a layer: text, a graph, its story, what is lit, and no error."""
    window.open(url + _PANES)
    window.wait_for(f"({_LINES})?.length === 9")
    window.wait_for("document.querySelector('article[data-about=\"layer:conv1\"]')")
    window.wait_for("document.querySelector('.pane[data-kind=stage] canvas')?.width > 100")
    window.wait_for(f"[...({_LINES} ?? [])].some((line) => line.classList.contains('chosen'))")
    assert window.evaluate("document.querySelectorAll('[role=alert]').length") == 0
    assert _pictured(window) > _TEXT_BYTES


def test_the_served_page(
    window: Firefox, serve: Callable[..., str], models: dict[str, Path]
) -> None:
    check(window, serve(models["known"]))


def test_the_report(window: Firefox, models: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report(clew.compile(models["known"], threads=1), path, profile=False)
    check(window, path.as_uri())
