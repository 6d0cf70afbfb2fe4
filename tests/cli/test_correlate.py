"""`clew correlate` and `clew tap`: tables, JSON, files, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import zoo
from clew.cli import app


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main([*map(str, arguments), "--threads", "1"])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_what_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, file = zoo.path("if_branches"), tmp_path / "graph.json"
    code, out, err = command(capsys, "correlate", path)
    assert code == 0, err
    assert "in if (then):" in out
    assert "dense 4x16x16 f32" in out
    assert "5 kernels (5 distinct)" in out
    code, out, err = command(capsys, "correlate", path, "-o", file)
    assert code == 0, err
    assert out == ""
    assert "graph.json" in err
    written = json.loads(file.read_text())
    assert written["format"] == "clew-graph"
    code, out, err = command(capsys, "correlate", path, "--json")
    assert json.loads(out) == written


def test_a_kernel_and_a_layer(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("resnet_tiny")
    code, out, err = command(capsys, "correlate", path, "--layer", "node_Conv_171")
    assert code == 0, err
    assert "node_Conv_171 (Conv) runs in conv2d_add_add_relu" in out
    assert "conv2d 1x1 4→16 NCHW f32" in out
    assert "AlterLayout" in out
    assert "nn.relu" not in out
    code, out, err = command(capsys, "correlate", path, "--kernel", "conv2d_add_add_relu", "--json")
    assert code == 0, err
    node = json.loads(out)
    assert [o["operator"]["op"] for o in node["ops"]] == ["nn.conv2d", "add", "add", "nn.relu"]
    assert node["ops"][0]["history"][0]["stage"] == "import"
    assert node["kernel"]["rules"]
    code, out, err = command(capsys, "correlate", path, "--kernel", "conv2d_ad")
    assert code == 1
    assert "I121" in err
    assert command(capsys, "correlate", "model.clew")[0] == 2
    both = ("--kernel", "a", "--layer", "b")
    assert command(capsys, "correlate", path, *both)[0] == 2


def test_named_sizes_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("bert_tiny_dynamic")
    code, _, err = command(capsys, "correlate", path)
    assert code == 1
    assert "--shape" in err
    sizes = ("--shape", "input_ids=1,5", "--shape", "attention_mask=1,5")
    code, out, err = command(capsys, "correlate", path, *sizes)
    assert code == 0, err
    assert "f32[1, 5, 128]" in out


def test_taps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = zoo.path("resnet_tiny")
    code, out, err = command(capsys, "tap", path)
    assert code == 0, err
    assert "inside a kernel" in out
    assert "15 in memory, 13 inside a kernel, 0 no longer computed" in out
    file = tmp_path / "relu.npy"
    code, out, err = command(capsys, "tap", path, "--layer", "node_relu", "-o", file)
    assert code == 0, err
    assert "float32[1, 16, 32, 32]" in out
    assert np.load(file).shape == (1, 16, 32, 32)
    code, out, err = command(capsys, "tap", path, "--layer", "node_add*", "-o", tmp_path / "all")
    assert code == 0, err
    assert "not node_add_2: it stays inside the kernel" in out.replace("\n", " ")
    forced = ("--layer", "node_add*", "--force", "-o", tmp_path / "all")
    code, out, err = command(capsys, "tap", path, *forced)
    assert code == 0, err
    assert "the other 15 kernels are the same" in err
    assert len(list((tmp_path / "all").glob("*.npy"))) == 3


def test_taps_that_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = zoo.path("resnet_tiny")
    code, out, err = command(capsys, "tap", path, "--layer", "node_add")
    assert code == 1
    assert out == ""
    assert "I150" in err
    assert "--force" in err
    relu = ("--layer", "node_relu", "-o", tmp_path / "no" / "relu.npy")
    assert "I063" in command(capsys, "tap", path, *relu)[2]
    code, out, err = command(capsys, "tap", path, "--layer", "node_relu*", "--json")
    assert len(json.loads(out)["values"]) == 10
    code, out, err = command(capsys, "tap", path, "--json")
    assert json.loads(out)["node_add"]["state"] == "fused"
    assert command(capsys, "tap", "model.clew")[0] == 2
