"""`clew partition`: splits a model into parts that run one after the other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import clew
from clew.backends.compile_options import CompileOptions
from clew.cli import options as opt
from clew.cli.arguments import named, read_array
from clew.cli.options import Compiling, compiling, refuse_sizes
from clew.cli.output import emit_json, note, progress, stdout
from clew.support.errors import CompileError
from clew.support.tables import table


@compiling
def partition(
    model: opt.Model,
    at: Annotated[
        list[str],
        typer.Option(
            "--at", metavar="LAYER", help="End a part at this layer; LAYER,LAYER: at both."
        ),
    ] = [],  # noqa: B006 (typer takes the default from here)
    start: Annotated[
        list[str], typer.Option("--from", metavar="LAYER", help="First layer of a range.")
    ] = [],  # noqa: B006
    end: Annotated[
        list[str],
        typer.Option("--to", metavar="LAYER", help="Last layer of the range; one for each --from."),
    ] = [],  # noqa: B006
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder to write the parts to."),
    ] = None,
    form: Annotated[
        str, typer.Option("--form", metavar="txt|onnx", help="File format of the parts.")
    ] = "txt",
    check: Annotated[
        bool, typer.Option("--check", help="Run the parts in sequence and each alone.")
    ] = False,
    inputs: opt.Inputs = [],  # noqa: B006
    seed: opt.Seed = 0,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Split a model into parts that run one after the other.

    Parts end at layers (--at, in the order of the graph), or are ranges of layers (--from, --to).
    With --check alone, MODEL is a folder that was written before. Parts are checked as captured,
    and as compiled with the compile options.
    """
    if bool(at) and bool(start or end):
        raise typer.BadParameter("give either --at, or --from and --to", param_hint="--at")
    if len(start) != len(end):
        raise typer.BadParameter("give one --to for each --from", param_hint="--to")
    from clew.extraction.partition_files import forms  # noqa: PLC0415 - keeps other commands fast

    if form not in forms():
        raise typer.BadParameter(f"one of {', '.join(forms())}", param_hint="--form")
    refuse_sizes(how, "parts have the sizes of the inputs")
    options = how.options
    written: list[Path] = []
    if os.path.isdir(model):
        if at or start or output is not None:
            raise typer.BadParameter("a folder of parts can only be checked", param_hint="MODEL")
        made = clew.load_partition(model)
    else:
        given = {n: read_array(n, Path(f)) for n, f in named(inputs, "--input").items()}
        with progress(f"reading {model}") as say:
            made = clew.partition(
                model,
                at=[_several(name) for name in at],
                ranges=list(zip(start, end, strict=True)),
                inputs=given,
                seed=seed,
                shapes=options.inputs,
                threads=options.threads,
                on_progress=say,
            )
            if output is not None:
                say("writing")
                written = made.save(output, form)
        note(f"other inputs are random, seed {seed}")
        if output is not None:
            made = clew.load_partition(output)
    reports: list[tuple[str, clew.CheckReport]] = []
    if check:
        with progress("checking") as say:
            reports = _checks(made, options)
    if json:
        emit_json(_facts(made, written, reports))
    else:
        _show(made, written, reports)
    failed = [name for name, report in reports if not report.passed]
    if failed:
        raise CompileError(
            "C131",
            f"the parts do not reproduce the outputs of the whole model: {failed[0]}",
            hint="they may have been captured on another machine or with another version of clew",
        )


def _several(text: str) -> str | list[str]:
    names = [n.strip() for n in text.split(",")]
    return names if len(names) > 1 else text


def _checks(made: clew.Partition, options: CompileOptions) -> list[tuple[str, clew.CheckReport]]:
    """Returns the check reports: each part alone, and all in sequence, as captured and as compiled
    with `options`.
    """
    threads = options.threads
    found = [(f"part {n} alone", p.check(threads=threads)) for n, p in enumerate(made.parts)]
    found.append(("in sequence", made.check(threads=threads)))
    return [*found, (f"in sequence, {options}", made.check(**options.loaded))]


def _facts(
    made: clew.Partition, written: list[Path], reports: list[tuple[str, clew.CheckReport]]
) -> dict[str, Any]:
    return {
        "inputs": dict(made.inputs),
        "outputs": dict(made.outputs),
        "parts": [
            {
                "name": s.part.name,
                "layers": s.part.layers,
                "reads": s.reads,
                "gives": s.gives,
                "options": dict(s.options),
            }
            for s in made.stages
        ],
        "files": [str(f) for f in written],
        "checks": [
            {
                "what": name,
                "passed": report.passed,
                "exact": report.exact,
                "error": max((o.error for o in report.outputs), default=0.0),
            }
            for name, report in reports
        ],
    }


def _show(
    made: clew.Partition, written: list[Path], reports: list[tuple[str, clew.CheckReport]]
) -> None:
    console = stdout()
    console.print(_parts_table(made))
    if written:
        size = sum(f.stat().st_size for f in written)
        console.print(Text(f"{len(written)} files in {written[0].parent}, {size / 1e6:,.1f} MB"))
    if reports:
        console.print()
        console.print(_checks_table(reports))


def _parts_table(made: clew.Partition) -> Table:
    shown = table("part", "", "layers", "reads", "gives", right=("layers",))
    for number, stage in enumerate(made.stages):
        reads, gives = ", ".join(stage.reads), ", ".join(stage.gives)
        shown.add_row(
            str(number),
            Text(stage.part.name),
            str(len(stage.part.layers)),
            Text(reads),
            Text(gives),
        )
    return shown


def _checks_table(reports: list[tuple[str, clew.CheckReport]]) -> Table:
    shown = table("checked", "against captured values", "")
    for name, report in reports:
        worst = max((o.error for o in report.outputs), default=0.0)
        same = all(o.same_bits for o in report.outputs)
        found = "same bits" if same else f"relative error {worst:.1e}"
        shown.add_row(name, found, "ok" if report.passed else "WRONG")
    return shown
