"""`clew bisect`: finds the pass, node, kernel or schedule step that causes a wrong result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import clew
from clew.backends.compile_options import Sizes
from clew.cli import options as opt
from clew.cli.compare import peer_of
from clew.cli.options import Compiling, compiling, model_inputs, refuse_saved
from clew.cli.output import emit_json, note, progress, stdout
from clew.support.errors import CompileError
from clew.support.tables import table


@compiling
def bisect(
    model: opt.Model,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="onnxruntime|litert|torch|opt0|interpreter|FILE.npz",
            help="Reference for the outputs.",
            show_default="onnxruntime; litert for TFLite files, torch for .pt2 files, interpreter "
            "for .txt files",
        ),
    ] = "",
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            help="Largest accepted relative error.",
            show_default="depends on the narrowest dtype: 0.001 for f32",
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Runs of the program, to detect races.")
    ] = 3,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Time to reduce the faulty part; 0: do not reduce it."
        ),
    ] = 60.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder to write a reproducer to."),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Find the layer, pass, node or kernel that causes a wrong result."""
    from clew.build.sizes import sized  # noqa: PLC0415 - it imports the compiler
    from clew.compiling.loading import loaded  # noqa: PLC0415 - as above
    from clew.frontends.formats import for_bytes, format_of  # noqa: PLC0415 - as above

    refuse_saved(model, "bisection compiles the stages again")
    options = how.options
    form = format_of(model) or for_bytes()
    against = against or form.engine or "interpreter"
    if against == form.engine and form.compares and os.path.isfile(model):
        peer_of(model)  # fails before anything is compiled
    with progress(f"reading {model}") as say:
        module, rest = loaded(model, options)
        fixed, _ = sized(module, rest.group(Sizes).sizes)
        arrays = model_inputs(clew.Inputs(fixed), inputs, random, seed)
        verdict = clew.bisect(
            model,
            arrays,
            reference=against,
            tolerance=tolerance,
            runs=runs,
            reduce=seconds > 0,
            seconds=seconds,
            shapes=options.inputs,
            on_progress=say,
            **options.loaded,
        )
    if json:
        emit_json({"model": str(model), **verdict.to_json()})
    else:
        _show(verdict)
    if output is not None and verdict.kind == "none":
        note(f"no error found: {output} is not written")
    elif output is not None:
        verdict.write(output)
        note(f"reproducer in {output}" if verdict.reduced else f"report in {output}")
    if verdict.kind == "unknown":
        raise CompileError(
            "C094",
            f"the outputs differ by {verdict.error:.2g} for an unknown reason",
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
        console.print(Text("\ncomparisons", style="cyan"))
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
