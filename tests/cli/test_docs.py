"""`clew docs`: which page it opens, and what it says without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clew.cli import app, docs


def _run(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["docs", *typed])
    streams = capsys.readouterr()
    return int(left.value.code or 0), streams.out, streams.err


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pages = tmp_path / "clew_docs" / "pages"
    (pages / "tutorials").mkdir(parents=True)
    (tmp_path / "clew_docs" / "__init__.py").touch()
    for name in ("index", "quantize", "tutorials/python"):
        (pages / f"{name}.html").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "clew_docs", raising=False)
    return pages


def test_pages_of_the_package(
    capsys: pytest.CaptureFixture[str], installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(docs.webbrowser, "open", opened.append)
    url = (installed / "index.html").as_uri()
    assert _run(capsys, "--browser") == (0, f"{url}\n", "")
    assert opened == [url]
    assert _run(capsys, "tutorials/python")[1].endswith("/tutorials/python.html\n")
    assert len(opened) == 1  # stdout is no terminal


@pytest.mark.parametrize("page", ["quantise", "../pages/quantize"])
def test_a_page_that_does_not_exist(
    capsys: pytest.CaptureFixture[str], installed: Path, page: str
) -> None:
    code, out, err = _run(capsys, page)
    assert (code, out) == (1, "")
    assert f"error[I518] the documentation has no page {page!r}" in err
    assert "did you mean quantize?" in err


def test_without_the_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(docs, "_folders", lambda: [tmp_path])
    code, _, err = _run(capsys)
    assert code == 1
    assert "error[I517] the documentation is not installed" in err
    assert "pip install 'clew[docs]'" in err
