"""`clew extract`: a part of a model that runs on its own, as text, ONNX or script."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import clew
from clew.backends.compile_options import CompileOptions
from clew.cli import options as opt
from clew.cli.arguments import named, read_array
from clew.cli.options import Compiling, compiling, listed, refuse_sizes
from clew.cli.output import emit_json, note, progress, stdout
from clew.support.errors import PASSED_ON, CompileError, InputError
from clew.support.files import reason_of, run_program
from clew.support.tables import table

Outputs = Annotated[
    list[Path],
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File to write: .txt (clew text), .onnx, or .py (a standalone script).",
    ),
]


@compiling
def extract(
    model: opt.Model,
    start: Annotated[
        list[str], typer.Option("--from", metavar="LAYER,...", help="First layers of a range.")
    ] = [],  # noqa: B006 (typer takes the default from here)
    end: Annotated[
        list[str], typer.Option("--to", metavar="LAYER,...", help="Last layers of the range.")
    ] = [],  # noqa: B006
    layers: Annotated[
        list[str], typer.Option("--layer", metavar="LAYER,...", help="Single layers; repeatable.")
    ] = [],  # noqa: B006
    kernel: Annotated[str, typer.Option(metavar="NAME", help="A kernel, by name.")] = "",
    nodes: Annotated[
        str,
        typer.Option(
            metavar="BEGIN:END|NODE,...",
            help="Nodes of the executor: a range, the end not included, or names or positions in "
            "graph.json.",
        ),
    ] = "",
    pattern: Annotated[
        str,
        typer.Option(
            metavar="PATTERN",
            help="Pattern to match: as text, module:NAME or file.py:NAME.",
        ),
    ] = "",
    match: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of the pattern's match.")
    ] = 0,
    output: Outputs = [],  # noqa: B006
    check: Annotated[
        bool,
        typer.Option("--check", help="Run the written files and compare with the captured values."),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="X", help="Accepted relative error of layers compiled with these options."
        ),
    ] = 1e-3,
    inputs: opt.Inputs = [],  # noqa: B006
    seed: opt.Seed = 0,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Extract a part of a model, with real inputs and expected outputs.

    Select it by layers (--from and --to, repeatable; --layer), --pattern, --kernel or --nodes. With
    --check alone, MODEL is a part that was written before. The compile options apply to the model
    for --kernel and --nodes. For --check they apply to extracted layers, which are also checked as
    captured.
    """
    options = how.options
    if not kernel and not nodes:
        refuse_sizes(how, "extracted layers have the sizes of the inputs")
    chosen = bool(start or end or layers or kernel or nodes or pattern)
    if not chosen and check and not output:
        part = clew.load_part(model)
        _finish(part, [], [(model.name, part)], options, tolerance, json)
        return
    from clew.extraction.files import check_suffix  # noqa: PLC0415 (heavy)

    for path in output:
        check_suffix(path)
    given: dict[str, Any] = {n: read_array(n, Path(f)) for n, f in named(inputs, "--input").items()}
    built = options.loaded if kernel or nodes else CompileOptions(threads=options.threads)
    with progress(f"reading {model}") as say:
        part = clew.extract(
            model,
            start=listed(start),
            end=listed(end),
            layers=listed(layers),
            kernel=kernel,
            nodes=nodes or None,
            pattern=_pattern(pattern) if pattern else None,
            match=match,
            inputs=given,
            seed=seed,
            shapes=options.inputs,
            on_progress=say,
            **built,
        )
        say("writing")
        files = [(path, part.save(path)) for path in output]
    note(f"other inputs are random, seed {seed}")
    for text in part.notes:
        note(text)
    checked = []
    if check:
        checked = [(path.name, clew.load_part(path)) for path, _ in files] or [("part", part)]
    written = [file for _, made in files for file in made]
    _finish(part, written, checked, options, tolerance, json)


def _pattern(text: str) -> Any:
    """Returns the pattern that a text describes or names: `module:NAME`, `file.py:NAME`.

    Errors: I145.
    """
    from clew.patterns import Pattern, read_pattern  # noqa: PLC0415 (numpy and all operators)

    place, colon, name = text.rpartition(":")
    if not colon:
        return read_pattern(text)
    try:
        if place.endswith(".py"):
            found = run_program(place)[name]
        else:
            found = getattr(importlib.import_module(place), name)
    except PASSED_ON:
        raise
    except BaseException as error:  # a user's program may raise anything
        raise InputError("I145", f"no pattern {text!r}: {reason_of(error)}") from None
    if not isinstance(found, Pattern):
        raise InputError("I145", f"{text!r} is a {type(found).__name__}, not a pattern")
    return found


def _finish(
    part: clew.Part,
    written: list[Path],
    checked: list[tuple[str, clew.Part]],
    options: CompileOptions,
    tolerance: float,
    json: bool,
) -> None:
    """Shows a part and the results of its checks.

    Errors: C130 if a check fails.
    """
    with progress("checking"):
        reports = [
            (f"{name}, {how}", report)
            for name, one in checked
            for how, report in _reports(one, options, tolerance)
        ]
    if json:
        emit_json(_facts(part, written, reports))
    else:
        _show(part, written, reports)
    failed = [(name, report) for name, report in reports if not report.passed]
    if failed:
        name, report = failed[0]
        hint = "it may have been captured on another machine or with another version of clew"
        if not report.exact:
            hint = "other options round differently: --tolerance sets the accepted error"
        raise CompileError(
            "C130", f"the part does not reproduce the captured values: {name}", hint=hint
        )


def _reports(
    part: clew.Part, options: CompileOptions, tolerance: float
) -> list[tuple[str, clew.CheckReport]]:
    found = [("as captured", part.check(threads=options.threads))]
    if "passes" not in part.options:
        # A part has the sizes of the run in which it was captured.
        report = part.check(tolerance=tolerance, **options.loaded.changed(sizes={}))
        found.append((f"at {options}", report))
    return found


def _facts(
    part: clew.Part, written: list[Path], reports: list[tuple[str, clew.CheckReport]]
) -> dict[str, Any]:
    checks = [
        {
            "what": name,
            "passed": report.passed,
            "outputs": [
                {"name": o.name, "same_bits": o.same_bits, "error": o.error} for o in report.outputs
            ],
        }
        for name, report in reports
    ]
    return {
        "name": part.name,
        "kind": part.kind,
        "layers": part.layers,
        "inputs": [_value(n, a) for n, a in part.inputs.items()],
        "outputs": [_value(n, a) for n, a in part.outputs.items()],
        "notes": part.notes,
        "files": [str(f) for f in written],
        "checks": checks,
    }


def _value(name: str, array: Any) -> dict[str, Any]:
    return {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}


def _show(
    part: clew.Part, written: list[Path], reports: list[tuple[str, clew.CheckReport]]
) -> None:
    console = stdout()
    count = len(part.layers)
    console.print(Text(f"{part.name}: {count} layer{'s' * (count != 1)}"))
    console.print(_values_table(part))
    for file in written:
        console.print(Text(f"{file}  {file.stat().st_size / 1024:,.1f} kB"))
    if reports:
        console.print()
        console.print(_checks_table(reports))


def _values_table(part: clew.Part) -> Table:
    made = table("value", "", "type")
    for kind, values in (("in", part.inputs), ("out", part.outputs)):
        for name, array in values.items():
            dims = ", ".join(map(str, array.shape))
            made.add_row(Text(name), kind, Text(f"{array.dtype}[{dims}]"))
    return made


def _checks_table(reports: list[tuple[str, clew.CheckReport]]) -> Table:
    made = table("checked", "output", "against captured values", "")
    for name, report in reports:
        for place, output in enumerate(report.outputs):
            found = "same bits" if output.same_bits else f"relative error {output.error:.1e}"
            passed = output.same_bits or (not report.exact and output.error <= report.tolerance)
            made.add_row(
                Text("" if place else name), Text(output.name), found, "ok" if passed else "WRONG"
            )
    return made
