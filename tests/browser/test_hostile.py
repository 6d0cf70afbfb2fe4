"""Names from a model file never become elements, scripts, styles or requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_models import HOSTILE
from conftest import Watch
from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import BrowserContext, expect

import clew
from clew.explorer.report import report

_ALLOWED = """() => {
  const roots = [document];
  for (const root of roots)
    for (const e of root.querySelectorAll("*")) if (e.shadowRoot) roots.push(e.shadowRoot);
  const all = roots.flatMap((root) => [...root.querySelectorAll("*")]);
  const made = all.filter((e) => ["IMG", "IFRAME", "OBJECT", "EMBED", "BASE"].includes(e.tagName));
  const handlers = all.filter((e) => [...e.attributes].some((a) => /^on/i.test(a.name)));
  const scripts = [...document.scripts].filter((s) => s.type !== "application/json");
  const away = all.filter((e) => e.href && /^(javascript|https?):/i.test(String(e.href))
    && !String(e.href).startsWith(location.href.split("#")[0]) && e.tagName === "A");
  return { made: made.length, handlers: handlers.length, scripts: scripts.length, away: away.length,
           loose: document.body.querySelectorAll(":scope > *").length };
}"""
# Texts with characters that are not seen, or with Hebrew that is not isolated.
_TURNED = """() => {
  const roots = [document];
  for (const root of roots)
    for (const e of root.querySelectorAll("*")) if (e.shadowRoot) roots.push(e.shadowRoot);
  const unseen = /[\\0-\\x08\\x0e-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2067\\u2068]/;
  const found = [];
  for (const root of roots) {
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      if (text.parentElement?.closest("script, style")) continue;
      if (unseen.test(text.data)) found.push(text.data);
      const holder = text.parentElement?.closest("bdi, .isolated, option, title");
      const isolated = text.data.includes("\\u2066") || holder;
      if (/[\\u0590-\\u05ff]/.test(text.data) && !isolated) found.push(text.data);
    }
    for (const e of root.querySelectorAll("[title], [aria-label]"))
      for (const name of ["title", "aria-label"])
        if (unseen.test(e.getAttribute(name) ?? "")) found.push(`${name}=${e.getAttribute(name)}`);
  }
  return found;
}"""
PANES = ["a/model:0", "a/stage:0", "a/kernels:0", "a/loops:1"]


def walk(shown: ExplorerPage) -> None:
    """Shows hostile names in every place that shows names."""
    shown.open(PANES)
    plain = shown.evaluate(_ALLOWED)
    assert shown.evaluate(_TURNED) == []
    assert plain["made"] == plain["handlers"] == plain["away"] == 0
    for number in range(3, 14):
        line = shown.line("model", number)
        if line.count():
            line.hover(position=TEXT)
    for n in range(len(HOSTILE)):
        line = shown.pane("model").locator(".cm-line[data-ref]").nth(n)
        if not line.count():
            break
        line.click(position=TEXT)
        expect(shown.page.locator("article[data-about]")).to_be_visible()
        assert shown.evaluate(_ALLOWED) == plain | {"loose": shown.evaluate(_ALLOWED)["loose"]}
        assert shown.evaluate(_TURNED) == []
    shown.page.keyboard.press("/")
    for text in ("img", "script", "alert", "proto"):
        shown.page.locator("input[role=combobox]").fill(text)
        expect(shown.page.locator("dialog [role=option]").first).to_be_visible()
        assert shown.evaluate(_ALLOWED)["made"] == 0
        assert shown.evaluate(_TURNED) == []
    shown.page.keyboard.press("Escape")
    shown.open(["a/model:0!graph", "a/stage:0!graph", "a/time:0", "a/schedule:1"])
    found = shown.evaluate(_ALLOWED)
    assert found["made"] == found["handlers"] == found["away"] == 0
    assert found["scripts"] == plain["scripts"]
    assert shown.evaluate(_TURNED) == []


def test_hostile_names_are_text(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["hostile"])
    walk(shown)
    expect(shown.page.locator("header.bar")).to_contain_text("hostile <b>.onnx")


def test_a_reload_finds_hostile_names_again(
    explore: Callable[..., ExplorerPage], models: dict[str, Path]
) -> None:
    shown = explore(models["hostile"]).open(["a/model:0"])
    lines = shown.pane("model").locator(".cm-line[data-ref]")
    for n in range(lines.count()):
        lines.nth(n).click(position=TEXT)
        tale = shown.page.locator("article[data-about]")
        expect(tale).to_be_visible()
        about = tale.get_attribute("data-about")
        shown.page.reload()
        shown.ready(["model"])
        expect(shown.page.locator("article[data-about]")).to_have_attribute("data-about", about)


def test_a_hostile_report_is_text(
    models: dict[str, Path], context: BrowserContext, watch: Watch, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    report(clew.compile(models["hostile"], threads=2), path, profile=False)
    assert path.read_text().count("<script") == 2
    context.set_offline(True)
    watch.home = path.as_uri()
    walk(ExplorerPage(context.new_page(), path.as_uri()))


@pytest.mark.parametrize("html_of", ["model", "kernel", "story"])
def test_hostile_names_are_text_in_notebooks(
    models: dict[str, Path], context: BrowserContext, watch: Watch, html_of: str
) -> None:
    compiled = clew.compile(models["hostile"], threads=2)
    things = {
        "model": compiled,
        "kernel": compiled.kernels[1],
        "story": compiled.trace.layer(compiled.kernels[1].layers[0]),
    }
    text = things[html_of]._repr_html_()
    page = context.new_page()
    page.set_content(f"<body>{text}</body>")
    found = page.evaluate(_ALLOWED)
    assert found["made"] == found["handlers"] == found["scripts"] == found["away"] == 0
    assert page.evaluate("document.body.children.length") == 1
