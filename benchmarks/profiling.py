"""Checks the guarantees of a profile, on models of the zoo and on long chains.

    python benchmarks/profiling.py --models mobilenet_v2,bert_base
    python benchmarks/profiling.py --chains 1000,10000 --models ""

For each model, on one thread: the share of kernels (and host steps) in a plain run's wall time, the
slowdown by timers, and whether the layers' times add up to the kernels'. Plain runs and runs with
timers alternate. Then, for chains of operators, with one kernel per operator and fused: the seconds
of CPU time that a profile takes in addition to its runs, including one of sampling, and the time to
write it.

The exit code is 1 if sums differ, or if a run of more than a millisecond is off by more than
`--tolerance` or slower by more than `--overhead`.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.table import Table

import clew
import zoo
from clew.profile.report import Profile
from harness.report import console, progress
from zoo import handmade

DEFAULT_MODELS = (
    "light_resnet50,light_squeezenet,light_shufflenet,light_densenet121,light_inception_v1,"
    "light_inception_v2,light_vgg19,mobilenet_v2,vit_base,bert_base,gpt2,llama_small,"
    "convnext_tiny,keyword_spotting"
)
# Below this, the call and a stamp of ten nanoseconds are not negligible.
_LONG_NS = 1e6


@dataclass(frozen=True)
class Sums:
    """The sums of a model's profile."""

    model: str
    kernels: int
    wall_ms: float
    inside: float
    inside_timed: float
    overhead: float
    exact: bool


@dataclass(frozen=True)
class Scale:
    """The cost of profiling a chain: seconds of CPU time in total, in addition to its runs, and of
    its exports.
    """

    operators: int
    fuse: str
    kernels: int
    run_us: float
    profile_s: float
    beyond_s: float
    export_s: float


def main(
    models: Annotated[str, typer.Option(help="Names of the zoo.")] = DEFAULT_MODELS,
    chains: Annotated[str, typer.Option(help="Lengths of chains.")] = "1000,10000",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds.")] = None,
    tolerance: Annotated[float, typer.Option(help="Allowed error of the kernels' sum.")] = 0.03,
    overhead: Annotated[float, typer.Option(help="Allowed slowdown by timers.")] = 0.01,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints sums against wall times, and the scaling of profiling."""
    sums = [_sums(name, threads, repeats) for name in models.split(",") if name]
    if sums:
        console.print(_sums_table(sums, threads))
    lengths = [int(word) for word in chains.split(",") if word]
    scales = [_scale(length, fuse) for fuse in ("none", "auto") for length in lengths]
    if scales:
        console.print(_scales_table(scales))
    if json_file:
        rows = {"sums": [asdict(s) for s in sums], "chains": [asdict(s) for s in scales]}
        json_file.write_text(json.dumps(rows, indent=1) + "\n")
    long = [s for s in sums if s.wall_ms * 1e6 > _LONG_NS]
    off = [s for s in long if abs(s.inside - 1) > tolerance or s.overhead > overhead]
    wrong = [s for s in sums if not s.exact]
    for found in (*off, *wrong):
        progress.print(f"{found.model}: {found}")
    raise typer.Exit(bool(off or wrong))


def _sums(name: str, threads: int, repeats: int | None) -> Sums:
    progress.print(name)
    compiled = clew.compile(clew.load(zoo.path(name)), threads=threads)
    feed = zoo.inputs(name)
    arrays = [feed[n] for n in compiled.input_names]
    found = compiled.profile(*arrays, repeats=repeats, sample=False, roofline=False)
    layers = sum(layer.ns for layer in found.layers)
    operators = sum(operator.ns for operator in found.operators)
    return Sums(
        name,
        len(found.kernels),
        found.wall.ns / 1e6,
        found.kernels_ns / found.wall.ns,
        found.kernels_ns / found.timed_wall.ns,
        found.overhead,
        found.kernels_ns == layers == operators,
    )


def _scale(length: int, fuse: str) -> Scale:
    progress.print(f"chain of {length}, fuse {fuse}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.onnx"
        onnx.save(handmade.chain(length), path)
        compiled = clew.compile(path, threads=1, passes=clew.Passes(fuse=fuse != "none"))
        x = np.linspace(-1, 1, 64, dtype=np.float32)[None]
        compiled(x)
        compiled.profile(x, repeats=1, sample=False, roofline=False)  # imports
        start = time.process_time()
        found = compiled.profile(x, roofline=False)
        took = time.process_time() - start
        runs = 2 * found.rounds * found.runs_a_round
        export = _seconds(lambda: _export(found, Path(folder)))
    kernels, run_us = len(found.kernels), found.wall.ns / 1e3
    return Scale(length, fuse, kernels, run_us, took, took - runs * run_us / 1e6, export)


def _export(found: Profile, folder: Path) -> None:
    found.table(top=None)
    found.save(folder / "p.json")
    found.to_pandas()
    found.to_parquet(folder / "p.parquet")
    found.to_csv(folder / "p.csv")
    found.to_chrome_trace(folder / "p.trace.json")


def _seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


# Relative to plain runs, and to those with timers, which noise affects less, since the runs are the
# same.
_SHARES = ("in kernels", "of timed runs")


def _sums_table(sums: list[Sums], threads: int) -> Table:
    table = Table(title=f"kernels' times against wall, {threads} threads", title_justify="left")
    for name in ("model", "kernels", "wall ms", *_SHARES, "timers", "layers = kernels"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for s in sums:
        table.add_row(
            s.model,
            str(s.kernels),
            f"{s.wall_ms:.3f}",
            f"{100 * s.inside:.2f} %",
            f"{100 * s.inside_timed:.2f} %",
            f"{100 * s.overhead:+.2f} %",
            "exactly" if s.exact else "no",
        )
    return table


def _scales_table(scales: list[Scale]) -> Table:
    table = Table(title="profiles of chains", title_justify="left")
    for name in (
        "operators",
        "fuse",
        "kernels",
        "run µs",
        "profile s",
        "beyond runs s",
        "export s",
    ):
        table.add_column(name, justify="right")
    for s in scales:
        table.add_row(
            str(s.operators),
            s.fuse,
            str(s.kernels),
            f"{s.run_us:.1f}",
            f"{s.profile_s:.2f}",
            f"{s.beyond_s:.2f}",
            f"{s.export_s:.2f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
