"""Measures models with free sizes at sizes drawn at random, beside static builds and ONNX Runtime.

    python benchmarks/sizes.py --model encoder_free --count 200 --static 10 --warm 2

Each model runs in a process of its own, whose cache is empty at first. There, clew runs alone at
all sizes: builds, the first call and later ones, memory. Then clew and ONNX Runtime run in turns at
each size, at some sizes beside a static build too, with new values on every call, and their outputs
are compared. With `--warm N`, N more processes with the same cache run clew alone again. A process
has only one first call at each size, which a shared machine may slow down, so the limit applies to
the median over all processes.

The limits are those of one build for all sizes. The script exits with 1 if outputs differ or a size
fails, whatever the times.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

import zoo
from harness.free_sizes import TOLERANCE, AtSize, Dims, Served, drawn, ranges_of, spread, summary
from harness.report import circumstances, console, progress

DEFAULT_MODELS: Final = tuple(zoo.names("free"))
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Result:
    """The figures of one model: of its first process, and of those with a warm cache."""

    model: str
    threads: int
    cold: Served
    warm: list[Served]

    @property
    def is_wrong(self) -> bool:
        """Whether a size failed, or outputs disagree."""
        return any(at.is_wrong for each in (self.cold, *self.warm) for at in each.sizes)

    @property
    def first_ratios(self) -> list[tuple[Dims, float | None]]:
        """The median of (first call − 2 ms) ÷ again over all processes, at each size."""
        found = []
        for sizes in zip(self.cold.sizes, *(w.sizes for w in self.warm), strict=True):
            known = [at.first_ratio for at in sizes if at.first_ratio is not None]
            found.append((sizes[0].dims, statistics.median(known) if known else None))
        return found


def main(
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="One of the zoo's models; repeat for several."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Sizes of each model.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sizes and inputs.")] = 0,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    static: Annotated[
        int, typer.Option(min=0, help="Sizes that are also compiled and timed as static builds.")
    ] = 10,
    warm: Annotated[
        int, typer.Option(min=0, help="More processes, with a warm cache, that run clew alone.")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints the figures at each size, and a summary of each model."""
    names = models or DEFAULT_MODELS
    for name in names:
        if name not in zoo.names() or not zoo.dims(name):
            free = ", ".join(each for each in zoo.names() if zoo.dims(each))
            raise typer.BadParameter(f"no model {name!r} with free sizes; known: {free}")
    results = []
    for name in names:
        results.append(measured(name, count, seed, threads, static, warm))
        console.print(sizes_table(results[-1]))
        if json_file:  # after each model, so an interrupted run loses little
            made = {"circumstances": circumstances(), "models": [asdict(r) for r in results]}
            json_file.write_text(json.dumps(made, indent=1) + "\n")
    console.print(summary_table(results))
    if any(result.is_wrong for result in results):
        raise typer.Exit(1)


def measured(name: str, count: int, seed: int, threads: int, static: int, warm: int) -> Result:
    """Returns a model's figures, measured in new processes, `warm` of them with a warm cache."""
    zoo.path(name)  # built here, so that no child imports the exporters
    sizes = drawn(ranges_of(name), count, seed)
    job = {"model": name, "sizes": sizes, "seed": seed, "threads": threads}
    with tempfile.TemporaryDirectory() as cache:
        cold = _child({**job, "static": spread(sizes, static), "peer": True}, Path(cache))
        alone = {**job, "static": [], "peer": False}
        again = [_child(alone, Path(cache)) for _ in range(warm)]
    return Result(name, threads, cold, again)


def _child(job: Mapping[str, Any], cache: Path) -> Served:
    done = subprocess.run(
        [sys.executable, "-m", "harness.sizes_child", json.dumps(job)],
        cwd=Path(__file__).parent,
        env={**os.environ, "CLEW_CACHE_DIR": str(cache)},
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        progress.print(f"{job['model']}: the process ended with {done.returncode}")
        raise typer.Exit(1)
    return Served.of(json.loads(done.stdout))


# ------------------------------------------------------------------------------------------ tables


def _size(dims: Dims) -> str:
    return " × ".join(map(str, dims.values()))


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


_COLUMNS: Final[Mapping[str, Callable[[AtSize], str]]] = {
    "builds": lambda at: str(at.builds),
    "first ms": lambda at: _ms(at.first_s),
    "again ms": lambda at: _ms(at.again_s),
    "first": lambda at: _ratio(at.first_ratio),
    "free ms": lambda at: _ms(at.free_s),
    "ORT ms": lambda at: _ms(at.peer_s),
    "ORT ÷ free": lambda at: _ratio(at.peer_ratio),
    "static ms": lambda at: _ms(at.static_s),
    "static ÷ free": lambda at: _ratio(at.static_ratio),
    "MiB": lambda at: f"{at.after_bytes / _MIB:.0f}",
}


def sizes_table(result: Result) -> Table:
    """Returns the table of all sizes, in the order they ran."""
    dims = " × ".join(result.cold.sizes[0].dims)
    caption = "first: (first call − 2 ms) ÷ again; MiB: memory of the process afterwards"
    title = f"{result.model}, threads: {result.threads}"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column(dims, justify="right")
    for header in (*_COLUMNS, "error"):
        table.add_column(header, justify="right")
    for at in result.cold.sizes:
        cells = [cell(at) for cell in _COLUMNS.values()]
        error = "" if at.error is None else f"{at.error:.0e}"
        rows = f"{at.unmatched} of {at.rows} rows" if at.unmatched else ""
        told = Text(at.failure[:60] or rows or error, style="red" if at.is_wrong else "")
        table.add_row(_size(at.dims), *cells, told)
    return table


@dataclass(frozen=True)
class Line:
    """One line of the summary; `met` is None for a figure without a limit."""

    figure: str
    value: str
    worst: str = ""
    limit: str = ""
    met: bool | None = None


def summary_table(results: Sequence[Result]) -> Table:
    """Returns the summary of all models."""
    table = Table(title="over all sizes", title_justify="left")
    table.add_column("model")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("worst, and its size")
    table.add_column("limit")
    table.add_column("met")
    for result in results:
        label = result.model
        for line in lines(result):
            met = {None: "", True: "yes", False: "[red]no"}[line.met]
            table.add_row(label, line.figure, line.value, line.worst, line.limit, met)
            label = ""
        table.add_section()
    return table


def lines(result: Result) -> Iterator[Line]:
    """Yields the lines of a model's summary."""
    cold, sizes = result.cold, result.cold.sizes
    failed = [at for at in sizes if at.failure]
    where = f"{failed[0].failure[:60]} ({_size(failed[0].dims)})" if failed else ""
    yield Line("sizes that failed", f"{len(failed)} of {len(sizes)}", where, "0", not failed)
    yield Line("builds", str(cold.builds), "", "1", cold.builds <= 1)
    yield from _first(result)
    yield from _spread("static ÷ free", sizes, lambda at: at.static_ratio, 1 / 1.1, 1 / 1.25)
    yield from _spread("ORT ÷ free", sizes, lambda at: at.peer_ratio, 1.3, None)
    yield from _agreement(sizes)
    yield _memory(cold)
    yield Line("compile and first call", _starting(cold))
    for served in result.warm[:1]:
        yield Line("in a second process", _starting(served))


def _spread(
    figure: str,
    sizes: Sequence[AtSize],
    value: Callable[[AtSize], float | None],
    mean: float,
    worst: float | None,
) -> Iterator[Line]:
    """Yields the line of a ratio that is better if higher, with the least mean and least worst."""
    found = summary(((at.dims, value(at)) for at in sizes), low=True)
    if found is None:
        return
    limit = f"mean ≥ {mean:.2f}" + (f", worst ≥ {worst:.2f}" if worst else "")
    met = found.mean >= mean and found.worst >= (worst or 0.0)
    yield Line(figure, _ratio(found.mean), f"{found.worst:.2f} ({_size(found.dims)})", limit, met)


def _first(result: Result) -> Iterator[Line]:
    found = summary(result.first_ratios, low=False)
    if found is None:
        return
    worst = f"{found.worst:.2f} ({_size(found.dims)})"
    figure = "(first call − 2 ms) ÷ again"
    if result.warm:
        figure += f", median of {1 + len(result.warm)} processes"
    yield Line(figure, _ratio(found.mean), worst, "worst ≤ 1.50", found.worst <= 1.5)
    over = sum((at.first_ratio or 0) > 1.5 for at in result.cold.sizes)
    if result.warm:
        yield Line("sizes above 1.5 in the first process", str(over))


def _agreement(sizes: Sequence[AtSize]) -> Iterator[Line]:
    found = summary(((at.dims, at.error) for at in sizes), low=False)
    if found is None:
        return
    worst, limit = f"{found.worst:.1e} ({_size(found.dims)})", f"≤ {TOLERANCE:.0e}"
    yield Line("error", f"{found.mean:.1e}", worst, limit, found.worst <= TOLERANCE)
    worst_at = max(sizes, key=lambda at: at.unmatched)
    if worst_at.unmatched:
        value, where = f"{worst_at.unmatched} of {worst_at.rows}", _size(worst_at.dims)
        yield Line("rows of one engine only", value, where, "≤ 2 %", not worst_at.is_wrong)


def _memory(served: Served) -> Line:
    """Returns the line of the process's growth: from the first size, and from the largest."""
    start, end = served.sizes[0].after_bytes / _MIB, served.sizes[-1].after_bytes / _MIB
    value = f"{100 * served.growth:+.0f} %"
    told = (
        f"{start:.0f} → {end:.0f} MiB; {100 * served.growth_after_largest:+.0f} % since the largest"
    )
    return Line("memory growth", value, told, "≤ 10 %", served.growth <= 0.1)


def _starting(served: Served) -> str:
    first = served.sizes[0].first_s
    return f"{served.compile_s:.2f} + {math.nan if first is None else first:.2f} s"


if __name__ == "__main__":
    typer.run(main)
