"""The stories of a layer, a kernel, a node and, backwards, of an instruction."""

from __future__ import annotations

from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import expect


def test_a_layers_story_leads_to_its_places(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/stage:0", "a/loops:0"])
    known.line_of("model", "layer:conv1").click(position=TEXT)
    tale = known.page.locator('article[data-about="layer:conv1"]')
    expect(tale.get_by_role("heading", name="conv1")).to_be_visible()
    kinds = tale.locator(".sections > li").evaluate_all("all => all.map((e) => e.dataset.kind)")
    assert "import" in kinds
    assert "kernel" in kinds
    expect(tale).to_contain_text("relu1")  # it is fused with
    # A link of the story goes there, and lights it before.
    link = tale.locator('a[data-ref^="kernel:"]').first
    kernel = str(link.get_attribute("data-ref")).split(":")[1]
    link.click()
    expect(known.page.locator(f'article[data-about="kernel:{kernel}"]')).to_be_visible()
    known.page.go_back()
    expect(tale).to_be_visible()


def test_an_instruction_tells_where_it_comes_from(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/asm:1"])
    known.line("asm", 12).click(position=TEXT)
    tale = known.page.locator('article[data-about="asm:1:12"]')
    expect(tale).to_contain_text("instruction 12")
    expect(tale.locator('a[data-ref^="layer:"]').first).to_be_visible()


def test_a_node_and_a_stage_have_stories(known: ExplorerPage) -> None:
    known.open(["a/stage:0"])
    known.pane("stage").locator(".cm-line[data-ref]").last.click(position=TEXT)
    expect(known.page.locator('article[data-about^="node:0:"]')).to_be_visible()
    known.page.goto(f"{known.url}#p=a/stage:2&at=a/stage:2")
    expect(known.page.locator('article[data-about="stage:2"]')).to_be_visible()
