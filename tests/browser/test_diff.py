"""Two builds side by side: what differs, layer by layer, and pointing across builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import expect


@pytest.fixture
def pair(explore: Callable[..., ExplorerPage], models: dict[str, Path]) -> ExplorerPage:
    """The page of a model and a wider one."""
    return explore(models["known"], models["wider"])


def test_layers_are_aligned_and_differences_named(pair: ExplorerPage) -> None:
    pair.open(["a/diff:1"])
    rows = pair.pane("diff").locator('[role="row"][data-layer]')
    expect(rows).to_have_count(9)
    # With 24 channels it is no Winograd convolution.
    conv = pair.pane("diff").locator('[role="row"][data-layer="conv2"]')
    expect(conv.locator('[data-kind="attributes"]')).to_be_visible()
    expect(conv.locator('[data-kind="kernel"]')).to_be_visible()
    conv.click()
    what = pair.pane("diff").get_by_role("region", name="What differs")
    expect(what).to_contain_text("[16, 16, 3, 3] → f32[24, 24, 3, 3]")
    expect(what).to_contain_text("winograd")


def test_rows_are_filtered(pair: ExplorerPage) -> None:
    pair.open(["a/diff:1"])
    pair.pane("diff").get_by_label("filter layers").fill("softm")
    rows = pair.pane("diff").locator('[role="row"][data-layer]')
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-layer", "softmax")


def test_pointing_in_one_build_lights_the_other(pair: ExplorerPage) -> None:
    pair.open(["a/model:0", "b/model:0", "a/diff:1"])
    expect(pair.pane("diff").locator('[role="row"][data-layer]')).to_have_count(9)
    panes = pair.pane("model")
    expect(panes).to_have_count(2)
    panes.nth(0).locator('.cm-line[data-ref="layer:relu1"]').hover(position=TEXT)
    other = panes.nth(1).locator(".cm-line.own, .cm-line.exact")
    expect(other).to_have_count(1)
    expect(other).to_have_attribute("data-ref", "layer:relu1")
