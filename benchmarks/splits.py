"""Checks splits by sampling against known ones: `python benchmarks/splits.py`.

The truth is a ratio by construction, or the difference between a kernel's times with and without a
part, measured alternately. The two need not agree: a part that overlaps with another costs less
than it takes alone.
"""

import itertools
import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from clew.profile.interleave import interleaved_ns
from clew.profile.split import Split, split_kernels
from harness.known_splits import KnownSplit, inputs_of, known_splits
from harness.report import console


def _split(case: KnownSplit, seconds: float, threads: int) -> Split:
    compiled = case.compile(case.whole, threads)
    found = split_kernels(compiled, inputs_of(compiled), seconds=seconds)
    (split,) = found.values()
    return split


def _by_difference(case: KnownSplit, rounds: int, threads: int) -> dict[str, float]:
    """Returns each part's share as the relative difference of the times with and without it."""
    models = {"": case.whole, **case.without}
    compiled = {name: case.compile(text, threads) for name, text in models.items()}
    runs: dict[str, Any] = {}
    for name, model in compiled.items():
        feeds = itertools.cycle([inputs_of(model, seed) for seed in range(3)])
        runs[name] = lambda model=model, feeds=feeds: model(*next(feeds))
    times = {n: statistics.median(t) for n, t in interleaved_ns(runs, rounds, 0.02).items()}
    return {part: 1 - times[part] / times[""] for part in case.without}


def main(
    seconds: Annotated[float, typer.Option(help="Seconds of sampling per kernel.")] = 0.5,
    rounds: Annotated[int, typer.Option(help="Turns of each timing.", min=1)] = 15,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    only: Annotated[str, typer.Option(help="Only kernels whose name contains this.")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints shares, in percent: sampled, by construction, by difference, by FLOPs and bytes."""
    table = Table(title=f"splits of known kernels, %, threads: {threads}", title_justify="left")
    table.add_column("kernel")
    table.add_column("part")
    for column in ("sampled", "±", "constructed", "without it", "by FLOPs", "by bytes"):
        table.add_column(column, justify="right")
    rows = []
    for case in known_splits():
        if only not in case.name:
            continue
        split = _split(case, seconds, threads)
        differences = _by_difference(case, rounds, threads)
        for number, (part, share) in enumerate(case.shares(split).items()):
            own = [o for o in split.operators if case.parts[part] in o.layers]
            row = {
                "kernel": case.name,
                "part": part,
                "sampled": share,
                "error": split.error,
                "samples": split.samples,
                "constructed": case.given.get(part),
                "difference": differences.get(part),
                "by_flops": sum(o.by_flops for o in own),
                "by_bytes": sum(o.by_bytes for o in own),
            }
            rows.append(row)
            columns = ("sampled", "error", "constructed", "difference", "by_flops", "by_bytes")
            table.add_row("" if number else case.name, part, *(_percent(row[c]) for c in columns))
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


def _percent(share: Any) -> str:
    return "" if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    typer.run(main)
