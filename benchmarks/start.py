"""Times the start of models: from clew's cache next to ONNX Runtime, and cold.

    python benchmarks/start.py --rounds 5
    python benchmarks/start.py --models light_resnet50,bert_base --threads 2
    python benchmarks/start.py --models light_resnet50 --cold --chains 1000,10000

Every start is a new process: it imports NumPy and the engine, loads the model, and calls it once.
clew's cache holds the model; the files are in the page cache. The engines take turns. Times are
medians, in milliseconds, without the start of Python: of the wall clock, and of processor time,
which a loaded machine disturbs less. `import`, `load` and `call` are processor times of clew.

With `--cold`, clew also starts with an empty cache, with and without its trace in turns, for the
models and for generated chains of operators. `benchmarks/compile_stages.py` says where the time of
such a start goes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.table import Table

import zoo
from harness.report import circumstances, console, progress
from zoo import handmade

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


def _total(runs: Sequence[Any], clock: int) -> float:
    """Returns the median time of starts by one of the clocks, in milliseconds."""
    totals = [sum(step[clock] for step in run["steps"].values()) for run in runs]
    return float(1e3 * statistics.median(totals))


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
    steps = {
        step: 1e3 * statistics.median(run["steps"][step][1] for run in runs["clew"])
        for step in ("numpy", "library", "load", "call")
    }
    return Start(
        name,
        path.stat().st_size,
        {engine: _total(runs[engine], 0) for engine in ENGINES},
        {engine: _total(runs[engine], 1) for engine in ENGINES},
        steps,
        all(run["from_cache"] for run in runs["clew"]),
    )


@dataclass(frozen=True)
class ColdStart:
    """Medians of one model, in milliseconds, with the trace (`clew`) and without (`untraced`)."""

    model: str
    wall: dict[str, float]
    processor: dict[str, float]


def measure_cold(
    name: str, path: Path, inputs: Mapping[str, Any], rounds: int, threads: int
) -> ColdStart:
    """Returns the times of a model that is in no cache."""
    kinds = ("clew", "untraced")
    runs: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        for kind in kinds if turn % 2 else kinds[::-1]:
            with tempfile.TemporaryDirectory() as folder:
                given = Path(folder) / "inputs.npz"
                np.savez(given, **inputs)
                runs[kind].append(start_once(kind, path, given, threads, Path(folder)))
    by_clock = [{kind: _total(runs[kind], clock) for kind in kinds} for clock in (0, 1)]
    return ColdStart(name, *by_clock)


def measure_chains(lengths: Sequence[int], rounds: int, threads: int) -> list[ColdStart]:
    """Returns the times of generated chains of so many operators."""
    found = []
    for length in lengths:
        progress.print(f"chain of {length}")
        with tempfile.TemporaryDirectory() as folder:
            path, width = Path(folder) / "chain.onnx", 64
            onnx.save(handmade.chain(length, width), path)
            inputs = {"x": np.linspace(-1, 1, width, dtype=np.float32).reshape(1, width)}
            found.append(measure_cold(f"chain of {length}", path, inputs, rounds, threads))
    return found


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


def cold_table(starts: Sequence[ColdStart]) -> Table:
    """Returns the table of the times with an empty cache."""
    made = Table(title="Start with an empty cache, in milliseconds")
    made.add_column("model")
    for column in ("wall", "CPU", "CPU without trace", "cost of the trace"):
        made.add_column(column, justify="right")
    for each in starts:
        traced, untraced = each.processor["clew"], each.processor["untraced"]
        cells = [f"{ms:.0f}" for ms in (each.wall["clew"], traced, untraced)]
        made.add_row(each.model, *cells, f"{100 * (traced / untraced - 1):+.1f} %")
    return made


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = MODELS,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    cold: Annotated[bool, typer.Option(help="Also start with an empty cache.")] = False,
    chains: Annotated[str, typer.Option(help="Lengths of chains to start cold.")] = "",
    results: Annotated[Path | None, typer.Option(help="File for the times, as JSON.")] = None,
) -> None:
    """Prints tables, model by model."""
    found, names = [], models.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            progress.print(name)
            found.append(measure(name, rounds, threads, Path(folder)))
    console.print(table(found))
    ratios = [each.processor["clew"] / each.processor["onnxruntime"] for each in found]
    numpy_ms = statistics.median(each.steps["numpy"] for each in found)
    console.print(
        f"Median ratio of processor time: {statistics.median(ratios):.2f}; NumPy alone takes "
        f"{numpy_ms:.0f} ms of each start."
    )
    models_cold = [
        measure_cold(name, zoo.path(name), zoo.inputs(name), rounds, threads)
        for name in (names if cold else ())
    ]
    chains_cold = measure_chains([int(n) for n in chains.split(",") if n], rounds, threads)
    if models_cold or chains_cold:
        console.print(cold_table([*models_cold, *chains_cold]))
    for shorter, longer in pairwise(chains_cold):
        growth = longer.wall["clew"] / shorter.wall["clew"]
        console.print(f"{shorter.model} → {longer.model}: {growth:.1f} × the time")
    console.print(circumstances())
    if results is not None:
        every: list[Start | ColdStart] = [*found, *models_cold, *chains_cold]
        results.write_text(json.dumps([asdict(each) for each in every], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
