"""A browser, servers with small models, and pages that may not go wrong unseen.

The browser is Debian's Chromium, or what `CLEW_BROWSER` names: rather its headless shell, which has
the same engine without windows around pages and takes half of the time. Where there is none the
tests are skipped, unless `CLEW_REQUIRE_BROWSER` says that they must run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

sys.path.insert(0, str(Path(__file__).parent))

import browser_models
from explorer_page import PATIENCE_MS, ExplorerPage

from clew.explorer.bundle import Bundle

_NAMES = (
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome",
    "google-chrome-stable", "chrome",
)  # fmt: skip
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZE = {"width": 1920, "height": 1200}
# A server ends with its standard input, so that none outlives tests that were killed.
_SERVER = """
import os, sys, threading
from clew.cli.app import main
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
main()
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests are marked by where they are."""
    missing = _missing()
    for item in items:
        if Path(__file__).parent in item.path.parents and missing:
            item.add_marker(pytest.mark.skip(reason=missing))


def _missing() -> str:
    required = os.environ.get("CLEW_REQUIRE_BROWSER", "") not in ("", "0")
    if required:
        return ""
    if browser_path() is None:
        return "no Chromium: apt-get install chromium, or name one with CLEW_BROWSER"
    if not Bundle().is_built:
        return "the explorer's page is not built: python tools/build_explorer.py"
    return ""


def browser_path() -> str | None:
    """Returns the program of the browser that is used."""
    named = os.environ.get("CLEW_BROWSER")
    if named:
        return named
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = browser_path()
    assert path is not None, "CLEW_REQUIRE_BROWSER is set and there is no Chromium"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "known": browser_models.known(folder / "known.onnx"),
        "wider": browser_models.known(folder / "wider.onnx", 24),
        "hostile": browser_models.hostile(folder / "hostile <b>.onnx"),
        "wrong": browser_models.wrong(folder / "wrong.onnx"),
        "slow": browser_models.slow(folder / "slow.onnx"),
    }


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Starts servers, each once for the same arguments; gives their URLs."""
    running: dict[tuple[str, ...], tuple[subprocess.Popen[str], str]] = {}

    def start(*arguments: object) -> str:
        words = tuple(map(str, arguments))
        if words not in running:
            running[words] = _started(words)
        return running[words][1]

    yield start
    for process, _ in running.values():
        process.terminate()
    for process, _ in running.values():
        process.wait(timeout=20)


def _started(words: tuple[str, ...]) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", _SERVER, "explore"]
    process = subprocess.Popen(
        [*command, "--no-browser", "--threads", "2", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http://"), process.communicate()[1]
    # What it says meanwhile must not fill the pipe.
    for said in (process.stdout, process.stderr):
        threading.Thread(target=said.read, daemon=True).start()
    return process, url


class Watch:
    """What went wrong in pages: errors, refused scripts, requests to others."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.home = ""

    def on(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda error: self.wrong.append(f"error: {error.error}"))
        context.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        context.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        # A route that refuses, such as times that nobody measured yet, is no mistake of the page.
        refused = "Failed to load resource" in message.text and " 4" in message.text
        if message.type in ("error", "warning") and not refused:
            self.wrong.append(f"console: {message.text}")

    def _request(self, url: str) -> None:
        allowed = (self.home, "blob:", "data:") if self.home else ("blob:", "data:")
        if not url.startswith(allowed):
            self.wrong.append(f"request: {url}")


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Fails a test whose pages did what they should not do."""
    found = Watch()
    yield found
    assert found.wrong == []


@pytest.fixture
def context(browser: Browser, watch: Watch) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport=SIZE, reduced_motion="reduce", accept_downloads=True)
    made.set_default_timeout(PATIENCE_MS)
    watch.on(made)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def explore(page: Page, serve: Callable[..., str], watch: Watch) -> Callable[..., ExplorerPage]:
    """Serves models and gives the page, not yet opened."""

    def start(*arguments: object) -> ExplorerPage:
        url = serve(*arguments)
        watch.home = url.rsplit("/", 2)[0] + "/"
        return ExplorerPage(page, url)

    return start


@pytest.fixture
def known(explore: Callable[..., ExplorerPage], models: dict[str, Path]) -> ExplorerPage:
    """The page of the model whose links are known."""
    return explore(models["known"])
