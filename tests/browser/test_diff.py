"""Two builds side by side: what differs, layer by layer, and pointing across builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import expect

import clew

# Both builds are compiled and run.
_COMPARING_MS = 60_000


@pytest.fixture
def pair(explore: Callable[..., ExplorerPage], models: dict[str, Path]) -> ExplorerPage:
    """The page of a model and a wider one."""
    return explore(models["known"], models["wider"])


def algorithms(model: Path) -> set[str]:
    """Returns the operators of the kernels that serve `conv2` on this machine."""
    kernels = clew.compile(model).kernels
    return {op for kernel in kernels if "conv2" in kernel.layers for op in kernel.ops}


def test_layers_are_aligned_and_differences_named(
    pair: ExplorerPage, models: dict[str, Path]
) -> None:
    pair.open(["a/diff:1"])
    rows = pair.pane("diff").locator('[role="row"][data-layer]')
    expect(rows).to_have_count(9, timeout=_COMPARING_MS)
    conv = pair.pane("diff").locator('[role="row"][data-layer="conv2"]')
    expect(conv.locator('[data-kind="attributes"]')).to_be_visible()
    # Whether it is a Winograd convolution depends on the channels and on the machine.
    found = [algorithms(models[name]) for name in ("known", "wider")]
    differs = found[0] != found[1]
    if differs:
        expect(conv.locator('[data-kind="kernel"]')).to_be_visible()
    conv.click()
    what = pair.pane("diff").get_by_role("region", name="What differs")
    expect(what).to_contain_text("[16, 16, 3, 3] → f32[24, 24, 3, 3]")
    if differs:
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


def test_it_reads_from_a_to_b_from_wherever_it_is_opened(pair: ExplorerPage) -> None:
    names = []
    for pane in ("a/diff:1", "b/diff:0"):
        pair.open([pane])
        row = pair.pane("diff").locator('[role="row"][data-layer="conv2"]')
        expect(row).to_be_visible(timeout=_COMPARING_MS)
        row.click(position=TEXT)
        what = pair.pane("diff").get_by_role("region", name="What differs")
        expect(what).to_contain_text("[16, 16, 3, 3] → f32[24, 24, 3, 3]")
        names.append(pair.pane("diff").locator(".pair").inner_text())
    assert names[0] == names[1]
    assert names[0].index("A ") < names[0].index("→") < names[0].index("B ")
    # It is one difference: opened for B, too, it is the pane that is there.
    pair.open(["a/diff:1"], build="b")
    pair.command("Open the difference of two builds")
    expect(pair.pane("diff")).to_have_count(1)
