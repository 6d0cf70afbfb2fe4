"""The options of compiling: every command that compiles has all of them, and they arrive."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import clew
import zoo
from clew.backends.compile_options import PLACES, CompileOptions, Limits, Passes, Precision
from clew.cli import app
from clew.cli.help import BUDGET_HELP, Panel
from clew.cli.options import FLAGS, Compiling
from clew.support.budgets import Budgets, current, set_default
from clew.support.links import current_links, set_default_links
from clew.support.trust import set_default_trust

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {name: app.command(name) for name in app._COMMANDS}
# These take no model.
COMPILING = sorted(COMMANDS.keys() - {"ops", "cache", "machine", "doctor", "docs"})
STEPS = "fuse(outer='relu.i0', inner='relu.i1')"
TINY = """clew 1
def @main(
  %x: f32[4, 64]  // input x
) -> (f32[4, 64],) with outputs=["y"] {
  %0: f32[4, 64] = nn.relu(%x)  // relu:Relu#0
  %1: (f32[4, 64],) = (%0,)
  return %1
}
"""
EXTENSION = """import clew

@clew.graph_pass()
def seen(module, context):
    return module
"""


@pytest.fixture(autouse=True)
def _as_before():
    yield
    set_default(Budgets())
    set_default_links("none")
    set_default_trust(False)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A model, a file of extensions, and a saved schedule."""
    texts = {"tiny.txt": TINY, "mine.py": EXTENSION, "steps": STEPS}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name.partition(".")[0]: str(tmp_path / name) for name in texts}


def command(capsys: pytest.CaptureFixture[str], *typed: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main([str(t) for t in typed])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@pytest.mark.parametrize("name", COMPILING)
def test_every_command_that_compiles_has_every_option(name: str) -> None:
    typed = {text for p in COMMANDS[name].params for text in p.opts}
    wanted = [option(flag.name) for flag in FLAGS]
    assert [name for name in wanted if name not in typed] == []


def test_the_options_of_commands_are_those_of_compile() -> None:
    """All are offered but those that no text can express, with the help that Python shows."""
    no_text = {"specialize", "passes", "instruments", "trace", "guard", "on_progress"}
    assert {flag.gives for flag in FLAGS} == PLACES.keys() - no_text
    assert PLACES["budgets"].option.help == BUDGET_HELP
    shown = {p.name: p for p in COMMANDS["compile"].params}
    for flag in FLAGS:
        if flag.name in ("schedule", "choose"):
            continue
        about = PLACES[flag.gives].option
        assert shown[flag.name].help.startswith(about.help.rstrip(".")), flag.name
        group = PLACES[flag.gives].group
        documented = getattr(clew, group.capitalize()) if group else clew.CompileOptions
        assert about.help in " ".join(documented.__doc__.split()), flag.name


def test_the_page_lists_every_option_with_its_spelling_in_python() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    rows = {
        found[1]: found[2] for found in re.finditer(r"(?m)^\| `(--[\w-]+).*\| `([^`]*)` \|$", page)
    }
    for flag in FLAGS:
        place = PLACES[flag.gives]
        kind = f"clew.{place.group.capitalize()}({flag.gives}="
        inner = place.group and place.group != flag.gives
        wanted = f"{place.group}={kind}" if inner else f"{flag.gives}="
        assert rows[f"--{flag.name.replace('_', '-')}"].startswith(wanted), flag.name


def test_what_is_typed_arrives(
    capsys: pytest.CaptureFixture[str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def noted(model: Path, how: Compiling) -> None:
        seen.append((how.options, current(), current_links()))
        raise typer.Exit

    monkeypatch.setattr("clew.cli.compile.compile_model", noted)
    typed = (
        "--target", "cpu-avx2", "--threads", 3, "--opt-level", 1, "--precision", "bf16",
        "--keep-f32", "a,b*", "--keep-f32", "c", "--no-fuse", "--required", "DeadCode",
        "--disabled", "SelectConvAlgorithm,FoldScaleAxis", "--extend", files["mine"],
        "--schedule", f"relu*={files['steps']}", "--shape", "x=1,2", "--links", "snapshot",
        "--sizes", "n=1:9", "--sizes", "m=4", "--choose", "relu*=elementwise: vectors=2",
        "--no-cache", "--budget", "strict", "--budget", "nodes=7", "--trust",
    )  # fmt: skip
    assert command(capsys, "compile", files["tiny"], *typed)[0] == 0
    ((options, budgets, links),) = seen
    assert [(x.kernel, str(x.how)) for x in options.extend[2:]] == [
        ("relu*", "elementwise: vectors=2")
    ]
    assert (options.extend[1].kernel, list(map(str, options.extend[1].how))) == ("relu*", [STEPS])
    assert options.changed(extend=options.extend[:1]) == CompileOptions(
        target="cpu-avx2",
        threads=3,
        inputs={"x": (1, 2)},
        sizes={"n": (1, 9), "m": 4},
        precision=Precision("bf16", keep_f32=["a", "b*", "c"]),
        opt_level=1,
        passes=Passes(
            fuse=False,
            required=["DeadCode"],
            disabled=["SelectConvAlgorithm", "FoldScaleAxis"],
        ),
        extend=[files["mine"]],
        cache=False,
        limits=Limits(replace(Budgets.strict(), nodes=7), links="snapshot", trust=True),
    )
    assert (budgets.nodes, budgets.rank, links) == (7, Budgets.strict().rank, "snapshot")
    assert options.loading == {"links": "snapshot", "trust": True, "inputs": {"x": (1, 2)}}
    assert options.loaded.inputs is None


@pytest.mark.parametrize("name", ["run", "compile", "trace", "profile", "tap", "correlate"])
def test_extensions_and_schedules_take_part(
    name: str, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    given = ("--extend", files["mine"], "--schedule", f"relu={files['steps']}", "--threads", 1)
    more = ("--repeats", 2, "--sample", 0, "--no-roofline") if name == "profile" else ()
    code, _, err = command(capsys, name, files["tiny"], *given, *more)
    assert code == 0, err
    # A pass that is asked for is found, and so is a step that is illegal.
    assert command(capsys, name, files["tiny"], *given, *more, "--disabled", "seen")[0] == 0
    Path(files["steps"]).write_text("vectorize(loop='nobody')")
    code, _, err = command(capsys, name, files["tiny"], *given, *more)
    assert code == 1
    assert "kernel relu" in err


def test_the_page_and_the_report_compile_with_them(
    capsys: pytest.CaptureFixture[str], files: dict[str, str], tmp_path: Path
) -> None:
    given = ("--extend", files["mine"], "--schedule", f"relu={files['steps']}", "--threads", 1)
    code, out, err = command(capsys, "explore", files["tiny"], *given, "--get", "overview")
    assert code == 0, err
    overview = json.loads(out)
    assert overview["options"]["extend"] == ["mine.py"]
    assert overview["options"]["schedules"] == {"relu": STEPS}
    assert "seen" in overview["passes"]
    assert overview["kernels"][0]["rules"] == ["relu"]
    code, out, err = command(
        capsys, "explore", files["tiny"], "--b", f"extend={files['mine']}", "--get", "b/overview"
    )
    assert code == 0, err
    assert "seen" in json.loads(out)["passes"]
    page = tmp_path / "page.html"
    code, _, err = command(capsys, "report", files["tiny"], *given, "--no-profile", "-o", page)
    assert code == 0, err


def test_a_saved_schedule_is_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: dict[str, str]
) -> None:
    file = tmp_path / "saved"
    asked = (files["tiny"], "--kernel", "relu", "--threads", 1)
    code, _, err = command(capsys, "trace", *asked, "--save-schedule", file)
    assert code == 0, err
    assert f"--schedule relu={file}" in err
    assert file.read_text().endswith(")\n")
    code, out, err = command(capsys, "trace", *asked, "--schedule", f"relu={file}", "--json")
    assert code == 0, err
    assert json.loads(out)["schedule"] == file.read_text().splitlines()
    assert command(capsys, "trace", files["tiny"], "--save-schedule", file)[0] == 2
    below = tmp_path / "saved" / "below"
    code, _, err = command(capsys, "trace", *asked, "--save-schedule", below)
    assert code == 1
    assert "error[I063]" in err


def test_choices_are_shown_and_set(
    capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    asked = (files["tiny"], "--kernel", "relu", "--threads", 1, "--json")
    code, out, err = command(capsys, "trace", *asked)
    assert code == 0, err
    (shown,) = json.loads(out)["choices"]
    assert shown["rule"] == "elementwise"
    for choose, said in (
        ("relu=elementwise: tiles=2", "error[S062]"),
        ("relu=element: tiles=2", "error[S061]"),
        ("relu=elementwise tiles", "error[P021]"),
    ):
        code, _, err = command(capsys, "trace", *asked, "--choose", choose)
        assert code == 1
        assert said in err
    code, out, err = command(capsys, "trace", *asked, "--choose", "relu=elementwise")
    assert json.loads(out)["choices"] == [shown]
    assert command(capsys, "run", files["tiny"], "--choose", "relu")[0] == 2


def test_schedules_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: dict[str, str]
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"#" * (2 << 20))
    for name in ("missing", "bytes", "long", "."):
        code, _, err = command(capsys, "run", files["tiny"], "--schedule", f"k={tmp_path / name}")
        assert code == 1
        assert "error[I341] the schedule" in err
        assert "--save-schedule" in err
    assert command(capsys, "run", files["tiny"], "--schedule", "k")[0] == 2


FREE = TINY.replace("4, 64", "rows, 64")


@pytest.fixture
def free(tmp_path: Path) -> str:
    """A model with a free dimension, `rows`."""
    (tmp_path / "free.txt").write_text(FREE)
    return str(tmp_path / "free.txt")


def test_sizes_are_fixed_or_keep_their_range(
    capsys: pytest.CaptureFixture[str], free: str, tmp_path: Path
) -> None:
    code, out, err = command(capsys, "run", free, "--sizes", "rows=3", "--threads", 1)
    assert code == 0, err
    assert "[3, 64]" in out
    np.save(tmp_path / "x.npy", np.zeros((5, 64), "f4"))
    given = ("run", free, "--input", f"x={tmp_path / 'x.npy'}", "--threads", 1, "--sizes")
    for text in ("rows=1:5", "rows=5:", "rows=1,8", "rows=:9,5"):
        code, _, err = command(capsys, *given, text)
        assert code == 0, err
    code, _, err = command(capsys, *given, "rows=1:4")
    assert code == 1
    assert "error[I317] input 'x': rows is 5, but the model was compiled for 1 to 4" in err
    assert "hint: compile it with --sizes rows=1:5" in err
    code, _, err = command(capsys, *given, "lines=1:4")
    assert code == 1
    assert "error[I316] the model has no free dimension 'lines'" in err


def test_sizes_reach_commands_that_read_the_model_themselves(
    capsys: pytest.CaptureFixture[str], free: str
) -> None:
    given = (free, "--sizes", "rows=3")
    for name, *more in (
        ("bisect", "--against", "opt0"),
        ("diff", "--opt-level", 0, 3, "--no-time"),
        ("extract", "--kernel", "relu", "--check"),
        ("explore", "--get", "overview"),
    ):
        code, _, err = command(capsys, name, *given, *more)
        assert code == 0, (name, err)
    for name, *more in (("extract", "--layer", "relu"), ("partition", "--at", "relu")):
        code, _, err = command(capsys, name, *given, *more)
        assert code == 2
        assert "give --shape" in err


@pytest.mark.parametrize("text", ["rows", "rows=", "rows=x", "rows=4:1", "rows=1:2:3"])
def test_sizes_of_no_form_are_a_usage_error(
    text: str, capsys: pytest.CaptureFixture[str], free: str
) -> None:
    code, _, err = command(capsys, "run", free, "--sizes", text)
    assert code == 2
    assert "--sizes" in err
    assert command(capsys, "run", free, "--sizes", "rows=1", "--sizes", "rows=2")[0] == 2


def test_budgets_stand_before_and_behind_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = zoo.path("if_branches")
    for typed in (("--budget", "nodes=1", "run", path), ("run", path, "--budget", "nodes=1")):
        code, _, err = command(capsys, *typed)
        assert code == 1
        assert "error[M009]" in err
    assert command(capsys, "run", path)[0] == 0  # it holds for one command


@pytest.mark.parametrize("given", [("--opt-level", 0), ("--no-fuse",), ("--extend", "mine.py")])
def test_a_saved_model_is_compiled_already(
    given: tuple[Any, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "m.clew").write_bytes(b"")
    code, _, err = command(capsys, "run", tmp_path / "m.clew", *given)
    assert code == 2
    assert "already compiled" in err


def test_help_keeps_them_apart(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "profile", "--help")
    assert code == 0
    own, compiling = out.split("Compile options:")
    assert "--repeats" in own
    assert "--threads" in compiling


def test_help_is_one_screen_and_help_all_lists_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, short, _ = command(capsys, "compile", "--help")
    code, whole, _ = command(capsys, "compile", "--help-all")
    assert code == 0
    usual = {"--shape", "--sizes", "--precision", "--threads", "--target"}
    compiling = {f.option for f in FLAGS}
    assert {o for o in compiling if re.search(rf"^  {o}\b", short, re.MULTILINE)} == usual
    assert all(re.search(rf"^  .*{o}\b", whole, re.MULTILINE) for o in compiling)
    assert f"{len(compiling) - len(usual)} more: " in short
    assert "more: " not in whole
    assert "--help-all" not in command(capsys, "machine", "--help")[1]


def test_panels_name_options_that_exist() -> None:
    found: dict[Panel, set[str]] = {}
    for made in COMMANDS.values():
        for parameter in getattr(made, "params", ()):
            panel = getattr(parameter, "rich_help_panel", None)
            if isinstance(panel, Panel):
                found.setdefault(panel, set()).add(parameter.opts[0])
    assert len(found) == 3
    assert all(set(panel.usual) < options for panel, options in found.items())


def test_help_has_no_names_of_types(capsys: pytest.CaptureFixture[str]) -> None:
    _, listed, _ = command(capsys, "--help")
    names = re.findall(r"^  ([a-z]+)  ", listed.partition("Run:")[2], re.MULTILINE)
    assert set(names) == set(app._COMMANDS)
    for name in {*names} - {"cache"}:
        _, out, _ = command(capsys, name, "--help")
        out += command(capsys, name, "--help-all")[1]
        assert not re.search(r"[{<]\w|Path|\bint\b|(?<!\|)\bfloat\b", out), (name, out)
    assert "[OPTIONS] A [B]\n" in command(capsys, "diff", "--help")[1]
    assert "[OPTIONS] [MODEL...]\n" in command(capsys, "dataset", "--help")[1]


def test_files_of_extensions(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "listed.py").write_text(EXTENSION + "\n" + EXTENSION.replace("seen", "other"))
    with (tmp_path / "listed.py").open("a") as file:
        file.write("\nextend = [other]\n")
    module = clew.parse(TINY)
    made = clew.compile(module, extend=[tmp_path / "listed.py"], cache=False)
    names = [p.name for p in made.options.passes]
    assert "other" in names
    assert "seen" not in names
    with pytest.raises(clew.ClewError) as caught:
        clew.compile(module, extend=[str(tmp_path / "leaves.py")])
    assert caught.value.code == "I176"
    assert "SystemExit" in caught.value.message
