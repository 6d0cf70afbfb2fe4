"""Lists where the processor time of a cold compilation goes: by stage, pass, kernel and LLVM step.

    python benchmarks/compile_stages.py --models resnet18,bert_base
    python benchmarks/compile_stages.py --models detector_free --free
    python benchmarks/compile_stages.py --models mobilenet_v2 --against ../other/src

Every compilation runs in its own process with an empty cache folder. Times are processor time, so a
loaded machine changes them less than wall time; `workers` is that of the compile workers, which run
beside everything else. With `--against`, the same is done with the sources of another tree, in
turns, and its figures stand next to this tree's. All kernels are lowered in the main process.
"LLVM" is measured again in one process, step by step.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import zoo
from harness.child import run_child
from harness.report import console, progress

_SOURCE = Path(__file__).parents[1] / "src"


def stages_of(path: Path, inputs: Mapping[str, np.ndarray], free: bool, source: Path) -> Any:
    """Returns what `harness.stages_child` reports of a model with the package in `source`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "inputs.npz"
        np.savez(file, **inputs)  # type: ignore[arg-type]
        environment = {
            "CLEW_CACHE_DIR": str(Path(folder) / "cache"),
            "PYTHONPATH": f"{source}:{Path(__file__).parents[1] / 'tools'}",
            "CLEW_COMPILE_JOBS": "1",  # so that this process lowers every kernel
        }
        return run_child(
            "stages_child", str(path), str(file), str(int(free)), environment=environment
        )


def main(
    models: Annotated[str, typer.Option(help="Names of the zoo's models.")] = "resnet18",
    file: Annotated[Path | None, typer.Option(help="An ONNX file instead.")] = None,
    inputs: Annotated[Path | None, typer.Option(help="Its inputs, as .npz.")] = None,
    free: Annotated[bool, typer.Option(help="Leave free sizes free.")] = False,
    against: Annotated[Path | None, typer.Option(help="Sources of another tree.")] = None,
    rounds: Annotated[int, typer.Option(help="Compilations of each tree.", min=1)] = 3,
    kernels: Annotated[int, typer.Option(help="Kernels and passes to list.", min=0)] = 8,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints the processor time of the stages of cold compilations."""
    trees = [_SOURCE.resolve(), *([against.resolve()] if against else [])]
    if file is not None:
        values = dict(np.load(inputs)) if inputs else {}
        chosen = {file.stem: (file, values)}
    else:
        chosen = {name: (zoo.path(name), zoo.inputs(name)) for name in models.split(",")}
    found: dict[str, Any] = {}
    for name, (path, values) in chosen.items():
        runs: list[list[Any]] = [[] for _ in trees]
        for turn in range(rounds):
            progress.print(f"{name}, round {turn + 1} of {rounds}")
            for made, tree in zip(runs, trees, strict=True):
                made.append(stages_of(path, values, free, tree))
        found[name] = runs
        _print(name, runs, kernels)
    if json_file:
        json_file.write_text(json.dumps(found, indent=1) + "\n")


def _print(name: str, runs: list[list[Any]], most: int) -> None:
    """Prints the medians of one model: of this tree and, if there is one, of the other."""
    table = Table(title=f"{name}: processor time", title_justify="left")
    table.add_column("stage")
    for header in ("s", "other tree s")[: len(runs)]:
        table.add_column(header, justify="right")
    for kind, total in (("stages", True), ("passes", False), ("llvm", False)):
        rows = [{k: _median(made, kind, k) for k in made[0][kind]} for made in runs]
        keys = sorted(rows[0], key=lambda k: -rows[0][k])
        keys = keys[:most] if kind == "passes" else keys
        for key in keys:
            label = key if kind == "stages" else f"  {kind}: {key}"
            table.add_row(label, *(f"{row.get(key, 0.0):.3f}" for row in rows))
        if total:
            table.add_row("total", *(f"{sum(row.values()):.3f}" for row in rows))
    peaks = [statistics.median(m["peak_bytes"] for m in made) / (1 << 20) for made in runs]
    table.add_row("peak memory, MiB", *(f"{peak:.0f}" for peak in peaks))
    console.print(table)
    listed = Table(title="slowest kernels", title_justify="left")
    for header in ("kernel", "lowering s", "schedules s", "emission s"):
        listed.add_column(header, justify="left" if header == "kernel" else "right")
    stages = ("lowering", "schedules", "emission")
    slowest = sorted(runs[0][-1]["kernels"], key=lambda k: -sum(k[s] for s in stages))
    for kernel in slowest[:most]:
        listed.add_row(kernel["kernel"], *(f"{kernel[s]:.3f}" for s in stages))
    console.print(listed)


def _median(made: list[Any], kind: str, key: str) -> float:
    return float(statistics.median(one[kind].get(key, 0.0) for one in made))


if __name__ == "__main__":
    typer.run(main)
