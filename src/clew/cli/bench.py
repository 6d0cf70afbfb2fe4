"""`clew bench`: a model under clew and its peers in turns, and every kernel under its roof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import clew
from clew.cli import options as opt
from clew.cli.arguments import shapes
from clew.cli.options import SAVED_SUFFIX, model_inputs
from clew.cli.output import emit_json, note, progress, stdout, table
from clew.support.errors import CompileError
from clew.target import host

if TYPE_CHECKING:
    from clew.bench.bandwidth import Bandwidth, Level
    from clew.bench.engines import Runner
    from clew.bench.measure import Measured
    from clew.bench.peak import FmaPeak
    from clew.bench.roofline import Roof

_PRECISIONS = ("f32", "bf16", "auto")
_TOLERANCES = {"f32": 1e-3, "bf16": 1e-1, "auto": 1e-1}
_PEERS = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class _Asked:
    """What the options say, but for the thread count."""

    model: Path
    shape: Mapping[str, Sequence[int]]
    inputs: Sequence[str]
    random: bool
    seed: int
    target: str
    opt_level: int
    precision: str
    rounds: int


@dataclass(frozen=True)
class _Run:
    """The figures of one thread count."""

    threads: int
    gflop: float
    measured: Measured
    levels: list[Level]
    roofs: list[Roof]


def bench(
    model: opt.Model,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    shape: opt.Shape = [],  # noqa: B006
    target: opt.Target = "cpu",
    threads: Annotated[
        str, typer.Option(metavar="1,2", help="Thread counts.", show_default="all CPUs")
    ] = "",
    opt_level: opt.OptLevel = 3,
    precision: Annotated[
        str, typer.Option(metavar="|".join(_PRECISIONS), help="Of clew's and OpenVINO's products.")
    ] = "f32",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each engine.")] = 10,
    kernels: Annotated[int, typer.Option(min=0, help="Kernels shown; 0 for all.")] = 20,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest relative error.", show_default="1e-3, else 0.1 for bf16"),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Time a model against ONNX Runtime and OpenVINO, and each kernel against the machine."""
    if model.suffix == SAVED_SUFFIX:
        raise typer.BadParameter("peers need the model's own file, not a saved one")
    if precision not in _PRECISIONS:
        raise typer.BadParameter(f"one of {', '.join(_PRECISIONS)}", param_hint="--precision")
    asked = _Asked(model, shapes(shape), inputs, random, seed, target, opt_level, precision, rounds)
    runs = _measure(asked, _counts(threads))
    if json:
        emit_json(_report(asked, runs))
    else:
        for run in runs:
            _show(run, kernels)
    accepted = _TOLERANCES[precision] if tolerance is None else tolerance
    worst = max((f.error for r in runs if (f := r.measured.of("clew")) is not None), default=0.0)
    if worst > accepted:
        raise CompileError(
            "C091",
            f"outputs differ from the reference's by {worst:.2g}, more than {accepted:.2g}",
            hint="clew trace MODEL --verify finds the pass whose result differs",
        )


def _counts(text: str) -> list[int]:
    """Returns thread counts: all CPUs where none are given."""
    words = text.split(",") if text else [str(host().cores)]
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise typer.BadParameter(f"{text!r} is not like 1,2", param_hint="--threads")
    return [int(word) for word in words]


def _measure(asked: _Asked, counts: Sequence[int]) -> list[_Run]:
    from clew.bench.bandwidth import Bandwidth  # noqa: PLC0415 - the compiler, for this command only
    from clew.bench.peak import FmaPeak  # noqa: PLC0415

    peak, bandwidth = FmaPeak(), Bandwidth()
    with progress(f"reading {asked.model}") as say:
        given = {"inputs": asked.shape} if asked.shape else {}
        module = clew.load(asked.model, **given)
        feed: dict[str, Any] = {}  # drawn once, for the first compiled model's inputs
        return [_measure_at(asked, module, feed, n, peak, bandwidth, say) for n in counts]


def _measure_at(
    asked: _Asked,
    module: Any,
    feed: dict[str, Any],
    threads: int,
    peak: FmaPeak,
    bandwidth: Bandwidth,
    say: Callable[[str], None],
) -> _Run:
    from clew.bench.engines import compile_options, engines  # noqa: PLC0415 - as above
    from clew.bench.flops import model_flops  # noqa: PLC0415
    from clew.bench.measure import measure  # noqa: PLC0415
    from clew.bench.roofline import rooflines  # noqa: PLC0415

    compiled = clew.compile(
        module,
        asked.target,
        threads=threads,
        opt_level=asked.opt_level,
        on_progress=say,
        **compile_options(asked.precision),
    )
    if not feed:
        feed.update(model_inputs(compiled, asked.inputs, asked.random, asked.seed))
    compiled.run(feed)  # builds a model with named sizes
    flops = model_flops(compiled.build)
    prepares: dict[str, Callable[[], Runner]] = {
        "clew": lambda: lambda: list(compiled.run(feed).values())
    }
    for name in _PEERS:
        engine = engines()[name]
        if engine.installed:
            prepares[name] = partial(engine.prepare, asked.model, feed, threads, asked.precision)
        else:
            note(f"{name} is not installed and left out: pip install 'clew[bench]'")
    say(f"taking turns, {_threads(threads)}")
    measured = measure(prepares, flops, threads, asked.rounds, peak)
    say("kernels")
    levels = bandwidth.levels(threads)
    times = compiled.time_kernels(*(feed[name] for name in compiled.input_names))
    roofs = rooflines(times, measured.peak_gflops, levels)
    return _Run(threads, flops / 1e9, measured, levels, roofs)


def _report(asked: _Asked, runs: Sequence[_Run]) -> dict[str, Any]:
    here = host()
    return {
        "model": str(asked.model),
        "precision": asked.precision,
        "machine": {"cpu": here.cpu, "features": here.features, "vector_bits": here.vector_bits},
        "runs": [
            {
                "threads": run.threads,
                "gflop": run.gflop,
                "peak_gflops": run.measured.peak_gflops,
                "bandwidth_gbps": {level.name: level.gbps for level in run.levels},
                "engines": [asdict(f) for f in run.measured.figures],
                "kernels": [asdict(r) for r in run.roofs],
            }
            for run in runs
        ],
    }


def _show(run: _Run, most: int) -> None:
    console = stdout()
    console.print(engines_table(run.measured, f"{_threads(run.threads)}, {run.gflop:.3g} GFLOP"))
    lead = run.measured.lead("clew")
    if lead is not None:
        console.print(Text(f"clew runs at {lead[0]:.2f} times the speed of {lead[1]}, the fastest"))
    console.print()
    console.print(roofs_table(run.roofs[: most or None], limits(run.measured, run.levels)))
    if most and len(run.roofs) > most:
        console.print(Text(f"{len(run.roofs) - most} more kernels: --kernels 0", style="dim"))
    console.print()


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def limits(measured: Measured, levels: Sequence[Level]) -> str:
    """Returns a line on what the machine allows."""
    speeds = ", ".join(f"{level.name} {level.gbps:.0f}" for level in levels)
    return f"FMA peak {measured.peak_gflops:.0f} GFLOP/s; GB/s: {speeds}"


def engines_table(measured: Measured, title: str) -> Table:
    """Returns a table of engines; `× clew` is an engine's median over clew's."""
    numbers = ("median ms", "best ms", "× clew", "GFLOP/s", "% of peak", "error")
    made = table("engine", *numbers, right=numbers, title=title)
    own = measured.of("clew")
    for f in measured.figures:
        if f.failure:
            made.add_row(f.engine, Text(f.failure, style="red"))
            continue
        made.add_row(
            f.engine,
            f"{f.median_ms:.3f}",
            f"{f.best_ms:.3f}",
            f"{f.median_ms / own.median_ms:.2f}" if own else "",
            f"{f.gflops:.0f}",
            f"{100 * f.peak_share:.0f}",
            f"{f.error:.1e}",
        )
    return made


def roofs_table(roofs: Sequence[Roof], title: str) -> Table:
    """Returns a table of kernels: what each reaches, and how near its limit that is."""
    numbers = ("µs", "share", "GFLOP/s", "% of peak", "GB/s")
    made = table("kernel", "layers", *numbers, "limit", right=numbers, title=title)
    for r in roofs:
        layers = ", ".join(r.layers[:2]) + (f" and {len(r.layers) - 2} more" * (len(r.layers) > 2))
        made.add_row(
            Text(r.kernel),
            Text(layers),
            f"{r.microseconds:.1f}",
            f"{100 * r.share:.1f} %",
            f"{r.gflops:.1f}",
            f"{100 * r.peak_share:.0f}",
            f"{r.gbps:.1f}",
            f"{r.limit} {100 * r.limit_share:.0f} %",
        )
    return made
