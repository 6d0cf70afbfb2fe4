"""Takes the pictures of the explorer that `docs/` shows: ResNet-50 and BERT, in Chromium.

    python tools/explorer_pictures.py [NAME ...]

Needs Chromium, the `test` extra and the zoo's models. Times are measured while it runs, so that the
pictures' figures are this machine's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from zoo import store

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
)  # fmt: skip
_SIZE = {"width": 1280, "height": 720}


@dataclass(frozen=True)
class Picture:
    """A picture: `hash` is the page's state, `hover` an element that the mouse is over."""

    name: str
    model: str
    hash: str
    theme: str = "dark"
    hover: str = ""
    measured: bool = True
    size: tuple[int, int] = (1280, 720)


PICTURES = (
    Picture("explorer-resnet", "light_resnet50", ""),
    Picture("explorer-resnet-light", "light_resnet50", "", theme="light"),
    Picture("explorer-bert", "bert_base", ""),
)


@contextmanager
def served(model: str) -> Iterator[str]:
    """Serves a model's page, and gives its address."""
    command = [sys.executable, "-P", "-c", "from clew.cli.app import main; main()"]
    asked = [*command, "explore", "--no-browser", "--threads", "1", str(store.path(model))]
    server = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def take(page: Page, address: str, picture: Picture) -> None:
    """Brings the page to a state and saves what it shows."""
    page.set_viewport_size({"width": picture.size[0], "height": picture.size[1]})
    page.emulate_media(color_scheme="light" if picture.theme == "light" else "dark")
    page.goto("about:blank")
    page.goto(f"{address}#{picture.hash}")
    page.wait_for_selector(".pane .body >> visible=true")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1500)
    if picture.hover:
        page.locator(picture.hover).first.hover()
        page.wait_for_timeout(300)
    page.screenshot(path=FOLDER / f"{picture.name}.png")


def measure(page: Page, address: str) -> None:
    """Has the model's time measured, and waits for it."""
    page.goto(address)
    page.wait_for_selector(".pane .body >> visible=true")
    page.keyboard.press("m")
    page.wait_for_function("() => /heat=time/.test(location.hash)", timeout=60_000)


def main() -> None:
    """Takes all pictures, or those that are named."""
    wanted = set(sys.argv[1:])
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [p for p in PICTURES if not wanted or p.name in wanted]
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser: Any = play.chromium.launch(executable_path=browser_path, args=list(_FLAGS))
        for model in dict.fromkeys(p.model for p in chosen):
            with served(model) as address:
                page = browser.new_page()
                if any(p.measured for p in chosen if p.model == model):
                    measure(page, address)
                for picture in chosen:
                    if picture.model == model:
                        take(page, address, picture)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
