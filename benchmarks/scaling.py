"""Times models of the zoo on one thread and on several, in turns.

    python benchmarks/scaling.py --models default,heldout,tail,unseen --threads 2
    python benchmarks/scaling.py --models mobilenet_v2,hifigan --threads "" --simulate 2,8,32

For each model that takes at least `--above` ms on one thread, a row has the median call on each
number of threads and its ratio to one thread's. `--simulate` adds the ratios of other numbers,
which the machine need not have: the makespan of the kernels, from their times on one thread, as in
`clew bench --simulate`; a second table lists the kernels that leave such threads idle. The exit
code is 1 if a measured ratio of two threads is below `--least`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import clew
import zoo
from clew.bench.engines import runner_of
from clew.bench.measure import geometric_mean, measure
from clew.machine.probes.peak import FmaPeak
from clew.profile.scaling import simulated
from harness.report import console, progress
from peers import _models


@dataclass(frozen=True)
class Result:
    """The median milliseconds of a model by number of threads, the simulated ratios by number, and
    the names of kernels with fewer tasks than threads.
    """

    model: str
    ms: dict[int, float]
    simulated: dict[int, float]
    idle: dict[int, tuple[str, ...]]

    def ratio(self, threads: int) -> float:
        """The time on one thread divided by that on `threads`."""
        return self.ms[1] / self.ms[threads]


def main(
    models: Annotated[str, typer.Option(help="Names or groups of the zoo.")] = "default,unseen",
    threads: Annotated[str, typer.Option(help="Thread counts to measure besides 1.")] = "2",
    simulate: Annotated[str, typer.Option(help="Thread counts to simulate.")] = "",
    rounds: Annotated[int, typer.Option(help="Turns of each thread count.", min=1)] = 10,
    above: Annotated[float, typer.Option(help="Skip models that take fewer ms.")] = 3.0,
    least: Annotated[float, typer.Option(help="Ratio that two threads must reach.")] = 0.0,
    precision: Annotated[str, typer.Option(help="f32, bf16 or auto")] = "f32",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Times models on one thread and on several, and prints a table."""
    counts, others = _numbers(threads), _numbers(simulate)
    peak, results = FmaPeak(), list[Result]()
    for name in dict.fromkeys(name for word in models.split(",") for name in _models(word)):
        progress.print(name)
        found = _scaled(name, counts, others, rounds, above, precision, peak)
        if found is None:
            continue
        results.append(found)
        if json_file:  # after each model, so an interrupted run loses little
            json_file.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    if not results:
        return
    console.print(_table(results, counts, others))
    if any(names for r in results for names in r.idle.values()):
        console.print(_idle_table(results))
    slow = [r.model for r in results if 2 in r.ms and r.ratio(2) < least]
    if slow:
        progress.print(f"below {least} on two threads: {', '.join(slow)}")
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip() not in ("", "1")]


def _scaled(
    name: str,
    counts: Sequence[int],
    others: Sequence[int],
    rounds: int,
    above: float,
    precision: str,
    peak: FmaPeak,
) -> Result | None:
    """Returns the figures of a model; None if it is too fast or cannot be built."""
    try:
        path, feed = zoo.path(name), zoo.inputs(name)
    except Exception as failure:  # any exception of an exporter
        progress.print(f"{name} is skipped: {type(failure).__name__}: {failure}")
        return None
    built = {n: clew.compile(path, threads=n, precision=precision) for n in (1, *counts)}
    prepares = {str(n): partial(runner_of, each) for n, each in built.items()}
    quick = measure({"1": prepares["1"]}, 0, 1, 1, peak, [feed])
    if quick.figures[0].median_ms < above:
        return None
    figures = (measure(prepares, 0, 1, rounds, peak, [feed]) if counts else quick).figures
    times = built[1].time_kernels(feed) if others else []
    found = [simulated(times, n) for n in others]
    return Result(
        name,
        {int(f.engine): f.median_ms for f in figures},
        {s.threads: s.speedup for s in found},
        {s.threads: s.idle for s in found},
    )


def _table(results: Sequence[Result], counts: Sequence[int], others: Sequence[int]) -> Table:
    table = Table(title="one thread over several", title_justify="left")
    table.add_column("model")
    heads = ["1 thread, ms"]
    heads += [head for n in counts for head in (f"{n} threads, ms", "ratio")]
    heads += [f"{n} threads, simulated ratio" for n in others]
    for head in heads:
        table.add_column(head, justify="right")
    for r in results:
        cells = [f"{r.ms[1]:.2f}"]
        cells += [cell for n in counts for cell in (f"{r.ms[n]:.2f}", f"{r.ratio(n):.2f}")]
        table.add_row(r.model, *cells, *(f"{r.simulated[n]:.2f}" for n in others))
    means = [""]
    for n in counts:
        means += ["", f"{geometric_mean([r.ratio(n) for r in results]):.2f}"]
    means += [f"{geometric_mean([r.simulated[n] for r in results]):.2f}" for n in others]
    table.add_row("geometric mean", *means)
    return table


def _idle_table(results: Sequence[Result]) -> Table:
    table = Table(title="kernels with fewer tasks than threads", title_justify="left")
    for head in ("model", "threads", "kernels"):
        table.add_column(head)
    for r in results:
        for n, names in r.idle.items():
            if names:
                table.add_row(r.model, str(n), ", ".join(names))
    return table


if __name__ == "__main__":
    typer.run(main)
