"""Partitions: parts in sequence are the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clew
import zoo
from clew.extraction.graph import ModuleGraph
from clew.support.errors import ClewError, InputError

X = np.random.default_rng(5).standard_normal((2, 8)).astype(np.float32)


def same_as_whole(made: clew.Partition) -> None:
    report = made.check()
    assert report.exact
    assert report.passed, str(report)
    assert all(p.check().passed for p in made.parts)
    assert made.check(opt_level=3).passed


def test_values_that_skip_parts(file: Path) -> None:
    made = clew.partition(file, at=["act", "second", "cut"], inputs={"x": X})
    assert [p.layers for p in made.parts] == [
        ("first", "act"),
        ("second",),
        ("residual", "cut"),
        ("join", "out", "side"),
    ]
    assert [s.reads for s in made.stages] == [
        ("x",),
        ("b",),
        ("c", "a"),
        ("left", "right", "b"),
    ]
    assert made.outputs == {"y": "y", "z": "z"}
    same_as_whole(made)
    whole = clew.compile(file, opt_level=0).run({"x": X})
    for name, value in made.expected.items():
        np.testing.assert_array_equal(value, whole[name])


def test_parts_with_options_of_their_own(file: Path) -> None:
    made = clew.partition(file, at=["act"], inputs={"x": X})
    compiled = made.compile(
        [{"passes": clew.Passes(fuse=False), "threads": 1}, {"precision": "bf16"}]
    )
    assert compiled.models[0].options.threads == 1
    wanted = clew.compile(file).run({"x": X})
    for name, value in compiled.run({"x": X}).items():
        np.testing.assert_allclose(value, wanted[name], rtol=5e-2, atol=5e-2)
    y, z = compiled(X)
    assert (y.shape, z.shape) == ((2, 4), (2, 8))
    with pytest.raises(InputError, match=r"I149.*options for 1 parts are given, but there are 2"):
        made.compile([{}])
    with pytest.raises(InputError, match=r"I041.*missing x; unknown q"):
        compiled.run({"q": X})
    targets = made.with_options([{"target": "cpu-avx2"}, None])
    assert [m.options.target.name for m in targets.compile().models] == ["cpu-avx2", "cpu"]


def test_by_ranges(file: Path) -> None:
    made = clew.partition(file, ranges=[("second", "residual"), ("side", "side")])
    names = [p.name for p in made.parts]
    assert names == ["before second to residual", "second to residual", "side to side", "the rest"]
    same_as_whole(made)


def test_results_that_no_layer_computes() -> None:
    """An output that is an input, and one that is a constant."""
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[2, 8]) -> (f32[2, 8], f32[2, 8], f32[2]) with outputs=["a", "b", "c"] {
          %0 = nn.relu(%x)  // act:Relu#0
          %1 = exp(%0)  // exp:Exp#0
          %2 = const [1, 2]
          %3 = (%1, %x, %2)
          return %3
        }
        """.replace("%2 = const [1, 2]", "%2: f32[2] = const [1, 2]")
    )
    made = clew.partition(module, at=["act"], inputs={"x": X})
    same_as_whole(made)
    found = made.compile().run({"x": X})
    np.testing.assert_array_equal(found["b"], X)
    np.testing.assert_array_equal(found["c"], [1, 2])


@pytest.mark.parametrize("model", ["bert_tiny_dynamic", "if_branches", "llama_tiny"])
def test_networks(model: str) -> None:
    """Sizes without numbers, branches, heads that groups share."""
    path = zoo.path(model)
    names = _layers(path)
    made = clew.partition(path, at=[names[len(names) // 2]], inputs=zoo.inputs(model))
    same_as_whole(made)


def _layers(path: Path) -> list[str]:
    graph = ModuleGraph(clew.load(path)).layers
    return [n for number, n in enumerate(graph.names) if number not in graph.fixed]


@pytest.mark.parametrize("form", ["txt", "onnx"])
def test_in_a_folder(file: Path, tmp_path: Path, form: str) -> None:
    made = clew.partition(file, at=["act", "second"], inputs={"x": X})
    folder = tmp_path / "parts"
    files = made.with_options([{"threads": 1}, None, None]).save(folder, form)
    assert all(f.is_file() for f in files)
    back = clew.load_partition(folder)
    assert [s.options for s in back.stages] == [{"threads": 1}, {}, {}]
    same_as_whole(back)
    done = subprocess.run(
        [sys.executable, "run.py", "--threads", "1", "--repeats", "2"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3 parts in sequence: as captured, bit for bit" in done.stdout
    assert "in sequence: median" in done.stdout


def test_what_is_no_partition(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"I144"):
        clew.partition(file)
    with pytest.raises(InputError, match=r"I148.*ends with act is empty"):
        clew.partition(file, at=["residual", "act"])
    with pytest.raises(InputError, match=r"I130"):
        clew.partition(file, at=["residuum"])
    made = clew.partition(clew.load(file), at=["act"])
    made.save(tmp_path / "exported", "onnx")
    assert clew.load_partition(tmp_path / "exported").check().passed
    with pytest.raises(InputError, match=r"I135.*no form 'c'"):
        made.save(tmp_path / "parts", "c")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"I138"):
        made.save(tmp_path / "file" / "parts")
    with pytest.raises(InputError, match=r"I139.*does not contain a partition"):
        clew.load_partition(tmp_path / "nowhere")
    made.save(tmp_path / "parts")
    manifest = tmp_path / "parts" / "manifest.json"
    for change in ({"format": 2}, {"parts": [{"file": "../part0.txt"}]}, {"inputs": 3}):
        told = json.loads(manifest.read_text())
        (tmp_path / "parts" / "manifest.json").write_text(json.dumps({**told, **change}))
        with pytest.raises(InputError, match=r"I139"):
            clew.load_partition(tmp_path / "parts")
        manifest.write_text(json.dumps(told))
    told = json.loads(manifest.read_text())
    told["parts"][0]["options"] = {"thread": 1}
    manifest.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"I149.*part0.txt has the option thread"):
        clew.load_partition(tmp_path / "parts")
    told["parts"][0]["options"] = {}
    manifest.write_text(json.dumps(told))
    (tmp_path / "parts" / "part0.txt").unlink()
    with pytest.raises(ClewError, match=r"P011"):
        clew.load_partition(tmp_path / "parts")
