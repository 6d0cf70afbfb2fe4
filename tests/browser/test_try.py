"""Try it: a model dropped onto the page, other options, progress, cancel, errors."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from explorer_page import ExplorerPage
from playwright.sync_api import Page, expect

# Drops a file, as a file manager would.
_DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  const how = { dataTransfer: transfer, bubbles: true, cancelable: true };
  for (const type of ["dragenter", "dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(type, how));
}"""


def drop(page: Page, path: Path) -> None:
    page.evaluate(_DROP, [path.name, base64.b64encode(path.read_bytes()).decode()])


def compile_it(page: Page) -> None:
    """Presses the dialog's button, where dropping has not compiled the model already."""
    button = page.get_by_role("dialog").locator("[data-action=compile]")
    expect(button).to_be_enabled()
    button.click()


@pytest.fixture
def empty(explore: object) -> ExplorerPage:
    """The page without a model."""
    shown: ExplorerPage = explore()  # type: ignore[operator]
    shown.page.goto(shown.url)
    expect(shown.page.locator(".no-model")).to_be_visible()
    return shown


def test_a_dropped_model_is_compiled_and_shown(
    empty: ExplorerPage, models: dict[str, Path]
) -> None:
    drop(empty.page, models["known"])
    compile_it(empty.page)
    expect(empty.page.locator("nav.strip button").first).to_be_visible()
    expect(empty.page.locator("header.bar")).to_contain_text("known.onnx")


def test_another_build_with_other_options(known: ExplorerPage) -> None:
    known.open(["a/model:0"])
    known.page.keyboard.press("b")
    dialog = known.page.get_by_role("dialog")
    dialog.locator("[name=opt-level]").select_option("0")
    compile_it(known.page)
    # It comes to stand beside the first.
    known.page.wait_for_function(
        "async () => (await (await fetch('api/start')).json()).builds.length >= 2"
    )
    expect(known.page.locator('[data-build="b"]').first).to_be_visible()


def test_compiling_is_cancelled(known: ExplorerPage, models: dict[str, Path]) -> None:
    known.open(["a/model:0"])
    drop(known.page, models["slow"])
    compile_it(known.page)
    cancel = known.page.get_by_role("dialog").locator("[data-action=cancel]")
    expect(cancel).to_be_enabled()
    cancel.click()
    expect(known.page.get_by_text("Compiling was cancelled")).to_be_visible()
    states = known.evaluate(
        "async () => (await (await fetch('api/start')).json()).builds.map((b) => b.state)"
    )
    assert "cancelled" in states
    # What was there before still answers.
    known.page.keyboard.press("Escape")
    known.line_of("model", "layer:conv1").click(position={"x": 30, "y": 8})
    expect(known.page.locator('article[data-about="layer:conv1"]')).to_be_visible()


def test_an_error_names_its_layer(known: ExplorerPage, models: dict[str, Path]) -> None:
    known.open(["a/model:0"])
    drop(known.page, models["wrong"])
    compile_it(known.page)
    alert = known.page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("bad/matmul")
    expect(alert.locator("code")).to_contain_text("error[T")


def test_a_file_that_is_no_model_is_refused(known: ExplorerPage, tmp_path: Path) -> None:
    path = tmp_path / "noise.onnx"
    path.write_bytes(bytes(range(256)) * 16)
    known.open(["a/model:0"])
    drop(known.page, path)
    compile_it(known.page)
    expect(known.page.get_by_role("dialog").get_by_role("alert")).to_contain_text("error[M")
