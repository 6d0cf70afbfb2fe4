"""Search over everything, from the keyboard; the palette; help."""

from __future__ import annotations

import pytest
from explorer_page import ExplorerPage
from playwright.sync_api import expect


def search(known: ExplorerPage, text: str) -> None:
    known.page.keyboard.press("/")
    known.page.locator("input[role=combobox]").fill(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("conv1", "layer"),
        ("relu2", "layer"),
        ("nn.softmax", "operator"),
        ("1, 10", "shape"),
        ("FuseOps", "stage"),
    ],
)
def test_things_are_found_by_their_kind(known: ExplorerPage, text: str, kind: str) -> None:
    known.open(["a/model:0"])
    search(known, text)
    found = known.page.locator(f'[role="option"] [data-kind="{kind}"]').first
    expect(found).to_be_visible()
    known.page.keyboard.press("Escape")
    expect(known.page.locator("input[role=combobox]")).to_have_count(0)


def test_enter_goes_to_what_was_found(known: ExplorerPage) -> None:
    known.open(["a/model:0"])
    search(known, "fc")
    expect(known.page.locator('[role="option"] [data-ref="layer:fc"]').first).to_be_visible()
    known.page.locator('[role="option"] [data-ref="layer:fc"]').first.click()
    expect(known.page.locator("article[data-about]")).to_have_attribute("data-about", "layer:fc")
    expect(known.pane("model").locator(".cm-line.chosen")).to_have_attribute("data-ref", "layer:fc")


def test_what_is_nowhere_is_said_so(known: ExplorerPage) -> None:
    known.open(["a/model:0"])
    search(known, "zzzz-no-such-thing")
    expect(known.page.get_by_text("Nothing matches")).to_be_visible()


def test_the_palette_opens_panes(known: ExplorerPage) -> None:
    known.open(["a/model:0"])
    known.command("Open the table of kernels")
    expect(known.pane("kernels")).to_be_visible()


def test_help_lists_the_keys(known: ExplorerPage) -> None:
    known.open(["a/model:0"])
    known.page.keyboard.press("?")
    dialog = known.page.get_by_role("dialog")
    expect(dialog.get_by_text("Search everything")).to_be_visible()
    known.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
