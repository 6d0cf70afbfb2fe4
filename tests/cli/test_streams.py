"""Commands whose streams are full, closed, or of few characters; and users' code that exits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

_PROGRAM = "import sys; from clew.cli.app import main; main(sys.argv[1:])"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Exp", ["x"], ["y"], name="é \u2028")]
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [4])], [value("y", TensorProto.FLOAT, [4])]
    )
    path = tmp_path_factory.mktemp("models") / "m.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    save(made, path)
    return path


def run(
    arguments: str, redirected: str = "", *, before: str = ""
) -> subprocess.CompletedProcess[str]:
    line = f"{before} {sys.executable} -c '{_PROGRAM}' {arguments} {redirected}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("json_too", ["", "--json"])
@pytest.mark.parametrize(
    ("stream", "reason"), [("> /dev/full", "No space left"), (">&-", "Bad file descriptor")]
)
def test_data_that_cannot_be_written(model: Path, stream: str, reason: str, json_too: str) -> None:
    done = run(f"compile {model} {json_too}", stream)
    assert done.returncode == 1
    assert "error[I066] the output cannot be written" in done.stderr
    assert reason in done.stderr
    assert "bug" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_help_that_cannot_be_written() -> None:
    assert "error[I066]" in run("--help", "> /dev/full").stderr


def test_a_reader_that_has_seen_enough() -> None:
    done = run("ops", "| head -1")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


@pytest.mark.parametrize("stream", ["2> /dev/full", "2>&-"])
def test_notes_that_cannot_be_written(model: Path, stream: str) -> None:
    done = run(f"compile {model} --json", stream)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["kernels"]) == 1


def test_characters_that_an_encoding_lacks(model: Path) -> None:
    done = run(f"run {model} --random --kernels", before="PYTHONIOENCODING=ascii")
    assert done.returncode == 0, done.stderr
    assert "\\xb5s" in done.stdout


def test_little_memory(model: Path, tmp_path: Path) -> None:
    """The compiler needs more; a model in the cache would need no compiler."""
    done = run(f"compile {model}", before=f"ulimit -v 300000; CLEW_CACHE_DIR={tmp_path}")
    assert done.returncode == 1
    assert "error[C160]" in done.stderr


_EXTENSIONS = {
    "at its top": ("import sys; sys.exit(0)", "I176"),
    "of its own kind": ("class Odd(BaseException): pass\nraise Odd('x')", "I176"),
    "in a pass": (
        "import clew, sys\n"
        "@clew.graph_pass(before='FuseOps')\ndef mine(module, *rest): sys.exit(0)\n",
        "C080",
    ),
    "later": (
        "import clew, sys\nclass Items(list):\n    def __iter__(self): sys.exit(0)\n"
        "extend = Items([1])\n",
        "I068",
    ),
}


@pytest.mark.parametrize("where", _EXTENSIONS)
def test_an_extension_that_exits(model: Path, tmp_path: Path, where: str) -> None:
    text, code = _EXTENSIONS[where]
    (tmp_path / "mine.py").write_text(text)
    done = run(f"compile {model} --extend {tmp_path / 'mine.py'}")
    assert done.returncode == 1
    assert f"error[{code}]" in done.stderr, done.stderr
    assert "bug in clew" not in done.stderr


@pytest.mark.parametrize(
    "text", ["split(loop=" + "-" * 3000 + "1)", "-" * 300_000, "a" + ".b" * 30_000]
)
def test_schedules_nested_deep(model: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    done = run(f"compile {model} --schedule '*={tmp_path / 's'}'")
    assert "error[P020]" in done.stderr
