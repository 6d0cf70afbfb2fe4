"""Shows every kernel of a model with its roof: the FMA peak, or the bandwidth of a memory level.

    python benchmarks/rooflines.py --models light_resnet50,bert_base --markdown docs/performance.md

Prints the table of `clew bench` for models of the zoo. Uses of the same code share a row.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import clew
import zoo
from clew.bench.roofline import Roof, rooflines
from clew.cli.bench import roofs_table
from clew.machine.probes.bandwidth import Bandwidth, Level
from clew.machine.probes.peak import FmaPeak
from harness.report import circumstances, console, fill, markdown, progress

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
    models: Annotated[str, typer.Option(help="Names of the zoo.")] = "light_resnet50,bert_base",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    precision: Annotated[str, typer.Option(help="f32, bf16 or auto")] = "f32",
    most: Annotated[int, typer.Option("--kernels", help="Kernels shown per model.", min=1)] = 15,
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the tables into this document.")
    ] = None,
) -> None:
    """Prints the kernels that take longest, with their times relative to their limits."""
    results = [measured(name, threads, precision) for name in models.split(",")]
    for result in results:
        console.print(roofs_table(result.roofs[:most], result.limits))
    if document:
        fill(document, "rooflines", _document(results, most))


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
    return Result(name, threads, middle, levels, rooflines(times, middle, levels))


def _document(results: list[Result], most: int) -> str:
    columns = ["kernel", "limit", "uses", "µs in all", "share %", "GFLOP/s", "% of peak", "GB/s"]
    parts = [circumstances()]
    for result in results:
        rows = [
            [
                f"`{r.kernel}`",
                f"{r.limit} {100 * r.limit_share:.0f} %",
                str(r.uses),
                f"{r.microseconds:.0f}",
                f"{100 * r.share:.1f}",
                f"{r.gflops:.0f}",
                f"{100 * r.peak_share:.0f}",
                f"{r.gbps:.0f}",
            ]
            for r in result.roofs[:most]
        ]
        parts += [f"{result.limits}.", markdown(columns, rows, numbers=2)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    typer.run(main)
