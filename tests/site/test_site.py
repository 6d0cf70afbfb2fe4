"""The documentation site: its reference, its recorded example, its warnings and its links."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import clew
from clew.trace.export import write_json

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
MODEL = """clew 1
def @main(
  %x: f32[4, 64],
  %w: f32[32, 64]
) -> (f32[4, 32],) with outputs=["y"] {
  %0 = nn.dense(%x, %w)  // head:MatMul#0
  %1 = nn.relu(%0)  // act:Relu#1
  %2 = (%1,)
  return %2
}
"""


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"clew_site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _rooms() -> Iterator[tuple[str, list[str]]]:
    for room in clew._ROOMS:
        if importlib.util.find_spec(f"clew.{room}") and room != "torch":  # which needs torch
            yield room, list(getattr(importlib.import_module(f"clew.{room}"), "__all__", ()))


def test_the_reference_has_each_public_name_once() -> None:
    reference = _module("reference")
    names = [name for group in reference.GROUPS.values() for name in group]
    assert sorted(names) == sorted(clew.__all__)
    # Of pipelines, each function is public; other modules list their public names.
    assert set(reference.ROOMS) == {room for room, names in _rooms() if names} | {
        "pipelines",
        "torch",
    }


def test_public_names_are_documented() -> None:
    found = {name: getattr(clew, name) for name in clew.__all__ if name != "from_torch"}
    for room, names in _rooms():
        module = importlib.import_module(f"clew.{room}")
        found |= {f"{room}.{name}": getattr(module, name) for name in names}
    callables = {name: value for name, value in found.items() if callable(value)}
    assert len(callables) > 150
    lacking = [name for name, value in callables.items() if not inspect.getdoc(value)]
    for name, value in callables.items():
        if inspect.isclass(value):
            lacking += [f"{name}.{method}" for method in _undocumented(value)]
    assert lacking == []


def _undocumented(of: type) -> Iterator[str]:
    for name, value in inspect.getmembers(of):
        if name[0] == "_" or not (inspect.isroutine(value) or isinstance(value, property)):
            continue
        function = value.fget if isinstance(value, property) else value
        ours = (getattr(function, "__module__", None) or "").startswith("clew")
        if ours and not inspect.getdoc(value):
            yield name


def test_a_recorded_trace_in_panes(tmp_path: Path) -> None:
    compiled = clew.compile(clew.parse(MODEL), threads=1, cache=False)
    write_json(compiled.trace, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    (kernel,) = trace["kernels"]
    made = _module("record").panes(trace, {kernel["name"]: 7.0})
    rows = {pane["title"]: pane["rows"] for pane in made}
    assert list(rows) == ["Model", "Kernels", "Loops", "Instructions"]
    (dense,) = (row for row in rows["Model"] if "nn.dense" in row["text"])
    assert (dense["layers"], dense["us"]) == ([0], 7.0 if len(trace["stages"]) == 1 else 0.0)
    assert {row["us"] for row in rows["Kernels"] if row["layers"]} <= {0.0, 7.0}
    assert any(row["us"] == 7.0 for row in rows["Kernels"])
    assert {row["us"] for row in rows["Loops"] + rows["Instructions"]} == {7.0}
    assert {n for row in rows["Instructions"] for n in row["layers"]} == {0, 1}
    led = [row for row in rows["Instructions"] if "loop" in row]
    assert led
    assert all(rows["Loops"][row["loop"]]["layers"] == row["layers"] for row in led)


def test_it_builds_without_a_warning_and_all_links_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    command = ["mkdocs", "build", "--quiet", "--strict", "--config-file", SITE / "mkdocs.yml"]
    built = subprocess.run(
        [sys.executable, "-m", *map(str, command), "--site-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 100
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    lost = []
    for path, text in pages.items():
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            if re.match(r"[a-z]+:", link) or path.name == "404.html":
                continue
            file, _, anchor = link.partition("#")
            there = (path.parent / unquote(file)).resolve() if file else path
            if not there.exists() or (anchor and unquote(anchor) not in anchors.get(there, ())):
                lost.append((path.name, link))
    assert lost == []
    remote = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="https?://')
    assert [path.name for path, text in pages.items() if remote.search(text)] == []
