"""Passes as text: each file in `text/` is a module, a line of dashes, and the module after the pass
that the file is named for. `CLEW_UPDATE_TEXT=1` writes what the passes give now; review the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import clew.ops  # noqa: F401
from clew.ir.parser import parse_module
from clew.ir.printer import print_module
from clew.machine.target import target_of
from clew.passes.base import Pass
from clew.pipelines import pipeline

FILES = sorted((Path(__file__).parent / "text").glob("*.clew"))
LINE = "-" * 80 + "\n"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_before_and_after(kit: Any, file: Path) -> None:
    before, _, after = file.read_text().partition(LINE)
    module = parse_module(before)
    assert print_module(module) == before
    name = file.stem.split("-")[0]
    on_tiles = name.startswith("Split") or file.stem.endswith("-parts")
    target = kit.tiles() if on_tiles else kit.lanes()
    if file.stem.endswith("-avx2"):
        target = target_of("cpu-avx2")
    manager = kit.PassManager([_passes()[name]], target=target)
    found = _renumbered(print_module(manager.run(module)))
    if os.environ.get("CLEW_UPDATE_TEXT"):
        file.write_text(before + LINE + found)
    else:
        assert found == _renumbered(after)


def test_every_pass_of_the_pipeline_has_a_text() -> None:
    assert {f.stem.split("-")[0] for f in FILES} == set(_passes())


def _renumbered(text: str) -> str:
    """Returns a text in which unknown sizes have numbers in the order in which they appear."""
    numbers: dict[str, int] = {}
    return re.sub(r"\?\d+", lambda name: f"?{numbers.setdefault(name[0], len(numbers))}", text)


def _passes() -> dict[str, Pass]:
    return {p.name: p for precision in ("bf16", "f32") for p in pipeline(3, precision)}
