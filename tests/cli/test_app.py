"""The command line: exit codes, what goes to which stream, JSON, and errors without tracebacks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import zoo
from clew.cli import app
from clew.frontends.onnx.runtime import OnnxPeer
from clew.passes.manager import PassManager
from clew.runtime.container import read_container, write_container
from clew.support import user_code
from clew.trace.refs import NodeRef
from clew.trace.trace import Trace
from clew.trace.verify import FalseLink, VerifyReport

LAYER = "then/relu"


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as left:
            app.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        code = left.value.code
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)

    return command


@pytest.fixture(scope="module")
def model() -> Path:
    return zoo.path("if_branches")


def test_run_prints_outputs_to_stdout_and_notes_to_stderr(run: Run, model: Path) -> None:
    done = run("run", model)
    assert done.code == 0
    assert "float32[4, 16]" in done.out
    assert "random inputs, seed 0: x" in done.err
    assert "kernels" in done.err


def test_run_takes_inputs_from_files_and_saves_outputs(
    run: Run, model: Path, tmp_path: Path
) -> None:
    x = zoo.inputs("if_branches")["x"]
    np.save(tmp_path / "x.npy", x)
    done = run(
        "run", model, "--input", f"x={tmp_path / 'x.npy'}", "--compare-onnxruntime",
        "--save", tmp_path / "out", "--kernels", "--repeat", 3, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "drawn" not in done.err
    (output,) = done.json["outputs"]
    saved = np.load(tmp_path / "out" / "y.npy")
    assert output["shape"] == list(saved.shape) == [4, 16]
    assert output["max"] == pytest.approx(saved.max())
    assert done.json["onnxruntime"]["y"] < 1e-5
    assert sum(k["share"] for k in done.json["kernels"]) == pytest.approx(1)
    assert set(done.json["seconds"]) == {"compile", "run"}


def test_the_seed_decides_what_is_drawn(run: Run, model: Path) -> None:
    means = [run("run", model, "--seed", s, "--json").json["outputs"][0]["max"] for s in (0, 0, 1)]
    assert means[0] == means[1] != means[2]


def test_shapes_settle_named_sizes(run: Run) -> None:
    path = zoo.path("bert_tiny_dynamic")
    done = run("run", path, "--shape", "input_ids=1,5", "--shape", "attention_mask=1,5", "--json")
    assert done.code == 0, done.err
    assert done.json["outputs"][0]["shape"] == [1, 5, 128]
    for command in "run", "profile", "correlate":
        unsettled = run(command, path)
        assert unsettled.code == 1
        assert "error[I061] input 'input_ids'" in unsettled.err
        assert "--shape input_ids=1,1" in unsettled.err


def test_a_model_of_named_sizes_is_compiled_for_all_of_them(run: Run, tmp_path: Path) -> None:
    path, saved = zoo.path("bert_tiny_dynamic"), tmp_path / "model.clew"
    done = run("compile", path, "-o", saved)
    assert done.code == 0, done.err
    assert re.search(r"dense(_by_rows)?_add_gelu", done.out)  # by rows with a matrix unit
    assert re.search(r" kernels (from the cache|\()", done.err)
    files = []
    for name, value in zoo.inputs("bert_tiny_dynamic", batch=2, sequence=3).items():
        np.save(tmp_path / f"{name}.npy", value)
        files += ["-i", f"{name}={tmp_path / name}.npy"]
    again = run("run", saved, *files, "--json")
    assert again.code == 0, again.err
    assert again.json["outputs"][0]["shape"] == [2, 3, 128]
    drawn = run("run", saved, "--shape", "input_ids=1,5", "--json")
    assert drawn.code == 0, drawn.err
    assert drawn.json["outputs"][0]["shape"] == [1, 5, 128]
    wrong = run("run", saved, "--shape", "input_ids=1,5,2")
    assert wrong.code == 1
    assert "error[I303]" in wrong.err


def test_a_cached_model_is_listed_and_saved_without_its_passes(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tmp_path / f"{n}.clew" for n in range(2))
    done = run("compile", model, "-o", first, "--json")
    assert done.code == 0, done.err
    monkeypatch.setattr(PassManager, "run", never)
    again = run("compile", model, "-o", second, "--json")
    assert again.code == 0, again.err
    assert again.json["kernels"] == done.json["kernels"]
    assert all(k["rules"] and k["code_bytes"] for k in again.json["kernels"])
    assert second.read_bytes() == first.read_bytes()


def test_warnings_are_in_the_words_of_the_command_line(run: Run, tmp_path: Path) -> None:
    extend = tmp_path / "mine.py"
    extend.write_text(
        "import clew\n"
        "mine = clew.schedule_for('no_such_kernel', steps='unroll(loop=\"i\")')\n"
        "extend = [mine]\n"
    )
    path = zoo.path("keyword_spotting")
    options = ["--extend", extend, "--against", "opt0", "--runs", 1, "--seconds", 0]
    done = run("bisect", path, *options)
    assert done.code == 0, done.err
    assert "warning[I309] the schedule no_such_kernel" in done.err
    assert "hint: the kernels are" in done.err
    assert "UserWarning" not in done.err
    assert ".py:" not in done.err


def test_options_reach_the_compiler(run: Run, model: Path) -> None:
    fused = run("compile", model, "--json").json["kernels"]
    apart = run("compile", model, "--no-fuse", "--json").json["kernels"]
    assert max(len(k["ops"]) for k in fused) > 1
    assert {len(k["ops"]) for k in apart} == {1}
    assert "then/relu" in run("compile", model, "--opt-level", 0).out


def test_a_saved_model_runs(run: Run, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.clew"
    assert run("compile", model, "-o", file).code == 0
    compiled, saved = run("run", model, "--json").json, run("run", file, "--json").json
    assert saved["outputs"] == compiled["outputs"]
    assert "kernel" in run("run", file, "--kernels").out
    assert run("run", file, "--shape", "x=4,16").code == 0
    cut = damaged(tmp_path / "cut.clew", file.read_bytes()[:999])
    done = run("run", cut)
    assert (done.code, done.out) == (1, "")
    assert "error[C05" in done.err


def test_trace_tells_a_layer_and_a_kernel_and_a_stage(run: Run, model: Path) -> None:
    story = run("trace", model, "--layer", LAYER, "--json").json
    assert story["layer"] == LAYER
    assert story["op"] == "Relu"
    assert story["stages"][0]["name"] == "import"
    kernel = run("trace", model, "--kernel", story["kernels"][0]["name"], "--json").json
    assert LAYER in kernel["layers"]
    assert kernel["loops"].startswith(f"kernel {kernel['name']}")
    assert kernel["asm"]
    assert "define void" in kernel["llvm"]
    stage = run("trace", model, "--stage", "FuseOps")
    assert stage.out.startswith("clew 1")
    for option in ("--layer", LAYER), ("--kernel", kernel["name"]):
        assert LAYER in run("trace", model, *option).out


def test_trace_without_options_lists_stages_and_what_became_of_layers(
    run: Run, model: Path
) -> None:
    listed = run("trace", model, "--json").json
    assert listed["stages"][0]["name"] == "import"
    assert listed["layers"][LAYER].startswith("runs in ")
    text = run("trace", model).out
    assert "FuseOps" in text
    assert LAYER in text


def test_trace_verifies_and_exports(run: Run, model: Path, tmp_path: Path) -> None:
    report = run("trace", model, "--verify", "--json").json
    assert report["ok"]
    assert report["checked"] > 0
    done = run("trace", model, "--export", tmp_path / "trace.json")
    assert done.code == 0
    assert done.out == ""
    assert json.loads((tmp_path / "trace.json").read_text())["format"] == "clew-trace"


def test_ops_lists_and_describes(run: Run) -> None:
    names = [op["name"] for op in run("ops", "--json").json]
    assert {"add", "nn.conv2d", "nn.softmax"} <= set(names)
    assert names == sorted(names)
    conv = run("ops", "nn.conv2d", "--json").json
    assert conv["inputs"] == ["data", "weight"]
    assert {"strides", "groups"} <= {a["name"] for a in conv["attributes"]}
    assert "strides: tuple[int, ...] = (1, 1)" in run("ops", "nn.conv2d").out
    unknown = run("ops", "softmax")
    assert unknown.code == 1
    assert "did you mean nn.softmax" in unknown.err


def test_the_cache_as_its_user_sees_it(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_code, "_CHECKS", [])  # other tests register operators
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "one"))
    assert run("cache", "where").out == f"{tmp_path / 'one'}\n"
    assert run("cache", "size", "--json").json["entries"] == 0
    assert run("cache", "list", "--json").json == []
    nothing = run("cache", "export", tmp_path / "models.cache")
    assert "error[C165] the cache holds no models" in nothing.err
    run("run", model)
    run("run", model, "--bounds", "clamp")
    size = run("cache", "size", "--json").json
    assert size["models"] == 2
    assert 0 < size["size_bytes"] < size["limit_bytes"]
    assert "2 models" in run("cache", "size").out
    listed = run("cache", "list", "--json").json
    assert [each["options"] for each in listed] == [[{"bounds": "clamp"}], [{}]]
    assert {name for each in listed for name in each["models"]} == {str(model)}
    assert "bounds=clamp" in run("cache", "list").out
    assert "2 models exported" in run("cache", "export", tmp_path / "models.cache").err

    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "two"))
    assert run("cache", "import", tmp_path / "models.cache", "--json").json["imported"] == 2
    assert "from the cache" in run("run", model).err
    assert run("cache", "prune", "--json").json == {"removed": 0}
    count = run("cache", "size", "--json").json["entries"]
    assert run("cache", "clear", "--json").json == {"removed": count}
    assert "0 files" in run("cache", "size").out
    assert run("cache", "prune", "--keep", "much").code == 2
    monkeypatch.setenv("CLEW_CACHE", "0")
    assert run("cache", "where").out == run("cache", "size").out == "switched off\n"
    assert "error[C169]" in run("cache", "import", tmp_path / "models.cache").err


def test_exported_caches_that_are_not_used(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "one"))
    run("compile", model, "-o", tmp_path / "saved.clew")
    file = tmp_path / "models.cache"
    run("cache", "export", file)
    assert "error[C055]" in run("run", file.rename(tmp_path / "models.clew")).err
    (tmp_path / "models.clew").rename(file)
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "two"))
    whole = file.read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 1
    for content, code in (
        (broken, "C054"), (whole[:-1], "C053"), (b"", "C051"), (model.read_bytes(), "C051"),
        ((tmp_path / "saved.clew").read_bytes(), "C166"),
    ):  # fmt: skip
        damaged(file, content)
        done = run("cache", "import", file)
        assert (done.code, f"error[{code}]" in done.err) == (1, True), done.err
    text, blobs = read_container(damaged(file, whole)).text, read_container(file).blobs
    for change, code in (
        ({"machine": "another"}, "C167"), ({"code": "another"}, "C168"), ({"cache": 2}, "C166"),
        ({"keys": ["../../x"] * len(blobs)}, "C166"), ({"keys": []}, "C166"),
    ):  # fmt: skip
        write_container(file, {**text, **change}, blobs)
        assert f"error[{code}]" in run("cache", "import", file).err
    assert run("cache", "size", "--json").json["models"] == 0


def damaged(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_bad_models_give_one_coded_error(run: Run, model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    noise = np.random.default_rng(0).bytes(4096)
    bad = {
        "M011": tmp_path / "missing.onnx",
        "M001": damaged(tmp_path / "noise.onnx", noise),
        "I002": damaged(tmp_path / "model.onnx", b"\x1c\0\0\0ORTM" + noise),
        "M060": damaged(tmp_path / "lite.onnx", b"\x1c\0\0\0TFL3" + noise),
    }
    for code, path in bad.items():
        done = run("run", path)
        assert (done.code, done.out) == (1, "")
        assert f"error[{code}] " in done.err
        assert "Traceback" not in done.err
    for size in range(1, len(whole), len(whole) // 23):
        done = run("run", damaged(tmp_path / "cut.onnx", whole[:size]))
        assert done.code == 1
        assert "error[M" in done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("name", "array", "code"),
    [
        ("z", np.zeros((4, 16), np.float32), "I041"),
        ("x", np.zeros((4, 15), np.float32), "I042"),
        ("x", np.zeros((4, 16), np.float64), "I043"),
        ("x", np.array([None, "a"]), "I060"),
    ],
)
def test_bad_inputs_give_one_coded_error(
    run: Run, model: Path, tmp_path: Path, name: str, array: np.ndarray, code: str
) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    done = run("run", model, "--input", f"{name}={tmp_path / 'a.npy'}")
    assert (done.code, done.out) == (1, "")
    assert f"error[{code}] " in done.err
    assert "Traceback" not in done.err


def test_unknown_layers_kernels_and_stages_are_refused(run: Run, model: Path) -> None:
    for option, hint in [
        ("--layer", LAYER), ("--kernel", "the kernels are"), ("--stage", "FuseOps")
    ]:  # fmt: skip
        done = run("trace", model, option, "then/rely")
        assert done.code == 1
        assert "error[I" in done.err
        assert hint in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["run"],
        ["run", "model.onnx", "--threads", "0"],
        ["run", "model.onnx", "--opt-level", "4"],
        ["run", "model.onnx", "--input", "x"],
        ["run", "model.onnx", "--input", "x=a.npy", "--input", "x=b.npy"],
        ["run", "model.onnx", "--shape", "x=1,two"],
        ["run", "model.onnx", "--nonsense"],
        ["compile", "model.onnx", "-o", "out.bin"],
        ["cache", "prune", "--keep", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_use_exits_with_2(run: Run, model: Path, arguments: list[str]) -> None:
    done = run(*[str(model) if a == "model.onnx" else a for a in arguments])
    assert done.code == 2
    assert "Traceback" not in done.err


def test_internal_errors_are_short_unless_debugging(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.cli.run.open_model", None)
    done = run("run", model)
    assert done.code == 1
    assert "internal error: TypeError: 'NoneType' object is not callable" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in run("--debug", "run", model).err


def test_outputs_that_differ_from_onnxruntime_fail(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxPeer, "outputs", lambda *_: {"y": np.zeros((4, 16))})
    done = run("run", model, "--compare-onnxruntime")
    assert done.code == 1
    assert "error[C091]" in done.err


def test_onnxruntime_is_optional(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run("run", model).code == 0
    monkeypatch.setattr("clew.cli.run.open_model", never)
    done = run("run", model, "--compare-onnxruntime")
    assert done.code == 1
    assert "error[I062] ONNX Runtime is not installed" in done.err
    assert "hint: pip install onnxruntime" in done.err


def never(*_: object) -> None:
    raise AssertionError("compiled in vain")


def test_a_comparison_that_cannot_be_is_refused_before_anything_is_compiled(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.cli.run.open_model", never)
    unknown = onnx.load(model)
    unknown.opset_import[0].version = 9999
    onnx.save(unknown, tmp_path / "new.onnx")
    done = run("run", tmp_path / "new.onnx", "--compare-onnxruntime")
    assert done.code == 1
    assert "error[I062] ONNX Runtime rejects the model" in done.err
    for name in ("saved.clew", "text.txt"):
        (tmp_path / name).write_text("clew 1")
        done = run("run", tmp_path / name, "--compare-onnxruntime")
        assert done.code == 1
        assert "has no engine to compare with" in done.err


def test_a_missing_model_is_said_to_be_missing(run: Run, tmp_path: Path) -> None:
    done = run("run", tmp_path / "none.onnx", "--compare-onnxruntime")
    assert "error[M011]" in done.err


@pytest.mark.parametrize(
    "command",
    [
        "run M --extend L", "quantize M --calibration L -o q.onnx", "explore L --get overview",
        "partition L", "predict M --table L", "dataset M -o L", "run L --compare-onnxruntime",
        "bisect L --against onnxruntime", "run M --random --tuned L",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["n" * 300, "n/" * 3000])
def test_names_that_are_too_long_are_refused(
    run: Run, model: Path, command: str, name: str
) -> None:
    names = {"M": str(model), "L": name}
    done = run(*(names.get(word, word) for word in command.split()))
    assert done.code == 1
    assert done.err.startswith("error["), done.err


def test_places_that_cannot_be_written_are_refused(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "out"
    for command in ("run", "--save"), ("trace", "--export"):
        done = run(command[0], model, command[1], below)
        assert done.code == 1
        assert "error[I063] cannot write to" in done.err
    done = run("compile", model, "-o", tmp_path / "file" / "m.clew")
    assert done.code == 1
    assert "error[C050]" in done.err


def test_false_links_fail(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = NodeRef(0, 1), NodeRef(1, 2)
    false = FalseLink("FoldConstant", old, new, ("conv1",), "relative error 2")
    monkeypatch.setattr(Trace, "verify", lambda *_: VerifyReport(3, 0, 0.0, (false,)))
    done = run("trace", model, "--verify", "--json")
    assert done.code == 1
    assert not done.json["ok"]
    assert done.json["failures"][0]["layers"] == ["conv1"]
    assert "error[C092] 1 same links do not hold" in done.err


def test_help_starts_without_the_compiler() -> None:
    program = (
        "import sys\nfrom clew.cli import app\n"
        "try:\n    app.main(['--help'])\nexcept SystemExit as left:\n    assert not left.code\n"
        "heavy = {'onnx', 'llvmlite', 'clew.passes', 'clew.frontends'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: clew" in done.stdout or "Usage:" in done.stdout


def test_version(run: Run) -> None:
    done = run("--version")
    assert done.code == 0
    assert done.out.startswith("clew ")


def test_the_text_of_a_stage_can_be_read_again(run: Run) -> None:
    """Its lines are long: none is wrapped."""
    text = run("trace", zoo.path("bert_tiny"), "--stage", "AlterLayout").out
    assert max(map(len, text.splitlines())) > 120
    stage = run("trace", zoo.path("bert_tiny"), "--json", "--stage", "AlterLayout").json
    assert text.rstrip("\n") == stage["text"].rstrip("\n")


def test_a_shape_settles_the_sizes_that_inputs_have_in_common(run: Run) -> None:
    done = run("run", zoo.path("bert_tiny_dynamic"), "--shape", "input_ids=1,5", "--json")
    assert done.code == 0, done.err
    assert done.json["outputs"][0]["shape"] == [1, 5, 128]
