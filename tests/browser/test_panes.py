"""What panes show at first, which stage or kernel a command opens, and room for all of it."""

from __future__ import annotations

import pytest
from explorer_page import ExplorerPage
from playwright.sync_api import expect

_SMALL = {"width": 1280, "height": 720}
_DRAWN = """() => {
  const canvas = document.querySelector(".graph-canvas");
  return canvas && Number(canvas.dataset.items) > 0 && Number(canvas.dataset.drawn) > 0;
}"""


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("Open a kernel's schedule, step by step", "schedule"),
        ("Open a kernel's instructions", "asm"),
        ("Open a kernel's loops", "loops"),
        ("Open a kernel's LLVM code", "llvm"),
    ],
)
def test_commands_open_the_kernel_that_is_chosen(
    known: ExplorerPage, title: str, kind: str
) -> None:
    known.open(["a/kernels:0"], at="a/kernel:3")
    known.command(title)
    expect(known.pane(kind)).to_have_attribute("data-arg", "3")
    # A layer leads to its kernel, in panes that are open, too.
    known.open(["a/kernels:0", f"a/{kind}:0"], at="a/layer:fc")
    kernel = known.evaluate(
        "async () => (await (await fetch('api/a/overview')).json()).kernels"
        ".findIndex((k) => k.ops.includes('nn.dense'))"
    )
    known.command(title)
    expect(known.pane(kind)).to_have_attribute("data-arg", str(kernel))


def test_commands_open_the_stage_that_is_chosen(known: ExplorerPage) -> None:
    known.open(["a/kernels:0"], at="a/stage:2")
    known.command("Open the graph IR of a stage")
    expect(known.pane("stage")).to_have_attribute("data-arg", "2")


def test_other_ways_to_open_a_pane_show_the_same_kernel(known: ExplorerPage) -> None:
    page = known.page
    known.open(["a/kernels:0"], at="a/kernel:3")
    page.get_by_role("button", name="Add a pane").click()
    page.get_by_role("menuitem", name="Assembly").click()
    expect(known.pane("asm")).to_have_attribute("data-arg", "3")
    known.open(["a/kernels:0"], at="a/kernel:3")
    page.locator("nav.strip [data-frame=llvm]").click()
    expect(known.pane("llvm")).to_have_attribute("data-arg", "3")
    known.open(["a/kernels:0"], at="a/kernel:3")
    known.pane("kernels").get_by_label("Contents of the pane").select_option("loops")
    expect(known.pane("loops")).to_have_attribute("data-arg", "3")


def test_the_model_is_drawn_at_first(known: ExplorerPage) -> None:
    known.page.set_viewport_size(_SMALL)  # type: ignore[arg-type]
    known.page.goto(known.url)
    known.ready()
    kinds = known.page.locator(".pane").evaluate_all("(all) => all.map((p) => p.dataset.kind)")
    assert kinds == ["time", "model"]
    expect(known.pane("model").locator(".graph-canvas")).to_be_visible()
    known.page.locator("nav.strip [data-frame=stage]").last.click()
    expect(known.pane("stage").locator("[data-chooser=stage]")).to_contain_text("as compiled")


def test_panes_that_are_many_stay_wide_enough_and_come_into_sight(known: ExplorerPage) -> None:
    known.page.set_viewport_size(_SMALL)  # type: ignore[arg-type]
    known.open(["a/model:0", "a/stage:0", "a/loops:3", "a/asm:3"])
    widths = known.page.locator(".pane").evaluate_all("(all) => all.map((p) => p.clientWidth)")
    assert min(widths) >= 290
    known.command("Open a kernel's schedule, step by step")
    expect(known.pane("schedule")).to_be_in_viewport(ratio=0.9)


def test_the_minimap_covers_no_nodes(known: ExplorerPage) -> None:
    known.page.set_viewport_size(_SMALL)  # type: ignore[arg-type]
    known.open(["a/time:0", "a/stage:0!graph"])
    known.page.wait_for_function(_DRAWN)
    graph = known.page.locator(".graph-canvas").bounding_box()
    mini = known.page.locator(".graph-mini").bounding_box()
    assert graph is not None
    assert mini is not None
    assert mini["x"] >= graph["x"] + graph["width"]


def test_a_line_that_is_scrolled_into_sight_is_beside_the_gutters(known: ExplorerPage) -> None:
    known.open(["a/model:0", "a/loops:1", "a/llvm:1"], story="0")
    line = known.line("loops", 2)
    for side in ("end", "start"):
        line.evaluate("(line, inline) => line.scrollIntoView({ inline })", side)
    covered = line.evaluate(
        """(line) => {
          const gutters = line.getRootNode().querySelector(".cm-gutters");
          return gutters.getBoundingClientRect().right - line.getBoundingClientRect().left;
        }"""
    )
    assert covered <= 0.5
