"""`clew docs`: opens the documentation, which lies on this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

import clew
from clew.support.errors import InputError
from clew.support.near import did_you_mean

_START: Final = "index"


def docs(
    page: Annotated[
        str,
        typer.Argument(
            metavar="PAGE", help="A page, such as quantize or tutorials/python.", show_default=False
        ),
    ] = _START,
    browser: Annotated[
        bool | None,
        typer.Option(
            "--browser/--no-browser", help="Open the page.", show_default="if in a terminal"
        ),
    ] = None,
) -> None:
    """Open the documentation, which needs no network.

    The page's URL is printed on stdout. The pages are those of the package clew-docs, or in a
    checkout those that `make site` built.
    """
    url = find(page).as_uri()
    print(url, flush=True)
    if browser or (browser is None and sys.stdout.isatty()):
        # Some browsers only return when they are closed.
        opening = threading.Thread(target=webbrowser.open, args=[url], daemon=True)
        opening.start()
        opening.join(timeout=2)


def find(page: str) -> Path:
    """Returns the file of a page.

    Errors: I517 if the documentation is not installed, I518 for a page that does not exist.
    """
    for folder in _folders():
        if os.path.isfile(folder / f"{_START}.html"):
            break
    else:
        raise InputError(
            "I517",
            "the documentation is not installed",
            hint="pip install 'clew[docs]'; in a checkout: make site",
        )
    known = _pages(folder)
    if page not in known:
        raise InputError(
            "I518",
            f"the documentation has no page {page!r}",
            hint=did_you_mean(page, known, "pages"),
        )
    return folder / f"{page}.html"


def _folders() -> list[Path]:
    package = importlib.util.find_spec("clew_docs")
    places = list(package.submodule_search_locations or ()) if package is not None else []
    checkout = Path(clew.__file__).resolve().parents[2]
    return [*(Path(place) / "pages" for place in places), checkout / "build" / "site"]


def _pages(folder: Path) -> list[str]:
    found = []
    for place, _, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        found += [
            (inside / name).with_suffix("").as_posix() for name in files if name.endswith(".html")
        ]
    return sorted(found)
