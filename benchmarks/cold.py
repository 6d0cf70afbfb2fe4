"""Times `clew.compile` and the first call in a new process with an empty cache.

    python benchmarks/cold.py --models light_squeezenet,bert_tiny --rounds 3
    python benchmarks/cold.py --against ../other/src

Times are medians in seconds. `main` is the processor time of the user's process, `workers` that of
the others; a loaded machine changes these less than `wall`. On two idle cores, the wall time is
close to the larger of `main` and half of the sum. With `--against`, the sources of another tree are
timed in turns. `benchmarks/compile_stages.py` says where the time of one model goes.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import zoo
from harness.child import run_child
from harness.report import circumstances, console, progress
from start import MODELS

_BENCHMARKS = Path(__file__).parent
_TOOLS = _BENCHMARKS.parent / "tools"


def once(path: Path, inputs: Path, threads: int, source: Path) -> dict[str, float]:
    """Returns what a new process takes with the package in `source`."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"CLEW_CACHE_DIR": cache, "PYTHONPATH": f"{source}:{_TOOLS}"}
        spent: dict[str, float] = run_child(
            "cold_child", str(path), str(inputs), str(threads), environment=environment
        )
        return spent


def measure(name: str, trees: list[Path], rounds: int, threads: int) -> list[dict[str, float]]:
    """Returns the medians of one model, for each tree."""
    runs: list[list[dict[str, float]]] = [[] for _ in trees]
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **zoo.inputs(name))  # type: ignore[arg-type]
        for _ in range(rounds):
            for made, tree in zip(runs, trees, strict=True):
                made.append(once(zoo.path(name), inputs, threads, tree))
    medians = [{k: statistics.median(run[k] for run in made) for k in made[0]} for made in runs]
    for row in medians:
        row["main_s"] = row["import_s"] + row["compile_s"] + row["call_s"]
        row["sum_s"] = row["main_s"] + row["workers_s"]
    return medians


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = MODELS,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    against: Annotated[Path | None, typer.Option(help="Sources of another tree.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints a table, model by model: figures of the other tree, if there is one, and of this."""
    trees = [*([against.resolve()] if against else []), (_BENCHMARKS.parent / "src").resolve()]
    found: dict[str, list[dict[str, float]]] = {}
    for name in models.split(","):
        progress.print(name)
        found[name] = measure(name, trees, rounds, threads)
    columns = ("wall_s", "main_s", "import_s", "compile_s", "call_s", "workers_s", "sum_s")
    table = Table(title="cold compilation and first call, in seconds", title_justify="left")
    table.add_column("model")
    for column in (*(name.removesuffix("_s") for name in columns), "workers", "peak MiB"):
        table.add_column(column, justify="right")
    rows: dict[str, list[dict[str, Any]]] = dict(found)
    for label, of in (("median", statistics.median), ("worst", max)):
        each = [[made[tree] for made in found.values()] for tree in range(len(trees))]
        rows[label] = [{k: of(row[k] for row in made) for k in made[0]} for made in each]
    for name, made in rows.items():
        cells = [" → ".join(f"{row[column]:.2f}" for row in made) for column in columns]
        cells.append(" → ".join(f"{row['workers']:.0f}" for row in made))
        cells.append(" → ".join(f"{row['peak_bytes'] / (1 << 20):.0f}" for row in made))
        table.add_row(name, *cells)
    console.print(table)
    console.print(circumstances())
    if json_file:
        json_file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
