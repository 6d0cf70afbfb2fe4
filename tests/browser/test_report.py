"""A report opened from disk, with the network off, is the same page."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Watch
from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import BrowserContext, Route, expect

from clew.explorer.actions.table import ACTIONS
from clew.explorer.builds.compiling import open_session
from clew.explorer.direct import compare
from clew.explorer.report import write_report
from clew.explorer.schema import Options


@pytest.fixture(scope="module")
def report(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two builds, measured for a moment."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    sessions = {}
    for name, options in {"a": Options(threads=1), "b": Options(threads=1, opt_level=0)}.items():
        sessions[name] = open_session(models["known"], "known.onnx", options, _say)
    ACTIONS["profile"].run(sessions["a"], {"seconds": 0.05, "sample": 0.0}, _say)
    write_report(sessions, path, compare(sessions["a"], sessions["b"], _say, time=False))
    return path


def _say(text: str, fraction: float | None) -> None:
    pass


@pytest.fixture
def shown(report: Path, context: BrowserContext, watch: Watch) -> ExplorerPage:
    """The report in a browser without any network."""
    context.set_offline(True)
    page = context.new_page()
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        watch.wrong.append(f"request: {route.request.url}")
        route.abort()

    page.route(lambda url: not url.startswith(("file:", "blob:", "data:")), refuse)
    watch.home = report.as_uri()
    return ExplorerPage(page, report.as_uri())


def test_the_page_opens_and_links(shown: ExplorerPage) -> None:
    shown.open(["a/model:0", "a/stage:0", "a/loops:1", "a/asm:1"])
    shown.line_of("model", "layer:conv1").hover(position=TEXT)
    expect(shown.pane("stage").locator(".cm-line.own").first).to_be_visible()
    shown.line_of("model", "layer:conv1").click(position=TEXT)
    expect(shown.page.locator('article[data-about="layer:conv1"]')).to_be_visible()


def test_all_kinds_of_panes_have_their_answers(shown: ExplorerPage) -> None:
    kinds = ("model", "stage", "kernels", "loops", "llvm", "asm", "time", "roofline", "timeline",
             "schedule")  # fmt: skip
    for kind in kinds:
        shown.open([f"a/{kind}:1" if kind in ("loops", "llvm", "asm") else f"a/{kind}:0"])
        expect(shown.pane(kind)).to_be_visible()
        expect(shown.pane(kind).get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("view", ["a/model:0!graph", "a/stage:0!graph"])
def test_graphs_are_laid_out(shown: ExplorerPage, view: str) -> None:
    shown.open([view])
    expect(shown.page.locator(".pane canvas").first).to_be_visible()
    expect(shown.page.locator(".pane [role=alert]")).to_have_count(0)


@pytest.mark.parametrize(
    "at", ["layer:relu1", "kernel:1", "loop:1:4", "llvm:1:20", "asm:1:15", "node:0:3", "stage:1"]
)
def test_everything_has_its_story(shown: ExplorerPage, at: str) -> None:
    shown.open(["a/model:0"], at=f"a/{at}")
    tale = shown.page.locator("article[data-about]")
    expect(tale).to_be_visible()
    expect(tale.locator(".sections > li").first).to_be_visible()


def test_search_heat_and_difference_work(shown: ExplorerPage) -> None:
    shown.open(["a/model:0", "a/diff:1"])
    expect(shown.pane("diff").locator('[role="row"][data-layer="conv1"]')).to_be_visible()
    shown.page.keyboard.press("/")
    shown.page.locator("input[role=combobox]").fill("relu2")
    expect(shown.page.locator("dialog [role=option]").first).to_be_visible()


def test_what_needs_a_compiler_says_so(shown: ExplorerPage) -> None:
    shown.open(["a/model:0"])
    shown.page.keyboard.press("b")
    dialog = shown.page.get_by_role("dialog")
    if dialog.count():
        expect(dialog).to_contain_text("clew explore")
