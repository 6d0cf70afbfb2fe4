"""What notebooks show: escaped, without scripts, saying what the tables say."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.trace.story import place_lines, said

_TAGS = {"div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "code"}


class _Parsed(HTMLParser):
    """Tags, attributes and text of HTML; every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(thing: Any) -> _Parsed:
    found = _Parsed(thing._repr_html_())
    assert found.tags <= _TAGS
    assert found.attributes <= {"style"}
    return found


@pytest.fixture(scope="module")
def compiled() -> clew.CompiledModel:
    return clew.compile(zoo.path("resnet_tiny"), threads=1)


def test_a_model_lists_its_kernels_and_their_times(compiled: clew.CompiledModel) -> None:
    before = parsed(compiled)
    assert f"{len(compiled.kernels)} kernels" in before.text
    assert compiled.kernels[0].name in before.text
    assert "µs" not in before.text
    arrays = [np.ones(i.shape, np.float32) for i in compiled.inputs]  # type: ignore[arg-type]
    profile = compiled.profile(*arrays, repeats=3, warmup=1, sample=False, roofline=False)
    after = parsed(compiled)
    longest = max(profile.kernels, key=lambda k: k.ns)
    assert longest.name in after.text
    assert "µs" in after.text
    assert "share" in after.text


def test_a_kernel_shows_its_loops(compiled: clew.CompiledModel) -> None:
    kernel = compiled.kernels[1]
    text = parsed(kernel).text
    for part in (kernel.name, *kernel.layers, *kernel.ops, *kernel.loops.splitlines()[:3]):
        assert part.strip() in text


def test_a_story_says_what_the_terminal_says(compiled: clew.CompiledModel) -> None:
    story = compiled.trace.layer(compiled.kernels[1].layers[0])
    text = parsed(story).text
    for section in story.sections:
        assert section.head in text
        for sentence in section.sentences:
            assert said(sentence) in text
        for line in place_lines(section.places):
            assert line in text


def test_symbolic_sizes_before_and_after_a_run() -> None:
    module = clew.parse(
        """clew 1
def @main(%x: f32[n, 4]) -> (f32[n, 4],) {
  %0: f32[n, 4] = nn.relu(%x)
  %1 = (%0,)
  return %1
}
"""
    )
    compiled = clew.compile(module, threads=1)
    assert "kernels" not in parsed(compiled).text
    compiled(np.ones((3, 4), np.float32))
    assert "1 kernel" in parsed(compiled).text
