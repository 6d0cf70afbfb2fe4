"""`clew bisect`: from a wrong result to the pass, node, kernel or schedule step at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import clew
from clew.cli import options as opt
from clew.cli.arguments import shapes
from clew.cli.options import SAVED_SUFFIX, model_inputs
from clew.cli.output import emit_json, note, progress, stdout
from clew.support.errors import CompileError
from clew.support.tables import table


def bisect(
    model: opt.Model,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="onnxruntime|opt0|interpreter|FILE.npz",
            help="What the outputs should be.",
        ),
    ] = "onnxruntime",
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    shape: opt.Shape = [],  # noqa: B006
    target: opt.Target = "cpu",
    threads: opt.Threads = None,
    opt_level: opt.OptLevel = 3,
    fuse: opt.Fuse = True,
    precision: opt.Precision = "f32",
    extend: Annotated[
        list[Path],
        typer.Option(
            "--extend",
            metavar="FILE.py",
            help="Compile with the passes, fusions and schedules of a Python file, repeatable.",
        ),
    ] = [],  # noqa: B006
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest relative error that is right.",
            show_default="by the narrowest dtype: 0.001 in f32",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of the program, for races.")] = 3,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time for reducing the part at fault; 0: do not.")
    ] = 60.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write a reproducer to.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Use kernels from the disk cache.")
    ] = True,
    json: opt.Json = False,
) -> None:
    """Find the layer, pass, node or kernel that a wrong result comes from."""
    if model.suffix == SAVED_SUFFIX:
        raise typer.BadParameter("stages are compiled anew: give the model's own file")
    given = shapes(shape)
    with progress(f"reading {model}") as say:
        options: dict[str, Any] = {
            "target": target,
            "threads": threads,
            "opt_level": opt_level,
            "precision": precision,
            "fuse": "auto" if fuse else None,
            "extend": extend,
            "cache": cache,
        }
        loaded = clew.load(model, **({"inputs": given} if given else {}))
        arrays = model_inputs(clew.Inputs(loaded), inputs, random, seed)
        verdict = clew.bisect(
            model,
            arrays,
            reference=against,
            tolerance=tolerance,
            runs=runs,
            reduce=seconds > 0,
            seconds=seconds,
            shapes=given or None,
            on_progress=say,
            **options,
        )
    if json:
        emit_json({"model": str(model), **verdict.to_json()})
    else:
        _show(verdict)
    if output is not None and verdict.kind != "none":
        verdict.write(output)
        note(f"reproducer in {output}" if verdict.reduced else f"report in {output}")
    if verdict.kind == "unknown":
        raise CompileError(
            "C094",
            f"the outputs are {verdict.error:.2g} off, and it is not known why",
            hint=verdict.summary,
        )


def _show(verdict: clew.Verdict) -> None:
    console = stdout()
    style = "bold green" if verdict.kind == "none" else "bold red"
    console.print(Text.assemble((verdict.kind, style), f": {verdict.summary}"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in verdict.facts().items():
        facts.add_row(Text(f"  {name}", style="cyan"), Text(text))
    console.print(facts)
    if verdict.evidence:
        console.print(Text("\nwhat was compared", style="cyan"))
        for text in verdict.evidence:
            console.print(Padding(Text(text), (0, 0, 0, 2)))
    if len(verdict.culprits) > 1:
        console.print()
        shown = table("layers", "node", "error", "due", right=("error", "due"))
        for culprit in verdict.culprits:
            layers = Text(", ".join(culprit.layers))
            node = Text(culprit.node)
            shown.add_row(layers, node, f"{culprit.error:.1e}", f"{culprit.due:.1e}")
        console.print(shown)
    if verdict.reduced is not None:
        console.print(Text("\nthe part that fails alone", style="cyan"))
        console.print(Text(str(verdict.reduced.module).rstrip()))
