"""The graph pane: drawn, gone through by keys, pointed at, linked with the other panes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from explorer_page import ExplorerPage
from playwright.sync_api import Locator, expect

_DRAWN = """() => {
  const drawn = [...document.querySelectorAll(".graph-canvas")];
  return drawn.length > 0 && drawn.every((canvas) => canvas.dataset.layout
    && Number(canvas.dataset.items) > 0 && Number(canvas.dataset.drawn) > 0);
}"""


def _open(page: ExplorerPage, *panes: str) -> Locator:
    page.open(panes, story="0")
    page.page.wait_for_function(_DRAWN)
    return page.page.locator(".graph-canvas").first


def test_goes_from_box_to_box_by_keys_and_chooses(known: ExplorerPage) -> None:
    canvas = _open(known, "a/stage:0!graph", "a/stage:0")
    spoken = known.page.locator(".graph-spoken")
    canvas.focus()
    canvas.press("Tab")
    expect(spoken).not_to_be_empty()
    first = spoken.inner_text()
    assert " 1 of " in f" {first.split(', ')[-1]}"
    canvas.press("Tab")
    expect(spoken).not_to_have_text(first)
    canvas.press("Shift+Tab")
    expect(spoken).to_have_text(first)
    canvas.press("Tab")
    canvas.press("Enter")
    known.page.wait_for_function("() => location.hash.includes('at=a/node:0:')")
    # The text pane shows the same node as chosen.
    known.page.wait_for_function(
        "() => document.querySelector('.code-host').shadowRoot.querySelector('.cm-line.chosen')"
    )


def test_tab_leaves_the_graph_after_escape(known: ExplorerPage) -> None:
    canvas = _open(known, "a/stage:0!graph")
    canvas.focus()
    canvas.press("Tab")
    expect(canvas).to_be_focused()
    canvas.press("Escape")
    canvas.press("Tab")
    expect(canvas).not_to_be_focused()


def test_groups_close_and_open(known: ExplorerPage) -> None:
    canvas = _open(known, "a/stage:21!graph")
    boxes = int(canvas.get_attribute("data-items") or 0)
    known.page.get_by_role("button", name="Close all").click()
    expect(canvas).not_to_have_attribute("data-items", str(boxes))
    known.page.get_by_role("button", name="Open all").click()
    expect(canvas).to_have_attribute("data-items", str(boxes))


def test_hostile_names_stay_text(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    page = explore(models["hostile"])
    canvas = _open(page, "a/model:0!graph")
    canvas.focus()
    for _ in range(int(canvas.get_attribute("data-items") or 0)):
        canvas.press("Tab")
    expect(page.page.locator(".graph img, .graph script, .graph b")).to_have_count(0)
