"""`clew extract` and `clew partition`: what they write, print, check and refuse."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import clew
import zoo
from clew.cli import app
from clew.ir.textfile import load_arrays, save_arrays


def model() -> Path:
    return zoo.path("resnet_tiny")


@cache
def layers() -> list[str]:
    return [n.name for n in onnx.load(model(), load_external_data=False).graph.node]


def first() -> str:
    return layers()[6]


def last() -> str:
    return layers()[12]


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main([*map(str, arguments), "--threads", "1"])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_a_range_in_all_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [tmp_path / f"part.{suffix}" for suffix in ("txt", "onnx", "py")]
    asked = [x for f in files for x in ("-o", f)]
    chosen = ("--from", first(), "--to", last())
    code, out, err = command(capsys, "extract", model(), *chosen, *asked, "--check", "--seed", 3)
    assert code == 0, err
    assert f"{first()} to {last()}: 7 layers" in out
    assert out.count("same bits") >= 3
    assert "WRONG" not in out
    assert "other inputs are random, seed 3" in err
    for file in files:
        code, out, err = command(capsys, "extract", file, "--check")
        assert code == 0, err
        assert "as captured" in out
        assert "at opt level 3" in out


def test_kernels_nodes_and_patterns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernel = clew.compile(model()).kernels[2].name
    pattern = tmp_path / "own.py"
    pattern.write_text(
        "from clew.patterns import is_op, wildcard\n"
        "ACT = is_op('nn.relu')(is_op('add')(wildcard(), wildcard()))\n"
        "NONE = 3\n"
    )
    for chosen in (
        ("--kernel", kernel),
        ("--nodes", "2:5"),
        ("--pattern", "nn.relu(add(*, *))", "--match", 1),
        ("--pattern", f"{pattern}:ACT"),
        ("--layer", first()),
    ):
        code, out, err = command(capsys, "extract", model(), *chosen, "--check", "--json")
        assert code == 0, err
        told = json.loads(out)
        assert told["layers"]
        assert all(check["passed"] for check in told["checks"])
    for wrong, said in (
        ((f"{pattern}:NONE"), "a int, not a pattern"),
        ((f"{pattern}:ACTS"), "ACTS"),
        (("nowhere.at_all:X"), "No module named"),
        (("nn.relu(add(*)"), "column"),
    ):
        code, _, err = command(capsys, "extract", model(), "--pattern", wrong)
        assert code == 1
        assert "I145" in err
        assert said in err


def test_given_inputs_are_captured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (name, value) = next(iter(zoo.inputs("resnet_tiny").items()))
    np.save(tmp_path / "x.npy", value)
    target = tmp_path / "part.txt"
    given = ("--input", f"{name}={tmp_path / 'x.npy'}", "--to", layers()[0], "-o", target)
    code, _, err = command(capsys, "extract", model(), *given)
    assert code == 0, err
    np.testing.assert_array_equal(clew.load_part(target).inputs[name], value)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--from", "node_rel"), "I130", "near it are"),
        (("--from", "{last}", "--to", "{first}"), "I132", "is reversed"),
        (("--pattern", "tanh(*)"), "I146", "no match"),
        (("--kernel", "conv"), "I141", "no kernel is named"),
        (("--nodes", "1:1000"), "I143", "executor's nodes, 0:"),
        ((), "I144", "no part is chosen"),
        (("--from", "{first}", "-o", "part.bin"), "I135", "not have the suffix"),
        (("--from", "{first}", "-o", "/dev/null/part.txt"), "I138", "cannot write"),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: str, said: str
) -> None:
    given = [a.format(first=first(), last=last()) for a in arguments]
    left, out, err = command(capsys, "extract", model(), *given)
    assert left == 1
    assert not out
    assert f"error[{code}]" in err
    assert said in err


def test_a_part_that_is_not_as_captured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    part = tmp_path / "part.txt"
    command(capsys, "extract", model(), "--from", first(), "-o", part)
    arrays = load_arrays(part.with_suffix(".npz"))
    save_arrays(part.with_suffix(".npz"), {**arrays, "out0": arrays["out0"] + 1})
    code, out, err = command(capsys, "extract", part, "--check")
    assert code == 1
    assert "WRONG" in out
    assert "C130" in err


def test_partition(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    asked = ("--at", first(), "--at", last(), "-o", folder, "--check")
    code, out, err = command(capsys, "partition", model(), *asked)
    assert code == 0, err
    assert f"up to {first()}" in out
    assert "in sequence, opt level 3" in out
    assert (folder / "manifest.json").is_file()
    code, out, err = command(capsys, "partition", folder, "--check", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [p["name"] for p in told["parts"]] == [f"up to {first()}", f"up to {last()}", "the rest"]
    assert all(check["passed"] for check in told["checks"])
    ranges = (
        "--from",
        first(),
        "--to",
        last(),
        "--form",
        "onnx",
        "-o",
        tmp_path / "onnx",
        "--check",
    )
    code, out, err = command(capsys, "partition", model(), *ranges)
    assert code == 0, err
    assert (tmp_path / "onnx" / "part1.onnx").is_file()
    captured = folder / "captured.npz"
    arrays = load_arrays(captured)
    save_arrays(captured, {**arrays, "out0": arrays["out0"] + 1})
    code, out, err = command(capsys, "partition", folder, "--check")
    assert code == 1
    assert "C131" in err


def test_partition_used_wrongly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for wrong in (
        ("--at", first(), "--from", first(), "--to", last()),
        ("--from", first()),
        ("--at", first(), "--form", "c"),
    ):
        assert command(capsys, "partition", model(), *wrong)[0] == 2
    assert command(capsys, "partition", tmp_path, "--at", first())[0] == 2
    code, _, err = command(capsys, "partition", model())
    assert code == 1
    assert "I144" in err
