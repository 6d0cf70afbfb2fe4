"""Measures the explorer's page in a browser: `python benchmarks/explorer.py [MODEL.onnx ...]`.

Without models: ResNet-50 and BERT-base of the zoo, and a generated one of 10,000 nodes. It
serves each model as `clew explore` does, waits until it is compiled, and measures in headless
Chromium (drawing in software, as on a machine without a GPU):

- first paint: from navigation until the first panes show their text;
- hover: from the mouse event until the frame after the highlights changed, over text and graph;
- frames per second while the graph, with every group open, is panned and zoomed for three seconds;
- the time for the graph's layout, and the heap at the end.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.request import urlopen

import onnx
import typer
from playwright.sync_api import CDPSession, Page, ViewportSize, sync_playwright
from rich.table import Table

import explorer_models
import zoo
from clew.explorer.bundle import FOLDER
from harness.report import console

_FLAGS: Final = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
_SIZE: Final[ViewportSize] = {"width": 1280, "height": 720}
_COMPILE_S: Final = 600
_PATIENCE_MS: Final = 60_000

# The page's time when all panes show their contents.
_PAINTED: Final = """() => {
  const panes = [...document.querySelectorAll(".pane")];
  const full = (pane) => {
    const host = pane.querySelector(".code-host");
    if (host) return host.shadowRoot?.querySelector(".cm-line");
    const graph = pane.querySelector(".graph-canvas");
    if (graph) return graph.dataset.layout && Number(graph.dataset.drawn) > 0;
    return pane.querySelector(".body")?.textContent && !pane.querySelector("[data-state=loading]");
  };
  return panes.length && panes.every(full) ? performance.now() : false;
}"""
# Records the time from a mouse event to the first frame after the change it caused.
_WATCH: Final = """() => {
  const found = (window.hovers = { begun: 0, times: [] });
  const painted = new MessageChannel();
  let waiting = 0;
  painted.port1.onmessage = () => {
    found.times.push(performance.now() - waiting);
    waiting = 0;
  };
  const changed = () => {
    if (!found.begun) return;
    waiting = found.begun;
    found.begun = 0;
    requestAnimationFrame(() => painted.port2.postMessage(0));
  };
  addEventListener("pointermove", (event) => (found.begun = event.timeStamp), true);
  const attributeFilter = ["class", "data-drawn"];
  const lit = { attributes: true, subtree: true, childList: true, attributeFilter };
  for (const host of document.querySelectorAll(".code-host"))
    new MutationObserver(changed).observe(host.shadowRoot, lit);
  for (const canvas of document.querySelectorAll(".graph-canvas"))
    new MutationObserver(changed).observe(canvas, lit);
}"""
# Pans along the graph, then zooms out and in, one event per frame; returns the time of each frame.
_MOVE: Final = """async ([milliseconds, zoom]) => {
  const canvas = document.querySelector(".graph-canvas");
  const box = canvas.getBoundingClientRect();
  const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };
  const at = { ...middle, bubbles: true, cancelable: true };
  const frames = [];
  const drawn = Number(canvas.dataset.drawn);
  const begun = performance.now();
  let last = begun;
  while (last - begun < milliseconds) {
    const there = (last - begun) % 1000 < 500 ? 1 : -1;
    canvas.dispatchEvent(zoom
      ? new WheelEvent("wheel", { ...at, deltaY: 30 * there, ctrlKey: true })
      : new WheelEvent("wheel", { ...at, deltaX: 3 * there, deltaY: 25 }));
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  return { frames, drawn: Number(canvas.dataset.drawn) - drawn, seconds: (last - begun) / 1000 };
}"""


def main(
    models: Annotated[list[Path] | None, typer.Argument(help="Models.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints a table of figures, one column per model."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chosen = models or _default(Path(folder))
        program = os.environ.get("CLEW_BROWSER") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=_FLAGS)
        for model in chosen:
            with _served(model) as url:
                page = browser.new_page(viewport=_SIZE, reduced_motion="reduce")
                page.set_default_timeout(_PATIENCE_MS)
                rows.append({"model": model.stem, **_measure(page, url)})
                page.close()
        browser.close()
    _print(rows)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


def _default(folder: Path) -> list[Path]:
    large = folder / "blocks.onnx"
    onnx.save(explorer_models.blocks(185), large)
    return [zoo.path("light_resnet50"), zoo.path("bert_base"), large]


@contextlib.contextmanager
def _served(model: Path) -> Iterator[str]:
    """Serves a model and yields the page's URL once it is compiled."""
    command = [sys.executable, "-c", "from clew.cli.app import main; main()", "explore"]
    process = subprocess.Popen(
        [*command, str(model), "--no-browser", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        threading.Thread(target=process.stdout.read, daemon=True).start()
        deadline = time.monotonic() + _COMPILE_S
        while _state(url) != "ready":
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{model} was not compiled")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _state(url: str) -> str:
    with urlopen(f"{url}api/start", timeout=60) as answer:
        return str(json.load(answer)["builds"][0]["state"])


def _measure(page: Page, url: str) -> dict[str, Any]:
    session = page.context.new_cdp_session(page)
    found: dict[str, Any] = {}
    # A build computes some answers on the first request: users see both times.
    for name in ("first paint, first time", "first paint"):
        page.goto("about:blank")
        page.goto(url)
        found[name] = _ms(page.wait_for_function(_PAINTED, polling="raf").json_value())
    found["heap, first panes"] = _heap(session)
    last = _last(page, url)
    _open(page, f"{url}#p=a/model:0&p=a/stage:{last}&p=a/loops:0")
    found["hover, text"] = _hovers(page, ".pane[data-kind=model] .body")
    _open(page, f"{url}#p=a/model:0&p=a/stage:{last}!graph&p=a/loops:0")
    found["hover, graph"] = _hovers(page, ".graph")
    page.goto("about:blank")
    page.goto(f"{url}#p=a/stage:0!graph&story=0")
    canvas = page.wait_for_selector(".graph-canvas[data-layout]")
    assert canvas is not None
    page.evaluate("document.querySelector('.graph-canvas').removeAttribute('data-layout')")
    every = page.locator(".graph-tools [aria-label='Open all']")
    if every.is_enabled():
        every.click()
        page.wait_for_selector(".graph-canvas[data-layout]")
        found["layout"] = canvas.get_attribute("data-layout") or ""
    found["boxes drawn"] = canvas.get_attribute("data-items") or ""
    page.locator(".graph-canvas").focus()
    found["pan, near"] = _frames(page, zoom=False)
    for _ in range(24):
        page.keyboard.press("-")
    found["pan, whole graph"] = _frames(page, zoom=False)
    found["zoom"] = _frames(page, zoom=True)
    found["heap, graph"] = _heap(session)
    return found


def _open(page: Page, url: str) -> None:
    """Opens a URL that may differ only in its hash, and waits for its panes."""
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_function(_PAINTED, polling="raf")
    page.wait_for_load_state("networkidle")


def _last(page: Page, url: str) -> int:
    answer = page.request.get(f"{url}api/a/overview").json()
    return len(answer["stages"]) - 1


def _hovers(page: Page, where: str, count: int = 50) -> str:
    """Moves the mouse to places all over an element; returns the times of highlights."""
    page.evaluate(_WATCH)
    box = page.locator(where).first.bounding_box()
    assert box is not None
    for n in range(count):
        x = box["x"] + box["width"] * (0.15 + 0.5 * (n * 0.37 % 1))
        y = box["y"] + box["height"] * (0.05 + 0.9 * (n * 0.618 % 1))
        page.mouse.move(x, y)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)))")
    times = sorted(page.evaluate("window.hovers.times"))
    if len(times) < 5:
        return f"only {len(times)} highlights"
    late = times[min(len(times) - 1, round(0.95 * len(times)))]
    return f"{statistics.median(times):.0f} / {late:.0f} ms ({len(times)})"


def _frames(page: Page, *, zoom: bool) -> str:
    found = page.evaluate(_MOVE, [3000, zoom])
    frames = sorted(found["frames"])
    late = frames[round(0.95 * (len(frames) - 1))]
    return f"{found['drawn'] / found['seconds']:.0f} fps, p95 {late:.0f} ms"


def _heap(session: CDPSession) -> str:
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return f"{metrics['JSHeapUsedSize'] / 1e6:.0f} MB"


def _ms(value: float) -> str:
    return f"{value:.0f} ms"


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="the explorer's page in Chromium, 1280×720", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row["model"], justify="right")
    for name in dict.fromkeys(key for row in rows for key in row if key != "model"):
        table.add_row(name, *[str(row.get(name, "")) for row in rows])
    console.print(table)
    for file in sorted(FOLDER.iterdir()):
        data = file.read_bytes()
        packed = len(gzip.compress(data)) / 1e3
        console.print(f"{file.name}: {len(data) / 1e3:.0f} kB, {packed:.0f} kB gzipped")


if __name__ == "__main__":
    typer.run(main)
