"""Compares the resident memory of clew and its peers, each in its own process.

    python benchmarks/memory.py --models light_resnet50,bert_base

"load" is the peak memory while the model is loaded and compiled, "run" while it runs afterwards,
both in addition to the memory after importing the engine; "whole" includes that. clew's compilation
is already in the disk cache, as on any start except the first.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import zoo
from harness.child import run_child
from harness.report import console, progress

_MIB = 1 << 20


def measure(engine: str, name: str, threads: int, cache: Path) -> dict[str, int]:
    """Returns bytes: {imported, loaded, load_peak, run_peak} of a new process."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, allow_pickle=False, **zoo.inputs(name))
        figures: dict[str, int] = run_child(
            "memory_child", engine, str(zoo.path(name)), str(inputs), str(threads),
            environment={"CLEW_CACHE_DIR": str(cache)},
        )  # fmt: skip
    return figures


def main(
    models: Annotated[
        str, typer.Option(help="Names of the zoo's models.")
    ] = "light_resnet50,bert_base",
    engines: Annotated[str, typer.Option(help="Engines; the first is the baseline.")] = (
        "onnxruntime,clew"
    ),
    threads: Annotated[int, typer.Option(min=1)] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints each engine's memory beyond its import, and its ratio to the first engine's."""
    table = Table(title="resident memory beyond the import, MiB", title_justify="left")
    table.add_column("model")
    table.add_column("engine")
    for header in ("import itself", "load", "run", "run × first", "whole × first"):
        table.add_column(header, justify="right")
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for name in models.split(","):
            first: dict[str, int] = {}
            for engine in engines.split(","):
                progress.print(f"{name}, {engine}")
                if engine == "clew":
                    measure(engine, name, threads, Path(cache))
                figures = measure(engine, name, threads, Path(cache))
                first = first or figures
                base = figures["imported"]
                running = figures["run_peak"] - base
                table.add_row(
                    name,
                    engine,
                    f"{base / _MIB:.0f}",
                    f"{(figures['load_peak'] - base) / _MIB:.0f}",
                    f"{running / _MIB:.0f}",
                    f"{running / (first['run_peak'] - first['imported']):.2f}",
                    f"{figures['run_peak'] / first['run_peak']:.2f}",
                )
                rows.append({"model": name, "engine": engine, "threads": threads, **figures})
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
