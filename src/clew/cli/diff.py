"""`clew diff`: compares two builds layer by layer."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

import clew
from clew.backends.compile_options import CompileOptions
from clew.cli import options as opt
from clew.cli.arguments import need_sizes
from clew.cli.options import (
    Compiling,
    compiling,
    listed,
    model_inputs,
    refuse_saved,
)
from clew.cli.output import emit_json, note, progress, stdout

_NAMES: Final = ("A", "B")
_NONE: Final = ("none", "-", "")
# Options of one build on the command line, by the names of flags.
_LISTS: Final = ("keep_f32", "required", "disabled", "extend")
_NUMBERS: Final = ("opt_level", "threads")
_KEYS: Final = (*_NUMBERS, "precision", "target", "fuse", *_LISTS, "schedule", "backend", "place")
Pair = tuple[str, str]


def _pair(what: str, metavar: str = "A B") -> Any:
    return typer.Option(metavar=metavar, help=what, show_default=False, rich_help_panel=opt.PANEL)


@compiling
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The model's file.", show_default=False)],
    b: Annotated[
        Path | None,
        typer.Argument(metavar="B", help="The other model's file.", show_default="that of A"),
    ] = None,
    for_a: Annotated[
        list[str],
        typer.Option("--a", metavar="'KEY=VALUE ...'", help="How A is compiled; see below."),
    ] = [],  # noqa: B006 (typer takes the default from here)
    for_b: Annotated[
        list[str], typer.Option("--b", metavar="'KEY=VALUE ...'", help="How B is compiled.")
    ] = [],  # noqa: B006
    inputs: opt.Inputs = [],  # noqa: B006
    random: opt.Random = False,
    seed: opt.Seed = 0,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Time both, interleaved.")] = True,
    numerics: Annotated[
        bool, typer.Option("--numerics/--no-numerics", help="Compare layers' values.")
    ] = True,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference/--no-reference", help="Also compare both with f32 at opt level 0."
        ),
    ] = True,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Timed rounds of each.",
            show_default="as many as a few seconds allow",
        ),
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=0, help="Name the first layer whose relative error (rms) is above X."
        ),
    ] = None,
    only: Annotated[
        list[str],
        typer.Option(
            metavar="all|changed|KIND,...",
            help="Layers to show: those that differ (changed), or differ in one kind, such as "
            "fusion, layout, time or values. Repeatable.",
        ),
    ] = [],  # noqa: B006
    layer: Annotated[
        list[str], typer.Option(help="Show all of these layers; repeatable.", metavar="NAME,...")
    ] = [],  # noqa: B006
    groups: Annotated[
        bool,
        typer.Option(
            "--groups",
            help="Show groups of layers that share kernels; their times need no estimates.",
        ),
    ] = False,
    layers: Annotated[
        int, typer.Option(metavar="N", min=0, help="Layers (or groups) to show; 0: all.")
    ] = 40,
    json: opt.Json = False,
    opt_level: Annotated[Pair, _pair("Opt levels of A and B.")] = ("", ""),
    precision: Annotated[Pair, _pair("Precisions of A and B.")] = ("", ""),
    threads: Annotated[Pair, _pair("Threads of A and B.")] = ("", ""),
    target: Annotated[Pair, _pair("Targets of A and B.")] = ("", ""),
    fuse: Annotated[Pair, _pair("Fusion of A and B: auto or none.")] = ("", ""),
    keep_f32: Annotated[Pair, _pair("Layers kept in f32, or none.")] = ("", ""),
    required: Annotated[Pair, _pair("Passes to run, or none.")] = ("", ""),
    disabled: Annotated[Pair, _pair("Passes to leave out, or none.")] = ("", ""),
    extend: Annotated[Pair, _pair("Python files to extend with, or none.", "A.py B.py")] = ("", ""),
    schedule: Annotated[
        Pair, _pair("Saved schedules to replay, or none.", "KERNEL=FILE KERNEL=FILE")
    ] = ("", ""),
    *,
    how: Compiling,
) -> None:
    """Compare two builds layer by layer: kernels, time, layouts, numerics.

    Compares two models, or one model compiled in two ways: clew diff v1.onnx v2.onnx; clew diff
    model.onnx --opt-level 0 3; clew diff model.onnx --b "precision=bf16 keep_f32=conv1,fc". Compile
    options take two values, one for A and one for B. The keys of --a and --b are opt_level,
    precision, keep_f32, threads, target, fuse (auto or none), required and disabled (passes),
    extend (Python files), schedule (KERNEL=FILE), backend (NAME,...) and place (first, auto, or
    BACKEND=LAYER,... with semicolons between backends).
    """
    pairs = {
        "opt_level": opt_level, "precision": precision, "threads": threads, "target": target,
        "fuse": fuse, "keep_f32": keep_f32, "required": required, "disabled": disabled,
        "extend": extend, "schedule": schedule,
    }  # fmt: skip
    asked = [
        changed(
            how,
            build_options(
                typed, {k: values[n] for k, values in pairs.items() if values[n]}, f"--{name}"
            ),
        )
        for n, (typed, name) in enumerate(((for_a, "a"), (for_b, "b")))
    ]
    from clew.compiling.loading import loaded  # noqa: PLC0415 - it imports the compiler

    paths = [a, b or a]
    for path in paths:
        refuse_saved(path, "a saved model has no trace to compare")
    with progress(f"reading {a}") as say:
        read = {path: loaded(path, how.options) for path in dict.fromkeys(paths)}
        models = []
        for path, options, name in zip(paths, asked, _NAMES, strict=True):
            module, rest = read[path]
            again = options.loaded.changed(sizes=rest.sizes)
            models.append(clew.compile(module, **again, on_progress=_saying(say, name)))
        arrays = None
        if time or numerics:
            arrays = model_inputs(models[0], inputs, random, seed)
        else:
            for model in models:
                need_sizes(model)
        report = clew.diff(
            models[0],
            models[1],
            arrays,
            time=time,
            numerics=numerics,
            reference=reference,
            rounds=rounds,
            bound=bound,
            on_progress=say,
        )
    if paths[0] == paths[1] and asked[0] == asked[1]:
        note("A and B are the same model with the same options: give some, such as --opt-level 0 3")
    rows = chosen(report, listed(only))
    if json:
        shown = {id(row) for row in rows}
        found = report.to_json()
        pairs_ = zip(report.layers, found["layers"], strict=True)
        found["layers"] = [facts for row, facts in pairs_ if id(row) in shown]
        emit_json({"a": str(paths[0]), "b": str(paths[1]), **found})
        return
    _show(report, rows, listed(layer), layers, groups, paths)


def _saying(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda text: say(f"{name}: {text}")


def build_options(typed: Sequence[str], pairs: Mapping[str, str], option: str) -> dict[str, Any]:
    """Returns the options given for one build, as by `Compiling.record`; anything else is a usage
    error.
    """
    words = dict(pairs)
    for text in typed:
        try:
            parts = shlex.split(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r}: {error}", param_hint=option) from None
        for part in parts:
            key, mark, value = part.partition("=")
            key = key.replace("-", "_")
            if not mark or key not in _KEYS:
                raise typer.BadParameter(
                    f"{part!r} is not one of {', '.join(f'{k}=...' for k in _KEYS)}",
                    param_hint=option,
                )
            words[key] = value
    return dict(_value(key, value, option) for key, value in words.items())


def changed(how: Compiling, given: Mapping[str, Any]) -> CompileOptions:
    """Returns the options of all builds, changed to those given for one build.

    Errors: I341 (`schedule`), and those of values.
    """
    record, rest = dict(how.record), dict(given)
    if "extend" in rest or "schedule" in rest:
        files = rest.pop("extend", how.given.get("extend", ()))
        steps = rest.pop("schedule", how.given.get("schedule", ()))
        again = {**how.given, "extend": list(files), "schedule": list(steps)}
        record.pop("extend", None)
        record |= {n: v for n, v in Compiling(again).record.items() if n == "extend"}
    return CompileOptions.of_record({**record, **rest})


def _value(key: str, text: str, option: str) -> tuple[str, Any]:
    if key in _NUMBERS:
        if not text.isdecimal():
            raise typer.BadParameter(f"{key} is {text!r}, expected a number", param_hint=option)
        return key, int(text)
    if key in _LISTS:
        return key, () if text in _NONE else listed([text])
    if key == "backend":
        return "backends", () if text in _NONE else listed([text])
    if key == "place":
        parts = [part.strip() for part in text.split(";") if part.strip()]
        return key, () if text in _NONE else parts
    if key == "schedule":
        return key, () if text in _NONE else listed([text])
    if key == "fuse":
        if text not in ("auto", *_NONE):
            raise typer.BadParameter(f"fuse is {text!r}, expected auto or none", param_hint=option)
        return key, text == "auto"
    return key, text


def chosen(report: clew.DiffReport, only: Sequence[str]) -> list[Any]:
    """Returns the requested layers; an unknown kind is a usage error."""
    from clew.compare.rows import KINDS  # noqa: PLC0415 - it imports the compiler

    unknown = [kind for kind in only if kind not in ("all", "changed", *KINDS)]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of all, changed, {', '.join(KINDS)}", param_hint="--only"
        )
    if "all" in only:
        return list(report.layers)
    kinds = set(only) - {"changed"}
    return [x for x in report.changed if not kinds or kinds & x.differs.keys()]


def _show(
    report: clew.DiffReport,
    rows: Sequence[Any],
    names: Sequence[str],
    most: int,
    grouped: bool,
    paths: Sequence[Path],
) -> None:
    from clew.compare import show  # noqa: PLC0415 - it imports the compiler

    console = stdout()
    for name in names:
        console.print(show.layer_table(report.layer(name)))
    if names:
        return
    if paths[0] != paths[1]:
        console.print(Text(f"A is {paths[0]}, B is {paths[1]}"))
    console.print(show.whole(report, rows, most, grouped=grouped))
