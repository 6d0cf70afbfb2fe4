"""`clew diff`: two builds as tables and as JSON, from what one types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import zoo
from clew.cli import app
from clew.cli import diff as command_diff

MODEL = "resnet_tiny"
QUICK = ("--threads", 1, 1, "--no-time")


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["diff", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_two_precisions_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path(MODEL)
    code, out, err = command(
        capsys, path, "--precision", "f32", "bf16", "--threads", 1, 1, "--rounds", 2, "--layers", 5
    )
    assert code == 0, err
    assert "bf16" in out.splitlines()[1]
    assert "ms a run" in out
    assert "values first diverge at" in out
    assert "more, that differ less: --layers 0" in out
    assert "random inputs, seed 0" in err


def test_json_of_layers_that_differ_in_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path(MODEL)
    code, out, err = command(
        capsys,
        path,
        path,
        *QUICK,
        "--a",
        "fuse=none",
        "--only",
        "fusion",
        "--no-numerics",
        "--json",
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["layers"]
    assert all("fusion" in layer["differs"] for layer in found["layers"])
    assert found["summary"]["a"]["options"]["fuse"] == "none"
    assert found["summary"]["time"] is None


def test_one_layer_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path(MODEL)
    asked = (path, *QUICK, "--opt-level", 0, 3, "--no-numerics")
    code, out, err = command(capsys, *asked, "--layer", "node_relu")
    assert code == 0, err
    assert out.splitlines()[0].startswith("node_relu (Relu)")
    assert "matched by name" in out
    code, out, err = command(capsys, *asked, "--groups")
    assert code == 0, err
    assert "kernels of B" in out


def test_the_same_twice_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, zoo.path(MODEL), *QUICK, "--no-numerics")
    assert code == 0
    assert "no layer differs" in out
    assert "the same model with the same options" in err


def test_a_schedule_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import clew\n\n"
        '@clew.schedule_for(op="nn.global_avg_pool2d")\n'
        "def plainly(schedule, target):\n    pass\n\n"
        "extend = [plainly]\n"
    )
    asked = (zoo.path(MODEL), *QUICK, "--no-numerics", "--only", "schedule", "--json")
    code, out, err = command(capsys, *asked, "--extend", "none", file)
    assert code == 0, err
    (layer,) = json.loads(out)["layers"]
    assert layer["differs"]["schedule"].endswith("→ plainly")
    file.write_text("extend = 1")
    code, _, err = command(capsys, *asked, "--extend", "none", file)
    assert code == 1
    assert "I176" in err
    code, _, err = command(capsys, *asked, "--b", f"extend={tmp_path / 'missing.py'}")
    assert code == 1
    assert "I176" in err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("opt_level=1 precision=bf16", {"opt_level": 1, "precision": "bf16"}),
        ("opt-level=1", {"opt_level": 1}),
        ("fuse=none threads=2", {"fuse": False, "threads": 2}),
        ("keep_f32='a b',c*", {"keep_f32": ("a b", "c*")}),
        ("backend=numpy,openvino place=none", {"backends": ("numpy", "openvino"), "place": ()}),
        ("place='numpy=a,b; openvino=c*'", {"place": ["numpy=a,b", "openvino=c*"]}),
        ("disabled=A,B extend=none", {"disabled": ("A", "B"), "extend": ()}),
    ],
)
def test_options_as_they_are_typed(text: str, found: dict[str, Any]) -> None:
    assert command_diff.build_options([text], {}, "--a") == found


def test_options_add_up() -> None:
    made = command_diff.build_options(["threads=2", "opt_level=1"], {"opt_level": "0"}, "--a")
    assert made == {"threads": 2, "opt_level": 1}


def test_wrong_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = zoo.path(MODEL)
    for wrong in (
        ("--a", "speed=high"),
        ("--a", "opt_level=high"),
        ("--a", "fuse=perhaps"),
        ("--a", "'"),
        ("--only", "nothing", *QUICK, "--no-numerics"),
    ):
        assert command(capsys, path, *wrong)[0] == 2, wrong
    assert command(capsys, tmp_path / "model.clew")[0] == 2
    code, _, err = command(capsys, path, *QUICK, "--precision", "f32", "f8")
    assert code == 1
    assert "I013" in err
