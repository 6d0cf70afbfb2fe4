"""The demo says what it promises, and fails where outputs differ."""

from __future__ import annotations

import argparse
import io
import re

import pytest
from rich.console import Console

import demo


def show(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    monkeypatch.setattr(demo, "_RUN_SECONDS", 0.0)
    out = Console(width=100, file=io.StringIO(), highlight=False)
    right = demo._show(out, name, argparse.Namespace(threads=1, rows=2, layer=None))
    assert isinstance(out.file, io.StringIO)
    return right, out.file.getvalue()


def test_one_network_from_its_times_to_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    right, text = show("if_branches", monkeypatch)
    assert right
    for part in ("compile again", "ONNX Runtime", "max |error| / max |output|", "more, with"):
        assert part in text
    story = text[text.index("the story of layer") :]
    assert re.search(r"^import +the layer as it was read$", story, re.MULTILINE)
    assert re.search(r"^FuseOps ", story, re.MULTILINE)
    assert re.search(r"\d+ of its \d+ instructions are this layer's", story)
    assert re.search(r"^ +[0-9a-f]+  v?\w+ \w+", story, re.MULTILINE)
    assert all(len(line) <= 100 for line in text.splitlines())


def test_wrong_outputs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "relative_error", lambda *_: 1.0)
    right, text = show("if_branches", monkeypatch)
    assert not right
    assert "1.0e+00" in text
