"""Builds beside each other, models of several files, and nests linked with other panes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from explorer_page import ExplorerPage
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import Page, expect

# Drops files, as a file manager would.
_DROP = """(files) => {
  const transfer = new DataTransfer();
  for (const [name, data] of files) {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    transfer.items.add(new File([bytes], name));
  }
  const how = { dataTransfer: transfer, bubbles: true, cancelable: true };
  for (const type of ["dragenter", "dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(type, how));
}"""


def drop(page: Page, paths: Sequence[Path]) -> None:
    page.evaluate(_DROP, [[p.name, base64.b64encode(p.read_bytes()).decode()] for p in paths])


def compile_it(page: Page) -> None:
    button = page.get_by_role("dialog").locator("[data-action=compile]")
    expect(button).to_be_enabled()
    button.click()


@pytest.fixture
def own(explore: Callable[..., ExplorerPage], models: dict[str, Path]) -> ExplorerPage:
    """A page whose server is these tests' own: they leave builds behind."""
    return explore(models["known"], "--max-upload", "64")


@pytest.fixture
def external(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and the file that its weights are in."""
    weight = numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="proj"),
        helper.make_node("Relu", ["t"], ["y"], name="act"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])]
    graph = helper.make_graph(nodes, "external", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "external.onnx"
    onnx.save(
        model, path, save_as_external_data=True, location="external.onnx.data", size_threshold=0
    )
    return path, tmp_path / "external.onnx.data"


def test_weights_in_a_file_of_their_own_come_along(
    own: ExplorerPage, external: tuple[Path, Path]
) -> None:
    own.open(["a/model:0"])
    drop(own.page, [external[1], external[0]])
    model = own.page.get_by_role("dialog").locator("[name=model]")
    expect(model).to_contain_text("external.onnx and 1 of weights")
    compile_it(own.page)
    expect(own.page.locator("header.bar")).to_contain_text("external.onnx")
    expect(own.page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("name", ["net.ort", "net.bin"])
def test_a_file_of_another_kind_gets_advice(own: ExplorerPage, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"\x1c\0\0\0ORTM" + bytes(1 << 20))
    own.open(["a/model:0"])
    drop(own.page, [file])
    alert = own.page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("error[I228]")
    expect(alert).to_contain_text("ONNX Runtime's own format")
    expect(alert).to_contain_text("give the .onnx file")


def test_a_new_build_is_compared_with_the_one_before(own: ExplorerPage) -> None:
    own.open(["a/stage:0", "a/loops:1"])
    own.page.keyboard.press("b")
    dialog = own.page.get_by_role("dialog")
    dialog.locator("[data-pass=FoldConstant] label", has_text="off").click()
    dialog.locator("[name=opt-level]").select_option("1")
    compile_it(own.page)
    offer = own.page.locator("[data-action=compare-before]")
    expect(offer).to_be_visible()
    # What was open shows the new build.
    fresh = own.page.locator(".pane [data-build]").first.get_attribute("data-build")
    assert fresh != "a"
    assert "a/" not in own.hash().replace("%2F", "/")
    offer.click()
    rows = own.pane("diff").locator('[role="row"][data-layer]')
    expect(rows.first).to_be_visible(timeout=60_000)
    shown = own.page.locator(".pane > header [data-build]")
    expect(shown).to_have_count(2)  # a difference names both itself
    assert [badge.inner_text() for badge in shown.all()] == ["A", (fresh or "").upper()]


def test_lines_of_a_nest_are_linked(own: ExplorerPage) -> None:
    own.open(["a/schedule:1", "a/loops:1"], story="0")
    pane = own.pane("schedule")
    pane.get_by_role("button", name="Last step").click()
    line = pane.locator('.line[data-ref^="loop:1:"]').nth(5)
    number = int((line.get_attribute("data-ref") or "").split(":")[2])
    line.hover()
    own.page.wait_for_function(
        """(number) => document.querySelector('.pane[data-kind="loops"] .code-host')
          ?.shadowRoot?.querySelector(`.cm-line.exact[data-line="${number}"]`)""",
        arg=number,
    )
    # A line of an earlier nest leads to its operator.
    pane.locator("li[data-step='1'] button").click()
    pane.locator('.line[data-ref^="node:"]').first.hover()
    own.page.wait_for_function(
        """() => document.querySelector('.pane[data-kind="loops"] .code-host')
          ?.shadowRoot?.querySelector(".cm-line.own, .cm-line.weak")"""
    )
