"""Times the start of models that are in clew's cache, next to ONNX Runtime.

    python benchmarks/start.py --rounds 5
    python benchmarks/start.py --models light_resnet50,bert_base --threads 2

Every start is a new process: it imports NumPy and the engine, loads the model, and calls it once.
clew's cache holds the model; the files are in the page cache. The engines take turns. Times are
medians, in milliseconds, without the start of Python: of the wall clock, and of processor time,
which a loaded machine disturbs less. `import`, `load` and `call` are processor times of clew.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import zoo
from harness.report import circumstances, console, progress

ENGINES = ("clew", "onnxruntime")
MODELS = (
    "light_resnet50,light_squeezenet,light_shufflenet,mobilenet_tiny,resnet_tiny,convnext_micro,"
    "vit_tiny,keyword_spotting,bert_tiny,bert_tiny_dynamic,gpt2_tiny,llama_tiny,if_branches,"
    "loop_recurrence,encoder_small,encoder_small_free,qdq_light_resnet50,qdq_mobilenet_tiny,"
    "qdq_vit_tiny,dynamic_bert_tiny"
)


@dataclass(frozen=True)
class Start:
    """Medians of one model, in milliseconds; `steps` are processor times of clew."""

    model: str
    bytes: int
    wall: dict[str, float]
    processor: dict[str, float]
    steps: dict[str, float]
    from_cache: bool


def start_once(engine: str, path: Path, inputs: Path, threads: int, cache: Path) -> Any:
    """Returns what a new process prints (`harness/start_child.py`)."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", "harness.start_child", engine, path, inputs, str(threads)],
        cwd=Path(__file__).parent,
        env={**environment, "CLEW_CACHE_DIR": str(cache)},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def measure(name: str, rounds: int, threads: int, cache: Path) -> Start:
    """Returns the times of a model."""
    path, inputs = zoo.path(name), cache / f"{name}.npz"
    np.savez(inputs, **zoo.inputs(name))  # type: ignore[arg-type]
    runs: dict[str, list[Any]] = {engine: [] for engine in ENGINES}
    for engine in ENGINES:
        start_once(engine, path, inputs, threads, cache)  # fills the caches
    for turn in range(rounds):
        for engine in ENGINES if turn % 2 else ENGINES[::-1]:
            runs[engine].append(start_once(engine, path, inputs, threads, cache))

    def total(engine: str, clock: int) -> float:
        totals = [sum(step[clock] for step in run["steps"].values()) for run in runs[engine]]
        return float(1e3 * statistics.median(totals))

    steps = {
        step: 1e3 * statistics.median(run["steps"][step][1] for run in runs["clew"])
        for step in ("numpy", "library", "load", "call")
    }
    return Start(
        name,
        path.stat().st_size,
        {engine: total(engine, 0) for engine in ENGINES},
        {engine: total(engine, 1) for engine in ENGINES},
        steps,
        all(run["from_cache"] for run in runs["clew"]),
    )


def table(starts: Sequence[Start]) -> Table:
    """Returns the table of the times."""
    made = Table(title="Start in a new process, in milliseconds")
    made.add_column("model")
    for column in (
        "MB", "wall: clew", "ORT", "ratio", "CPU: clew", "ORT", "ratio", "import", "load", "call",
    ):  # fmt: skip
        made.add_column(column, justify="right")
    for each in starts:
        cells = [f"{each.bytes / 1e6:.1f}"]
        for times in (each.wall, each.processor):
            ours, theirs = (times[engine] for engine in ENGINES)
            cells += [f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.2f}"]
        cells += [f"{each.steps[step]:.0f}" for step in ("library", "load", "call")]
        made.add_row(each.model + ("" if each.from_cache else " (not stored)"), *cells)
    return made


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = MODELS,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    results: Annotated[Path | None, typer.Option(help="File for the times, as JSON.")] = None,
) -> None:
    """Prints a table, model by model."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in models.split(","):
            progress.print(name)
            found.append(measure(name, rounds, threads, Path(folder)))
    console.print(table(found))
    ratios = [each.processor["clew"] / each.processor["onnxruntime"] for each in found]
    numpy_ms = statistics.median(each.steps["numpy"] for each in found)
    console.print(
        f"Median ratio of processor time: {statistics.median(ratios):.2f}; NumPy alone takes "
        f"{numpy_ms:.0f} ms of each start."
    )
    console.print(circumstances())
    if results is not None:
        results.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
