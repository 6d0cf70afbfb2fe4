"""What was measured, on the page: heat, where the time goes, roofline, timeline."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import Page, expect
from tests.generation.folders import write_model

import clew

_SVG = "{http://www.w3.org/2000/svg}"
_FIGURE = re.compile(r"^[\d.]+ (ns|µs|ms|s)$")


@pytest.fixture
def measured(known: ExplorerPage) -> ExplorerPage:
    """The page of the known model, profiled."""
    known.open(["a/time:0"])
    button = known.pane("time").get_by_role("button", name="Measure", exact=True)
    ranking = known.pane("time").locator(".ranking li")
    expect(button.or_(ranking.first).first).to_be_visible()
    if button.count():
        button.click()
    expect(ranking.first.locator(".rank-figure")).to_have_text(_FIGURE, timeout=60_000)
    return known


def test_before_measuring_arithmetic_is_ranked(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    page = explore(models["wider"]).open(["a/time:0"])
    pane = page.pane("time")
    expect(pane.get_by_role("button", name="Measure", exact=True)).to_be_visible()
    expect(pane.locator(".ranking li").first).to_contain_text("FLOP")


def test_rows_lead_to_kernels_and_layers(measured: ExplorerPage, page: Page) -> None:
    measured.open(["a/time:0", "a/loops:0"])
    pane = measured.pane("time")
    first = pane.locator(".ranking li").first
    first.hover()
    expect(first).to_have_attribute("data-lit", "")
    first.click()
    assert "at=a/kernel:" in page.evaluate("decodeURIComponent(location.hash)")
    pane.get_by_role("button", name="Layers").click()
    expect(pane.locator(".ranking li").filter(has_text="conv1")).to_have_count(1)
    pane.get_by_role("button", name="Types").click()
    expect(pane.locator(".ranking li").first).to_contain_text(re.compile("Conv|Gemm|Relu"))


def test_colors_have_a_scale_with_numbers(measured: ExplorerPage, page: Page) -> None:
    measured.open(["a/model:0", "a/loops:0"], heat="time")
    bar = page.locator(".heat-bar")
    expect(bar.locator(".legend-ticks span").last).to_have_text(_FIGURE)
    expect(measured.pane("loops").locator(".number.hot").first).to_be_visible()
    page.get_by_role("combobox", name="Color").select_option("flops")
    expect(bar.locator(".legend-ticks span").last).to_contain_text("FLOP")
    page.get_by_role("combobox", name="Color").select_option("peak")
    expect(bar.locator(".legend-ticks span").last).to_have_text("100 %")
    assert "heat=peak" in measured.hash()
    bar.get_by_role("button", name="Color by layer only").click()
    expect(bar).to_have_count(0)
    expect(measured.pane("loops").locator(".number.hot")).to_have_count(0)


def test_errors_are_compared_when_asked_for(known: ExplorerPage, page: Page) -> None:
    known.open(["a/model:0"], heat="error")
    bar = page.locator(".heat-bar")
    button = bar.get_by_role("button", name="Compare with f32")
    legend = bar.locator(".legend")
    expect(button.or_(legend).first).to_be_visible()
    if button.count():
        button.click()
    expect(legend).to_be_visible(timeout=60_000)
    expect(known.pane("model").locator(".number.hot").first).to_be_visible()


def test_quantization_errors_come_with_the_file(
    explore: Callable[..., ExplorerPage], models: dict[str, Path], page: Page, tmp_path: Path
) -> None:
    sample = tuple(clew.compile(models["known"], threads=1).drawn())
    q = clew.quantize(models["known"], [sample], keep="fc", threads=1)
    q.save(tmp_path / "int8.onnx")
    view = explore(tmp_path / "int8.onnx")
    view.open(["a/model:0", "a/stage:32!graph"], heat="quantization", at="a/layer:conv2")
    bar = page.locator(".heat-bar")
    expect(bar).to_contain_text("Quantization error")
    expect(bar.locator(".legend-ticks span").last).to_contain_text("10")
    hot = view.pane("model").locator(".number.hot")
    expect(hot).to_have_count(3)
    story = page.locator(".sections")
    expect(story).to_contain_text("1 sample (range by mse)")
    expect(story).to_contain_text("conversions")
    view.open(["a/model:0"], at="a/layer:fc")
    expect(story).to_contain_text("Kept in floats: asked for")


def test_roofline_points_lead_to_kernels(measured: ExplorerPage, page: Page) -> None:
    measured.open(["a/roofline:0", "a/time:0"])
    pane = measured.pane("roofline")
    expect(pane.locator(".roof-label").first).to_contain_text("GB/s")
    point = pane.locator(".point").first
    point.hover(force=True)
    tip = pane.get_by_role("tooltip")
    expect(tip).to_contain_text("GFLOP/s")
    expect(measured.pane("time").locator(".ranking li[data-lit]").first).to_be_visible()
    point.click(force=True)
    page.wait_for_function("decodeURIComponent(location.hash).includes('at=a/kernel:')")


def test_labels_of_the_roofline_do_not_overlap(measured: ExplorerPage, page: Page) -> None:
    measured.open(["a/roofline:0"])
    expect(measured.pane("roofline").locator(".point-label").first).to_be_visible()
    boxes = page.evaluate(
        """() => [...document.querySelectorAll(".point-label")].map((label) => {
             const box = label.getBoundingClientRect();
             return [box.left, box.top, box.right, box.bottom];
           })"""
    )
    for n, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[n + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (boxes[n], other)


def test_the_timeline_zooms_and_leads_on(measured: ExplorerPage, page: Page) -> None:
    measured.open(["a/timeline:0"])
    pane = measured.pane("timeline")
    kernels = pane.locator(".lane[data-track='kernels'] .slice[data-ref]")
    layers = pane.locator(".lane[data-track='layers'] .slice[data-ref]")
    expect(kernels.first).to_be_attached()
    expect(layers.first).to_be_attached()
    everything = kernels.count()
    for _ in range(4):
        pane.get_by_role("button", name="Zoom in").click()
    expect(pane.get_by_role("button", name="Zoom out")).to_be_enabled()
    expect(kernels).not_to_have_count(everything)
    pane.get_by_role("button", name="All").click()
    expect(kernels).to_have_count(everything)
    # What is outside kernels has a row, too, and leads nowhere.
    row = pane.locator(".ranking.longest li").filter(has=page.locator(".dot")).first
    row.hover()
    expect(pane.locator(".lane[data-track='kernels'] .slice.lit")).to_have_count(1)
    row.click()
    page.wait_for_function("decodeURIComponent(location.hash).includes('at=a/kernel:')")


@pytest.mark.parametrize("kind", ["roofline", "timeline"])
def test_plots_are_saved_as_drawings(measured: ExplorerPage, page: Page, kind: str) -> None:
    measured.open([f"a/{kind}:0"])
    expect(
        measured.pane(kind).locator("svg.plot rect, svg.plot circle, svg.plot path").first
    ).to_be_attached()
    measured.pane(kind).locator(".body").click(position={"x": 5, "y": 5})
    with page.expect_download() as waiting:
        measured.command("Save the pane as SVG")
    found = ET.fromstring(waiting.value.path().read_text("utf-8"))
    assert found.tag == f"{_SVG}svg"
    texts = [text.text for text in found.iter(f"{_SVG}text")]
    assert texts
    assert not [node for node in found.iter() if "var(" in " ".join(node.attrib.values())]


def test_measuring_can_be_cancelled(
    explore: Callable[..., ExplorerPage], models: dict[str, Path], page: Page
) -> None:
    shown = explore(models["wider"]).open(["a/time:0"])
    shown.pane("time").get_by_role("button", name="Measure", exact=True).click()
    page.get_by_role("button", name="Cancel Measuring").click()
    expect(page.locator(".notices")).to_contain_text("cancelled")
    expect(shown.pane("time").get_by_role("button", name="Measure", exact=True)).to_be_enabled()


# The kernels' share of time that the status line tells of each operator of a kernel.
_SHARES = """async () => {
  const heat = await (await fetch("api/a/heat/time")).json();
  const overview = await (await fetch("api/a/overview")).json();
  return [heat, overview];
}"""


def test_operators_have_their_own_share_of_the_time(measured: ExplorerPage, page: Page) -> None:
    heat, overview = measured.evaluate(_SHARES)
    last = len(overview["stages"]) - 1
    kernel = next(k for k in overview["kernels"] if len(k["numbers"]) > 2)
    measured.open([f"a/stage:{last}"], heat="time")
    percents = []
    scroller = measured.pane("stage").locator(".cm-scroller")
    for number in kernel["numbers"]:
        line = measured.line_of("stage", f"node:{last}:{number}")
        line.scroll_into_view_if_needed()
        scroller.evaluate("e => { e.scrollLeft = 0; }")  # long lines may be scrolled to their end
        line.hover(position=TEXT)
        told = page.locator("footer.status-line > b").last
        expect(told).to_contain_text("of the kernels' time")
        percents.append(float(told.inner_text().replace("<", "").split("%")[0]))
    whole = 100 * heat["kernels"][kernel["index"]] / heat["total"]
    assert sum(percents) == pytest.approx(whole, abs=0.1 * len(percents) + 1)
    assert len(set(percents)) > 1


def test_the_cost_of_a_token_by_layer(explore: Callable[..., ExplorerPage], tmp_path: Path) -> None:
    view = explore(write_model(tmp_path / "model"))
    view.open(["a/tokens:0"])
    pane = view.pane("tokens")
    pane.get_by_role("button", name="Measure").click()
    rows = pane.locator("tbody tr", has_text="model.layers.0")
    expect(rows).to_have_count(2, timeout=60_000)
    rows.first.click()
    assert "at=a/layer:model.layers.0." in view.hash()
