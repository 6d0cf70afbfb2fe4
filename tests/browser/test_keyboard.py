"""Everything can be reached without a mouse."""

from __future__ import annotations

from explorer_page import ExplorerPage
from playwright.sync_api import expect

# Returns when what a key did has been painted.
_PAINTED = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => done(null))))"""


def test_a_walk_with_the_keyboard_alone(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/stage:0"])
    press = known.page.keyboard.press
    press("1")
    for _ in range(12):
        press("j")
        known.evaluate(_PAINTED)
        if known.pane("model").locator(".cm-line.exact").count():
            break
    expect(known.pane("model").locator(".cm-line.exact")).to_have_count(1)
    press("Enter")
    about = known.page.locator("article[data-about]")
    expect(about).to_have_attribute("data-about", "layer:conv1")
    # Its counterparts are lit in the other pane, and n goes through them.
    expect(known.pane("stage").locator(".cm-line.own").first).to_be_visible()
    press("2")
    press("n")
    press("]")  # the next stage that changed something
    known.page.wait_for_function("!location.hash.includes('a/stage:0')")
    press("Escape")
    expect(about).to_have_count(0)
    press("s")
    expect(known.page.locator("aside.story")).to_have_count(0)
    press("x")
    expect(known.page.locator(".pane")).to_have_count(1)


def test_every_control_has_a_name_and_can_be_tabbed_to(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/stage:0", "a/loops:0"])
    unnamed = known.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a[href], [tabindex='0']")]
          .filter((e) => e.checkVisibility() && !e.closest("[hidden], [inert]"))
          .filter((e) => !(e.ariaLabel || e.title || e.textContent.trim() || e.labels?.length
                           || e.placeholder))
          .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    known.page.keyboard.press("Tab")
    seen = set()
    for _ in range(90):
        seen.add(
            known.evaluate(
                "document.activeElement?.closest('header.bar, nav.strip, .pane')?.tagName"
            )
        )
        known.page.keyboard.press("Tab")
    assert {"HEADER", "NAV", "SECTION"} <= seen
