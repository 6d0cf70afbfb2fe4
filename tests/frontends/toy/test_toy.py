"""A format of another package: one file and an entry point give it all that clew's own have."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.explorer.session import Session
from clew.explorer.views.source import source
from clew.frontends import formats

NETWORK: dict[str, Any] = {
    "toy": 1,
    "inputs": {"x": ["n", 4]},
    "parameters": {"w": [[1, 0, 0, 2], [0, 1, -3, 0]], "b": [0.5, -0.5], "unused": [1]},
    "outputs": ["y"],
    "layers": [
        {"name": "first", "op": "dense", "in": ["x", "w"], "out": "h"},
        {"name": "second", "op": "add", "in": ["h", "b"], "out": "s"},
        {"name": "gate", "op": "pass", "in": ["s"], "out": "g"},
        {"name": "idle", "op": "add", "in": ["b", "b"], "out": "i"},
        {"name": "last", "op": "clamp", "in": ["g"], "out": "y", "max": 3},
    ],
}
X = np.array([[1, 2, 0, 0.5], [-1, 0, 1, 4]], np.float32)
Y = np.array([[2.5, 1.5], [3, 0]], np.float32)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The format, as an installed package declares it."""
    about = tmp_path / "site" / "clew_toy-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clew-toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[clew.formats]\ntoy = clew_toy:TOY\n")
    monkeypatch.syspath_prepend(about.parent)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    formats._added.cache_clear()
    yield
    formats._added.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.json"  # the suffix does not matter
    path.write_text(json.dumps(NETWORK))
    return path


def test_import_and_trace(file: Path) -> None:
    module = clew.load(file)
    assert module.main.attrs.eliminated == (("idle", "add", "known at import"),)
    compiled = clew.compile(file, sizes={"n": 2})
    np.testing.assert_array_equal(compiled(X), Y)
    assert list(compiled.trace.layers) == ["first", "second", "gate", "last", "idle"]

    (kernel,) = compiled.kernels
    assert {"first", "second", "last"} <= set(kernel.layers)


def test_errors_have_code_and_place(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"op": "sort"}, "U001"), ({"max": None}, "M012"), ({"in": ["z"]}, "M031"),
    ]  # fmt: skip
    for layer, code in cases:
        changed = {**NETWORK["layers"][-1], **layer}
        path.write_text(json.dumps({**NETWORK, "layers": [*NETWORK["layers"][:-1], changed]}))
        with pytest.raises(clew.ClewError) as caught:
            clew.load(path)
        assert (caught.value.code, caught.value.layer) == (code, "last")


def test_cut(file: Path, tmp_path: Path) -> None:
    part = clew.extract(file, start="second", end="gate", inputs={"x": X})
    assert part.check().passed
    written = part.save(tmp_path / "part.toy")
    assert [p.name for p in written] == ["part.toy", "part.toy.npz"]
    cut = json.loads(written[0].read_text())
    assert [layer["name"] for layer in cut["layers"]] == ["second", "gate"]
    assert list(cut["parameters"]) == ["b"]
    assert clew.load_part(written[0]).check().passed
    assert clew.load_part(part.save(tmp_path / "part.onnx")[0]).check().passed


def test_reference(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = clew.bisect(file, {"x": X}, reference="toy-numpy")
    assert right.kind == "none"
    toy = importlib.import_module("clew_toy")
    wrong = {1: lambda layer: toy.call("clip", layer.input(0), min=0.0, max=2.0)}
    monkeypatch.setitem(toy.CONVERTERS, "clamp", wrong)
    verdict = clew.bisect(file, {"x": X}, reference="toy-numpy", reduce=False)
    assert (verdict.kind, verdict.layers) == ("import", ("last",))


def test_explorer(file: Path) -> None:
    compiled = clew.compile(file, sizes={"n": 2})
    shown = source(Session(compiled, model=file.name, path=file)).text.splitlines()
    assert shown[0] == "network.json: toy, version 1"
    assert "  last = clamp(g) max=3 → y: f32[2, 2]" in shown


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("clew_absent:TOY", "the format toy needs clew_absent, which is not installed"),
        ("clew_toy:ABSENT", "the format toy cannot be loaded: AttributeError: "),
        ("clew_toy:Toy", "the format toy cannot be loaded: TypeError: "),
        ("clew_broken:TOY", "the format toy cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_a_package_that_cannot_be_loaded_hides_its_format_only(
    value: str, reason: str, file: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    (site / "clew_broken.py").write_text("1 / 0\n")
    declared = f"[clew.formats]\ntoy = {value}\n"
    (site / "clew_toy-1.0.dist-info" / "entry_points.txt").write_text(declared)
    with (
        pytest.warns(clew.ClewWarning, match=r"I356") as shown,
        pytest.raises(clew.ClewError) as caught,
    ):
        clew.load(file)
    assert caught.value.code == "I002"
    (warning,) = (w.message for w in shown)
    assert isinstance(warning, clew.ClewWarning)
    assert warning.message.startswith(reason)
    assert "clew-toy" in warning.hint
    text = tmp_path / "model.txt"
    text.write_text("clew 1\ndef @main(%x: f32[2]) -> f32[2] {\n  return %x\n}\n")
    assert clew.load(text).main.params
