"""The explorer's page as tests drive it: panes, lines, what is lit. It waits for conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Locator, Page, TimeoutError, expect

# Lines of a pane that are drawn, and those of them that are lit, by number.
_LINES = """(kind) => {
  const host = document.querySelector(`.pane[data-kind="${kind}"] .code-host`);
  const lines = [...(host?.shadowRoot?.querySelectorAll(".cm-line[data-line]") ?? [])];
  const numbers = (some) => some.map((line) => Number(line.dataset.line));
  const of = (name) => numbers(lines.filter((line) => line.classList.contains(name)));
  return { drawn: numbers(lines), exact: of("exact"), own: of("own"), weak: of("weak"),
           chosen: of("chosen") };
}"""
_LIT = f"""([kind, wanted]) => {{
  const found = ({_LINES})(kind);
  const lit = [...found.exact, ...found.own, ...found.weak].sort((a, b) => a - b);
  const drawn = new Set(found.drawn);
  return found.drawn.length > 0
    && JSON.stringify(lit) === JSON.stringify(wanted.filter((n) => drawn.has(n)));
}}"""
# Waits until no line of code has moved for three frames: an editor measures its text once it is
# there, and draws lines anew then.
_SETTLED = """async () => {
  const places = () => JSON.stringify([...document.querySelectorAll(".code-host")].map((host) =>
    [...(host.shadowRoot?.querySelectorAll(".cm-line") ?? [])].map((line) => {
      const { x, y, width } = line.getBoundingClientRect();
      return [x, y, width];
    })));
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  let [last, still] = [places(), 0];
  while (still < 3) {
    await frame();
    const now = places();
    [last, still] = [now, now === last ? still + 1 : 0];
  }
}"""


# How long anything may take: machines that run tests are busy.
PATIENCE_MS = 20_000
# A place in a line where there is text: the middle of a long one may be out of sight.
TEXT: Any = {"x": 30, "y": 8}


class ExplorerPage:
    """A page of a server or a report."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self, panes: Sequence[str] = (), *, builds: str = "a", **state: str) -> ExplorerPage:
        """Opens panes, such as `a/loops:3`, with more of the page's state, and waits for them."""
        parts = [f"p={quote(p, safe='/:!@')}" for p in panes]
        parts += [f"{key}={quote(value, safe='/:')}" for key, value in state.items()]
        self.page.goto(f"{self.url}#{'&'.join(parts)}")
        self.ready(panes)
        return self

    def ready(self, panes: Sequence[str] = ()) -> None:
        """Waits until the film strip and all text is there and stands still."""
        expect(self.page.locator("nav.strip button").first).to_be_visible()
        if panes:
            expect(self.page.locator(".pane")).to_have_count(len(panes))
        expect(self.page.locator('.pane [data-state="loading"]')).to_have_count(0)
        self.page.evaluate(_SETTLED)

    def pane(self, kind: str) -> Locator:
        return self.page.locator(f'.pane[data-kind="{kind}"]')

    def line(self, kind: str, number: int) -> Locator:
        return self.pane(kind).locator(f'.cm-line[data-line="{number}"]')

    def line_of(self, kind: str, ref: str) -> Locator:
        return self.pane(kind).locator(f'.cm-line[data-ref="{ref}"]').first

    def lines(self, kind: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = self.page.evaluate(_LINES, kind)
        return found

    def expect_lit(self, kind: str, wanted: Iterable[int]) -> None:
        """Waits until exactly these lines of a pane are lit, of those that are drawn."""
        numbers = sorted(wanted)
        try:
            self.page.wait_for_function(_LIT, arg=[kind, numbers], timeout=PATIENCE_MS)
        except TimeoutError:
            raise AssertionError(f"{kind}: {self.lines(kind)}, not {numbers}") from None

    def expect_visible_line(self, kind: str, number: int) -> None:
        """Waits until a pane has scrolled to a line."""
        expect(self.line(kind, number)).to_be_in_viewport()

    def hash(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def command(self, title: str) -> None:
        """Runs a command of the palette."""
        self.page.keyboard.press("Control+k")
        box = self.page.locator("input[role=combobox]")
        box.fill(title)
        expect(self.page.locator("dialog [role=option]").first).to_be_visible()
        box.press("Enter")

    def evaluate(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)
