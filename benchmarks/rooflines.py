"""Shows every kernel of a model with its roof: a peak of arithmetic, or the bandwidth of a memory
level.

    python benchmarks/rooflines.py --models light_resnet50,bert_base --results rooflines
    python benchmarks/rooflines.py --models default,heldout,tail --kernels 0 --json roofs.json

Prints the table of `clew bench` for models of the zoo (uses of the same code share a row), and one
with a row per model: the time of its kernels, the sum of their limits, and the kernels that take
more than 3 % of the time and stand below 75 % of their limit. With `--kernels 0`, only the latter.
"""

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import clew
import zoo
from clew.cli.bench import roofs_table
from clew.machine.probes.bandwidth import Bandwidth, Level
from clew.machine.probes.peak import FmaPeak
from clew.machine.probes.products import ProductPeaks
from clew.profile.roofline import Roof, rooflines, total
from harness import results as written
from harness.report import console, progress
from peers import _models

_PEAKS = 5


@dataclass(frozen=True)
class Result:
    """One model's kernels and the machine's limits during the run."""

    model: str
    threads: int
    peak_gflops: float
    levels: list[Level]
    roofs: list[Roof]

    @property
    def limits(self) -> str:
        """A line about the machine's limits."""
        speeds = ", ".join(f"{level.name} {level.gbps:.0f}" for level in self.levels)
        total = sum(roof.microseconds for roof in self.roofs) / 1e3
        return (
            f"{self.model}, threads: {self.threads}; kernels {total:.2f} ms in all; "
            f"FMA peak {self.peak_gflops:.0f} GFLOP/s; GB/s: {speeds}"
        )


def main(
    models: Annotated[
        str, typer.Option(help="Names or groups of the zoo.")
    ] = "light_resnet50,bert_base",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    precision: Annotated[str, typer.Option(help="f32, bf16 or auto")] = "f32",
    most: Annotated[int, typer.Option("--kernels", help="Kernels shown per model.", min=0)] = 15,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints the kernels that take longest, with their times relative to their limits."""
    names = list(dict.fromkeys(name for word in models.split(",") for name in _models(word)))
    results = [measured(name, threads, precision) for name in names]
    for result in results if most else []:
        console.print(roofs_table(result.roofs[:most], result.limits))
    console.print(_models_table(results))
    if json_file:
        json_file.write_text(json.dumps([_row(result) for result in results], indent=1) + "\n")
    if section:
        written.record(section, _tables(results, most))


def _row(result: Result) -> dict[str, object]:
    whole = total(result.roofs)
    return {
        "model": result.model,
        "threads": result.threads,
        "peak_gflops": result.peak_gflops,
        **asdict(whole),
        "limit_share": whole.limit_share,
        "kernels": [asdict(roof) for roof in result.roofs],
    }


def _cells(result: Result) -> list[str]:
    whole = total(result.roofs)
    low = [f"{r.kernel} ({100 * r.share:.0f} %, {r.bound})" for r in result.roofs if r.is_low]
    times = (f"{whole.kernels_ms:.2f}", f"{whole.limits_ms:.2f}", f"{100 * whole.limit_share:.0f}")
    return [result.model, *times, ", ".join(low)]


_COLUMNS = ("kernels, ms", "limits, ms", "% of the roof")
_LOW = "above 3 % of the time, below 75 % of the limit"


def _models_table(results: list[Result]) -> Table:
    table = Table("model")
    for header in _COLUMNS:
        table.add_column(header, justify="right")
    table.add_column(_LOW)
    for result in results:
        table.add_row(*_cells(result))
    return table


def measured(name: str, threads: int, precision: str) -> Result:
    """Returns a model's kernels and the limits, which are measured before and after them."""
    progress.print(name)
    peak, bandwidth = FmaPeak(), Bandwidth()
    feed = zoo.inputs(name)
    model = clew.load(zoo.path(name))
    compiled = clew.compile(model, threads=threads, precision=precision)
    compiled.run(feed)
    levels = bandwidth.levels(threads)
    peaks = [peak.gflops(threads) for _ in range(_PEAKS)]
    times = compiled.time_kernels(*(feed[each] for each in compiled.input_names))
    peaks += [peak.gflops(threads) for _ in range(_PEAKS)]
    middle = statistics.median(peaks)
    roofs = rooflines(times, ProductPeaks(middle, threads), levels)
    return Result(name, threads, middle, levels, roofs)


def _tables(results: list[Result], most: int) -> list[written.Table]:
    columns = ["kernel", "limit", "uses", "µs in all", "share %", "GFLOP/s", "% of peak", "GB/s"]
    models = [_cells(result) for result in results]
    tables = [written.Table("", ["model", *_COLUMNS, _LOW], models)]
    for result in results if most else []:
        rows = [
            [
                f"`{r.kernel}`",
                r.bound,
                str(r.uses),
                f"{r.microseconds:.0f}",
                f"{100 * r.share:.1f}",
                f"{r.gflops:.0f}",
                f"{100 * r.peak_share:.0f}",
                f"{r.gbps:.0f}",
            ]
            for r in result.roofs[:most]
        ]
        tables.append(written.Table("", columns, rows, 2, f"{result.limits}."))
    return tables


if __name__ == "__main__":
    typer.run(main)
