"""`clew bench`: times a model on clew and other engines, and each kernel against its roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from clew.cli import options as opt
from clew.cli.arguments import named
from clew.cli.options import Compiling, compiling, model_inputs, refuse_saved
from clew.cli.output import emit_json, note, progress, stdout
from clew.runtime.drawing import draw, sizes_of
from clew.support.errors import CompileError
from clew.support.settings import usable_cpus
from clew.support.tables import table

if TYPE_CHECKING:
    from clew.bench.measure import Measured
    from clew.bench.session import Run
    from clew.machine.probes.bandwidth import Level
    from clew.profile.roofline import Roof
    from clew.profile.scaling import Scaled, Simulated

_PRECISIONS = ("f32", "bf16", "auto")
_TOLERANCES = {"f32": 1e-3, "bf16": 1e-1, "auto": 1e-1}
_LAYERS_SHOWN = 2


@compiling
def bench(
    model: opt.Model,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    threads: Annotated[
        str, typer.Option(metavar="1,2", help="Thread counts.", show_default="all CPUs")
    ] = "",
    precision: Annotated[
        str,
        typer.Option(
            metavar="|".join(_PRECISIONS), help="Precision of products in engines that offer it."
        ),
    ] = "f32",
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Measure clew's kernels on one thread, and simulate them on the others.",
        ),
    ] = False,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Timed rounds of each engine.")
    ] = 10,
    kernels: Annotated[int, typer.Option(metavar="N", min=0, help="Kernels to show; 0: all.")] = 20,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Largest accepted relative error.", show_default="1e-3; 0.1 for bf16"
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Time a model against other engines, and each kernel against the machine."""
    refuse_saved(model, "other engines cannot read a saved model")
    if precision not in _PRECISIONS:
        raise typer.BadParameter(f"one of {', '.join(_PRECISIONS)}", param_hint="--precision")
    from clew.bench.session import Session, machine  # noqa: PLC0415 - it imports the compiler
    from clew.compiling.loading import loaded  # noqa: PLC0415 - as above

    counts = _counts(threads)
    options = how.options
    with progress(f"reading {model}") as say:
        module, rest = loaded(model, options)
        drawn = partial(_feeds, files=inputs, random=random, seed=seed)
        chosen = rest.changed(precision=precision)
        session = Session(model, module, drawn, chosen, rounds, say)
        simulations = session.simulated(counts) if simulate else []
        runs = [] if simulate else session.runs(counts)
    if simulate:
        _show_simulated(model, precision, simulations, kernels, json)
        return
    for peer in dict.fromkeys(peer for run in runs for peer in run.missing):
        note(f"skipped {peer.name}, which is not installed: {peer.install}")
    if json:
        figures = [run.to_json() for run in runs]
        report = {"model": str(model), "precision": precision, "machine": machine()}
        emit_json({**report, "runs": figures})
    else:
        for run in runs:
            _show(run, kernels)
    accepted = _TOLERANCES[precision] if tolerance is None else tolerance
    ours = [f.error for run in runs for f in run.measured.figures if f.engine == "clew"]
    worst = max((error for error in ours if error > accepted), default=None)  # NaN: no reference
    if worst is not None:
        raise CompileError(
            "C091",
            f"outputs differ from the reference by {worst:.2g}, more than {accepted:.2g}",
            hint="clew bisect MODEL finds the layer, pass or kernel that causes the error",
        )


def _feeds(model: Any, files: Sequence[str], random: bool, seed: int) -> list[dict[str, Any]]:
    """Returns inputs for successive runs: inputs from files are the same in each, others are new
    random values.
    """
    first = model_inputs(model, files, random, seed)
    given = {name: first[name] for name in named(files, "--input")}
    others = (draw(model.inputs, given, seed + n, sizes_of(model.inputs, given)) for n in (1, 2))
    return [first, *({**given, **values} for values in others if len(first) > len(given))]


def _counts(text: str) -> list[int]:
    """Returns thread counts; the default is all CPUs."""
    words = text.split(",") if text else [str(usable_cpus())]
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 1,2", param_hint="--threads"
        )
    return [int(word) for word in words]


def _show(run: Run, most: int) -> None:
    console = stdout()
    console.print(engines_table(run.measured, f"{_threads(run.threads)}, {run.gflop:.3g} GFLOP"))
    lead = run.measured.lead("clew")
    if lead is not None:
        console.print(
            Text(f"clew runs at {lead[0]:.2f} times the speed of {lead[1]}, the fastest peer")
        )
    console.print()
    console.print(roofs_table(run.roofs[: most or None], limits(run.measured, run.levels)))
    if most and len(run.roofs) > most:
        console.print(Text(f"{len(run.roofs) - most} more kernels: --kernels 0", style="dim"))
    for line in run.roof_lines:
        console.print(Text(line))
    console.print()


def _show_simulated(
    model: object, precision: str, found: Sequence[Simulated], most: int, json: bool
) -> None:
    if json:
        runs = [one.to_json() for one in found]
        emit_json({"model": str(model), "precision": precision, "simulated": runs})
        return
    console = stdout()
    for one in found:
        console.print(scaling_table(one.kernels[: most or None], _threads(one.threads)))
        if most and len(one.kernels) > most:
            console.print(Text(f"{len(one.kernels) - most} more kernels: --kernels 0", style="dim"))
        console.print(
            Text(
                f"kernels {one.one_thread_ms:.3g} ms on one thread, measured; "
                f"{one.makespan_ms:.3g} ms on {_threads(one.threads)}, simulated: "
                f"{one.speedup:.2f} times as fast"
            )
        )
        if one.idle:
            console.print(Text(f"fewer tasks than threads: {', '.join(one.idle)}"))
        console.print()


def scaling_table(kernels: Sequence[Scaled], title: str) -> Table:
    """Returns a table of kernels on simulated threads."""
    numbers = ("uses", "µs, 1 thread", "tasks", "µs, simulated", "speedup")
    made = table("kernel", *numbers, right=numbers, title=f"{title}, simulated")
    for k in kernels:
        made.add_row(
            Text(k.kernel),
            str(k.uses),
            f"{k.microseconds:.1f}",
            str(k.tasks),
            f"{k.simulated_microseconds:.1f}",
            f"{k.speedup:.2f}",
        )
    return made


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def limits(measured: Measured, levels: Sequence[Level]) -> str:
    """Returns a line with the limits of the machine."""
    speeds = ", ".join(f"{level.name} {level.gbps:.0f}" for level in levels)
    return f"FMA peak {measured.peak_gflops:.0f} GFLOP/s; GB/s: {speeds}"


def engines_table(measured: Measured, title: str) -> Table:
    """Returns a table of engines; `× clew` is an engine's median over clew's."""
    numbers = ("median ms", "spread", "best ms", "× clew", "GFLOP/s", "% of peak", "error")
    made = table("engine", *numbers, right=numbers, title=title)
    own = measured.of("clew")
    for f in measured.figures:
        if f.failure:
            made.add_row(f.engine, Text(f.failure, style="red"))
            continue
        made.add_row(
            f.engine,
            f"{f.median_ms:.3f}",
            f"{100 * f.spread:.1f} %",
            f"{f.best_ms:.3f}",
            f"{f.median_ms / own.median_ms:.2f}" if own else "",
            f"{f.gflops:.0f}",
            f"{100 * f.peak_share:.0f}",
            "" if math.isnan(f.error) else f"{f.error:.1e}",  # no peer to compare with
        )
    return made


def roofs_table(roofs: Sequence[Roof], title: str) -> Table:
    """Returns a table of kernels: throughput, and share of the roofline limit."""
    numbers = ("uses", "µs in all", "share", "GFLOP/s", "% of peak", "GB/s")
    made = table("kernel", "layers", *numbers, "limit", right=numbers, title=title)
    for r in roofs:
        more = len(r.layers) - _LAYERS_SHOWN
        layers = ", ".join(r.layers[:_LAYERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        made.add_row(
            Text(r.kernel),
            Text(layers),
            str(r.uses),
            f"{r.microseconds:.1f}",
            f"{100 * r.share:.1f} %",
            f"{r.gflops:.1f}",
            f"{100 * r.peak_share:.0f}",
            f"{r.gbps:.1f}",
            r.bound,
        )
    return made
