"""Takes the pictures of the explorer that `docs/` shows: ResNet-50 and BERT, in Chromium.

    python tools/explorer_pictures.py [NAME ...]

Needs Chromium, the `test` extra and the zoo's models. Times are measured while it runs, so that the
pictures' figures are this machine's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page, sync_playwright

import clew
from zoo import store

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture: `hash` is the page's state, with names where the page has numbers (`numbered`)."""

    name: str
    model: str
    hash: str
    theme: Literal["dark", "light"] = "dark"
    size: tuple[int, int] = (1280, 720)


PICTURES = (
    Picture("explorer-resnet", "light_resnet50", ""),
    Picture("explorer-resnet-light", "light_resnet50", "theme=light", theme="light"),
    Picture(
        "explorer-batch-norm",
        "light_resnet50",
        "p=a/model:0&p=a/stage:<FoldScaleAxis>&p=a/loops:<n5>&p=a/asm:<n5>&at=a/layer:n5",
        size=(1600, 800),
    ),
    Picture(
        "explorer-bias",
        "light_resnet50",
        "p=a/loops:<n5>&p=a/asm:<n5>&at=a/loop:<n5>:<# add>&threads=1",
    ),
    Picture(
        "explorer-heat",
        "light_resnet50",
        "p=a/loops:<n5>&p=a/asm:<n5>&at=a/loop:<n5>:<# add>&heat=time",
    ),
    Picture(
        "explorer-schedule",
        "light_resnet50",
        "p=a/schedule:<n5>@5&p=a/loops:<n5>&at=a/kernel:<n5>",
    ),
    Picture("explorer-roofline", "light_resnet50", "p=a/roofline:0&p=a/timeline:0"),
    Picture("explorer-bert", "bert_base", ""),
    Picture("explorer-bert-light", "bert_base", "theme=light", theme="light"),
    Picture(
        "explorer-attention",
        "bert_base",
        "p=a/model:0&p=a/stage:<MeltAttention>&p=a/loops:<attention>&p=a/asm:<attention>"
        "&at=a/kernel:<attention>",
        size=(1600, 800),
    ),
    Picture(
        "explorer-graph",
        "bert_base",
        "p=a/stage:<PlaceParts>!graph&p=a/asm:<attention>&at=a/kernel:<attention>",
    ),
)
# The difference of two builds of one model.
DIFFERENCE = Picture("explorer-diff", "bert_base", "", size=(1600, 800))


@contextmanager
def served(model: str, *options: str) -> Iterator[str]:
    """Serves a model's page, and gives its address."""
    command = [sys.executable, "-P", "-c", "from clew.cli.app import main; main()"]
    one = ["--no-browser", "--threads", "1"]
    asked = [*command, "explore", *one, str(store.path(model)), *options]
    server = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def numbered(state: str, compiled: clew.CompiledModel) -> str:
    """Returns a page's state with the numbers that its names in `<...>` have in this build.

    A name is that of a stage, of a layer or an operator (the first kernel with it), or a text of
    the loops of the kernel before (its first line): which passes run and what kernels look like
    differs between machines.
    """
    kernel = 0

    def number(found: re.Match[str]) -> str:
        nonlocal kernel
        kind, name = found[1], found[2]
        if kind == "stage:":
            return kind + str([s.name for s in compiled.build.stages].index(name))
        if kind == ":":
            lines = compiled.kernels[kernel].loops.splitlines()
            return kind + str(next(n for n, line in enumerate(lines, 1) if name in line))
        holds = (name in k.layers or f"nn.{name}" in k.ops for k in compiled.kernels)
        kernel = list(holds).index(True)
        return kind + str(kernel)

    return re.sub(r"(\w*:)<([^>]+)>", number, state)


def take(page: Page, address: str, picture: Picture, state: str) -> None:
    """Brings the page to a state and saves what it shows."""
    page.set_viewport_size({"width": picture.size[0], "height": picture.size[1]})
    page.emulate_media(color_scheme="light" if picture.theme == "light" else "dark")
    page.goto("about:blank")
    page.goto(f"{address}#{state}")
    page.wait_for_selector(".pane .body >> visible=true")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2000)  # graphs are laid out, animations have ended
    page.screenshot(path=FOLDER / f"{picture.name}.png")


def measure(page: Page, address: str) -> None:
    """Has the model's time measured, and waits for it."""
    page.goto(address)
    button = page.get_by_role("button", name="Measure").first
    button.wait_for(timeout=120_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(4000)  # the page has work of its own at first
    button.click()
    page.get_by_text("One run takes").wait_for(timeout=120_000)


def compare(page: Page, address: str) -> None:
    """Opens two builds and has their difference worked out."""
    page.set_viewport_size({"width": DIFFERENCE.size[0], "height": DIFFERENCE.size[1]})
    page.emulate_media(color_scheme=DIFFERENCE.theme)
    page.goto(address)
    button = page.get_by_role("button", name="Compare")
    rows = page.locator("[data-kind=diff] [role=row]").nth(5)
    button.or_(rows).first.wait_for(timeout=300_000)
    if button.count():
        button.first.click()
    rows.wait_for(timeout=300_000)
    page.wait_for_timeout(2000)
    page.screenshot(path=FOLDER / f"{DIFFERENCE.name}.png")


def main() -> None:
    """Takes all pictures, or those that are named."""
    wanted = set(sys.argv[1:])
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [p for p in PICTURES if not wanted or p.name in wanted]
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser: Any = play.chromium.launch(executable_path=browser_path, args=list(_FLAGS))
        for model in dict.fromkeys(p.model for p in chosen):
            compiled = clew.compile(store.path(model), threads=1)
            with served(model) as address:
                page = browser.new_page()
                measure(page, address)
                for picture in chosen:
                    if picture.model == model:
                        take(page, address, picture, numbered(picture.hash, compiled))
                page.close()
        if not wanted or DIFFERENCE.name in wanted:
            with served(DIFFERENCE.model, "--b", "precision=bf16 threads=1") as address:
                compare(browser.new_page(), address)
        browser.close()


if __name__ == "__main__":
    main()
