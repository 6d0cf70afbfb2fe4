"""All state is in the URL: who opens it sees the same; back and forward work."""

from __future__ import annotations

from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import BrowserContext, expect


def test_a_link_opens_what_was_shown(known: ExplorerPage, context: BrowserContext) -> None:
    known.open(["a/model:0", "a/stage:0", "a/kernels:0"])
    known.line_of("model", "layer:relu1").click(position=TEXT)
    expect(known.page.locator("article[data-about]")).to_have_attribute("data-about", "layer:relu1")
    known.page.keyboard.press("t")
    known.command("Light theme")
    known.page.wait_for_function(
        "['at=', 'threads=1', 'theme=light'].every((part) => location.hash.includes(part))"
    )
    lit = known.lines("stage")["own"]
    other = ExplorerPage(context.new_page(), known.url)
    other.page.goto(f"{known.url}{known.hash()}")
    other.ready(["", "", ""])
    expect(other.page.locator("html")).to_have_attribute("data-theme", "light")
    expect(other.page.locator("article[data-about]")).to_have_attribute("data-about", "layer:relu1")
    kinds = other.page.locator(".pane").evaluate_all("all => all.map((p) => p.dataset.kind)")
    assert kinds == ["model", "stage", "kernels"]
    other.expect_lit("stage", lit)


def test_reloading_changes_nothing(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/loops:1", "a/llvm:1"], story="0")
    known.line("loops", 2).click(position=TEXT)
    known.page.wait_for_function("() => location.hash.includes('at=a/loop')")
    before = known.hash()
    known.page.reload()
    known.ready(["", "", ""])
    expect(known.pane("loops").locator(".cm-line.chosen")).to_have_attribute("data-line", "2")
    assert known.hash() == before


def test_back_and_forward(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/stage:0"])
    about = known.page.locator("article[data-about]")
    known.line_of("model", "layer:conv1").click(position=TEXT)
    expect(about).to_have_attribute("data-about", "layer:conv1")
    known.line_of("model", "layer:fc").click(position=TEXT)
    expect(about).to_have_attribute("data-about", "layer:fc")
    known.page.go_back()
    expect(about).to_have_attribute("data-about", "layer:conv1")
    known.page.go_forward()
    expect(about).to_have_attribute("data-about", "layer:fc")
    # A pane that was closed comes back.
    known.pane("stage").get_by_role("button", name="Close").click()
    expect(known.page.locator(".pane")).to_have_count(1)
    known.page.go_back()
    expect(known.page.locator(".pane")).to_have_count(2)


def test_a_hash_of_nonsense_is_left_out(known: ExplorerPage) -> None:
    known.page.goto(
        f"{known.url}#p=a/nothing:9&p=zz/model:0&p=a/stage:99999&at=a/kernel:777&heat=x"
    )
    known.ready()
    expect(known.page.get_by_role("heading", name="clew")).to_be_visible()
