"""`clew precision`: the layers that cause the error of a narrow precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import clew
from clew.backends.compile_options import Precision
from clew.cli import options as opt
from clew.cli.options import Compiling, compiling, model_inputs, refuse_saved
from clew.cli.output import emit_json, progress, stdout
from clew.support.errors import CompileError
from clew.support.tables import table


@compiling
def precision_(
    model: opt.Model,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    seed: opt.Seed = 0,
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Sets of random inputs, each with its own seed."),
    ] = 4,
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="bf16|f16|auto", help="Precision of products."),
    ] = "bf16",
    error: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            help="Find the fewest layers to keep in f32 for this relative error.",
        ),
    ] = None,
    savings: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Layers to try in f32 with all others narrow, the worst first."
        ),
    ] = 10,
    layers: Annotated[int, typer.Option(metavar="N", min=0, help="Layers to show; 0: all.")] = 20,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Find the layers that cause the error of narrow products, and those to keep in f32."""
    from clew.compiling.loading import loaded  # noqa: PLC0415 - it imports the compiler

    refuse_saved(model, "the report compiles the layers again")
    with progress(f"reading {model}") as say:
        module, exact = loaded(model, how.options)
        specs = clew.compile(module, **exact, on_progress=say)
        drawn = [model_inputs(specs, inputs, True, seed + n) for n in range(seeds)]
        drawn = drawn[:1] if len(inputs) == len(specs.input_names) else drawn
        report = clew.precision_report(
            module,
            drawn,
            bound=error,
            savings=savings,
            on_progress=say,
            precision=exact.changed(precision=precision).group(Precision),
            **exact.changed(precision=Precision()),
        )
    if json:
        emit_json({"model": str(model), **report.to_json()})
    else:
        _show(report, layers)
    if report.kept is not None and not report.kept.met:
        raise CompileError(
            "C093",
            f"the error is {report.kept.left.worst:.2g} with every named layer in f32, "
            f"more than {report.kept.bound:.2g}",
            hint="the rest is the error of f32 itself, in another order of summation",
        )


def _show(report: clew.PrecisionReport, most: int) -> None:
    console = stdout()
    console.print(layers_table(report.layers[: most or None], report.precision))
    hidden = len(report.layers) - most
    if most and hidden > 0:
        console.print(Text(f"{hidden} more layers: --layers 0", style="dim"))
    whole = report.error
    console.print(
        Text(
            f"all {len(report.layers)} layers: {whole.worst:.2g}, rms {whole.rms:.2g} over "
            f"{report.inputs} set{'s' * (report.inputs > 1)} of inputs; rms "
            f"{report.independent:.2g} if the layers' errors were independent"
        )
    )
    if report.kept is not None:
        kept = report.kept
        console.print(
            Text(
                f"at most {kept.bound:.2g}: {kept.left.worst:.2g} with {len(kept.keep_f32)} kept: "
                f"keep_f32={list(kept.keep_f32)}"
            )
        )


def layers_table(layers: Sequence[clew.LayerError], precision: str) -> Table:
    """Returns a table of layers: the error of each alone, and of the network without it."""
    numbers = ("rms alone", "worst alone", "share", "rms without it", "worst without it")
    title = f"error of products in {precision} against f32"
    made = table("layer", *numbers, right=numbers, title=title)
    for layer in layers:
        rest = layer.without
        made.add_row(
            Text(", ".join(layer.names)),
            f"{layer.alone.rms:.1e}",
            f"{layer.alone.worst:.1e}",
            f"{100 * layer.share:.1f} %",
            f"{rest.rms:.1e}" if rest else "",
            f"{rest.worst:.1e}" if rest else "",
        )
    return made
