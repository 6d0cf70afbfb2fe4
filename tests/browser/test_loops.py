"""Loops on the page: the value of each iteration, boxes around bodies, times per iteration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Watch
from explorer_page import ExplorerPage
from playwright.sync_api import BrowserContext, Locator, expect

import clew
from clew.explorer.report import report
from zoo import loops

ITERATIONS = 40


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loops")
    return {
        "scan": loops.scan(folder / "scan.onnx", ITERATIONS),
        "nested": loops.nested(folder / "nested.onnx", 3, ITERATIONS),
    }


@pytest.fixture(scope="module")
def first_values(models: dict[str, Path]) -> list[float]:
    """The first element of `keep` in each iteration, with the inputs that the page draws."""
    compiled = clew.compile(models["scan"], threads=2)
    values = compiled.tap("keep", *compiled.drawn(seed=0), iterations=True)
    return [float(v) for v in values[:, 0, 0]]


def stepper(shown: ExplorerPage) -> Locator:
    return shown.page.get_by_role("group", name="Iteration of the loop")


def button(shown: ExplorerPage, name: str) -> Locator:
    return stepper(shown).get_by_role("button", name=f"{name} iteration")


def expect_iteration(shown: ExplorerPage, iteration: int, first_values: list[float]) -> None:
    """Waits until an iteration, counted from 1, is shown with its value."""
    expect(
        shown.page.locator(f'.value[data-state="ready"][data-iteration="{iteration}"]')
    ).to_be_visible()
    expect(stepper(shown).locator("input")).to_have_value(str(iteration))
    text = shown.page.locator(".value-sample code").inner_text()
    assert float(text.split()[0]) == pytest.approx(first_values[iteration - 1], rel=1e-3, abs=1e-5)


def test_the_stepper_shows_each_iteration(
    explore: Callable[..., ExplorerPage], models: dict[str, Path], first_values: list[float]
) -> None:
    shown = explore(models["scan"]).open(["a/model:0"], at="a/layer:keep")
    expect(stepper(shown)).to_have_count(0)
    shown.page.locator("button.values-head").click()
    expect_iteration(shown, ITERATIONS, first_values)
    expect(stepper(shown)).to_contain_text(f"of {ITERATIONS}")
    button(shown, "First").click()
    expect_iteration(shown, 1, first_values)
    button(shown, "Next").click()
    expect_iteration(shown, 2, first_values)
    button(shown, "Last").click()
    expect_iteration(shown, ITERATIONS, first_values)
    expect(button(shown, "Next")).to_have_attribute("aria-disabled", "true")
    button(shown, "Previous").click()
    expect_iteration(shown, ITERATIONS - 1, first_values)
    number = stepper(shown).locator("input")
    number.fill("17")
    number.press("Enter")
    expect_iteration(shown, 17, first_values)
    number.fill("1000")
    number.press("Enter")
    expect_iteration(shown, ITERATIONS, first_values)


def test_the_stepper_has_the_keyboard(
    explore: Callable[..., ExplorerPage], models: dict[str, Path], first_values: list[float]
) -> None:
    shown = explore(models["scan"])
    shown.open(["a/model:0"], at="a/layer:keep", values="1", iteration="3")
    expect_iteration(shown, 3, first_values)
    button(shown, "Next").focus()
    for key, number in (
        ("Enter", 4),
        ("ArrowLeft", 3),
        ("Home", 1),
        ("ArrowRight", 2),
        ("End", 40),
    ):
        shown.page.keyboard.press(key)
        expect_iteration(shown, number, first_values)
    # Whoever steps to the end keeps the keyboard.
    expect(button(shown, "Next")).to_be_focused()


def test_the_iteration_is_in_the_address(
    explore: Callable[..., ExplorerPage], models: dict[str, Path], first_values: list[float]
) -> None:
    shown = explore(models["scan"])
    shown.open(["a/model:0"], at="a/layer:keep", values="1", iteration="5")
    expect_iteration(shown, 5, first_values)
    button(shown, "Next").click()
    shown.page.wait_for_function("location.hash.includes('iteration=6')")
    shown.page.reload()
    expect_iteration(shown, 6, first_values)


def test_few_iterations_are_asked_for(
    explore: Callable[..., ExplorerPage], models: dict[str, Path], first_values: list[float]
) -> None:
    shown = explore(models["scan"])
    asked: list[str] = []
    shown.page.on("request", lambda r: "/values/" in r.url and asked.append(r.url))
    shown.open(["a/model:0"], at="a/layer:keep", values="1", iteration="3")
    expect_iteration(shown, 3, first_values)
    button(shown, "Next").click()
    expect_iteration(shown, 4, first_values)
    assert len(asked) == 2


def test_a_value_outside_loops_has_no_stepper(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["scan"]).open(["a/model:0"], at="a/layer:total", values="1")
    expect(shown.page.locator('[data-figure="type"]')).to_have_text("float32[]")
    expect(stepper(shown)).to_have_count(0)


def test_a_value_that_is_nowhere_says_why(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["scan"]).open(["a/model:0"], at="a/layer:squash", values="1")
    expect(shown.page.locator(".values .error")).to_contain_text("not in memory")


def test_iterations_of_loops_in_each_other_say_where_they_are(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["nested"])
    shown.open(["a/model:0"], at="a/layer:deep", values="1", iteration="48")
    expect(stepper(shown)).to_contain_text("of 120")
    path = shown.page.locator(".iteration-path")
    expect(path).to_have_text("iteration 2 of 3 of outer, in it iteration 8 of 40 of inner")


def test_loops_are_boxes_in_the_drawn_model(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["nested"]).open(["a/model:0!graph"])
    canvas = shown.page.locator(".graph-canvas")
    expect(canvas).to_have_attribute("data-items", "8")
    with shown.page.expect_download() as saved:
        shown.command("Save the pane as SVG")
    text = Path(saved.value.path()).read_text()
    assert "outer: 3 iterations" in text
    assert "inner: 40 iterations" in text


def test_times_of_a_kernel_in_a_loop_are_by_the_iteration(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["scan"])
    shown.open(["a/time:0", "a/kernels:0", "a/timeline:0"], at="a/kernel:0")
    shown.page.get_by_role("button", name="Measure").first.click()
    expect(shown.pane("time").locator(".rank-detail").first).to_be_visible()
    looped = shown.pane("time").locator(".rank-detail", has_text="40 iterations of ")
    expect(looped).to_have_count(1)
    expect(shown.pane("timeline").locator(".longest")).to_contain_text("40 iterations of ")
    heads = shown.pane("kernels").locator(".head button")
    expect(heads.filter(has_text="per iteration")).to_have_count(1)
    expect(shown.page.locator(".share-iterations")).to_contain_text("40 iterations of ")
    expect(shown.page.locator("article[data-about]")).to_contain_text("(40 iterations of ")


def test_a_report_steps_through_the_iterations_that_it_has(
    models: dict[str, Path],
    context: BrowserContext,
    watch: Watch,
    tmp_path: Path,
    first_values: list[float],
) -> None:
    path = tmp_path / "report.html"
    report(clew.compile(models["scan"], threads=2), path, profile=True)
    context.set_offline(True)
    watch.home = path.as_uri()
    shown = ExplorerPage(context.new_page(), path.as_uri())
    shown.open(["a/model:0"], at="a/layer:keep", values="1", iteration="1")
    expect_iteration(shown, 1, first_values)
    told = f"of {ITERATIONS} iterations: clew explore shows"
    expect(shown.page.locator(".value")).to_contain_text(told)
    for iteration in (2, 3):
        button(shown, "Next").click()
        expect_iteration(shown, iteration, first_values)
    button(shown, "Last").click()
    expect_iteration(shown, ITERATIONS, first_values)
    shown.open(["a/model:0"], at="a/layer:total", values="1")
    expect(shown.page.locator(".values .error")).to_contain_text("does not hold this value")
