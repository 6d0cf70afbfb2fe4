"""`clew run`: runs a model and shows its outputs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.text import Text

from clew.cli import options as opt
from clew.cli.compare import engine_of, peer_of
from clew.cli.options import Compiling, build_summary, compiling, model_inputs, open_model
from clew.cli.output import (
    describe,
    emit_json,
    flat,
    kernel_facts,
    kernels_table,
    note,
    outputs_table,
    save_arrays,
    stdout,
)
from clew.support.difference import relative_error
from clew.support.errors import CompileError


@compiling
def run(
    model: opt.Model,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    repeat: Annotated[
        int, typer.Option(metavar="N", min=1, help="Timed runs; prints their median.")
    ] = 1,
    kernels: Annotated[bool, typer.Option("--kernels", help="Time every kernel.")] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            "--compare-onnxruntime",
            help="Compare with the outputs of ONNX Runtime, or of LiteRT for TFLite files.",
        ),
    ] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="Largest relative error that the comparison accepts.")
    ] = 1e-3,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FOLDER", help="Folder to write the outputs to, as .npy files."
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Run a model, compiled now or saved, and show its outputs."""
    # Checked before compiling; the frontend reports a missing file.
    peer = peer_of(model) if compare and os.path.isfile(model) else None
    compiled = open_model(model, how)
    arrays = model_inputs(compiled.model, inputs, random, seed, compiled.shapes)
    results = flat(compiled.model.run(arrays))  # builds a model with named sizes
    report: dict[str, Any] = {
        "model": str(model),
        "outputs": [describe(n, v) for n, v in results.items()],
        "seconds": {**compiled.seconds, "run": _time(compiled.model, arrays, repeat)},
    }
    if kernels:
        times = compiled.model.time_kernels(arrays)
        report["kernels"] = [
            {**kernel_facts(t.kernel), "median_ns": t.median_ns, "share": t.share} for t in times
        ]
    errors: dict[str, float] = {}
    title = ""
    if peer is not None:
        engine, title = engine_of(model)
        theirs = flat(peer.outputs(arrays))
        errors = report[engine] = {
            name: relative_error(results.get(name), value) for name, value in theirs.items()
        }
    if save is not None:
        save_arrays(save, results)
    if json:
        emit_json(report)
    else:
        _show_run(report, build_summary(compiled))
        for name, error in errors.items():
            text = f"{name}: max |error| / max |output| against {title}: {error:.2g}"
            stdout().print(Text(text))
    worst = max(errors.values(), default=0.0)
    if not worst <= tolerance:
        raise CompileError(
            "C091",
            f"outputs differ from {title}'s by {worst:.2g}, more than {tolerance:.2g}",
            hint="clew bisect MODEL finds the layer, pass or kernel that causes the error",
        )


def _time(model: Any, arrays: dict[str, Any], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        model.run(arrays)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _show_run(report: dict[str, Any], summary: str) -> None:
    console = stdout()
    console.print(outputs_table(report["outputs"]))
    if "kernels" in report:
        console.print()
        console.print(kernels_table(report["kernels"]))
    note(f"{summary}; one run {report['seconds']['run'] * 1e3:.3f} ms")
