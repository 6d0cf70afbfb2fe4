"""Times compilation: cold and from the disk cache, with and without the trace, and as graphs grow.

    python benchmarks/compile_time.py --models light_resnet50,bert_base --rounds 3

Every compilation runs in its own process. "cold" has an empty cache folder, "warm" the folder
filled by the cold one. Load (reading the file, building the graph) and compile are added up;
importing clew is shown separately. The cost of the trace is the difference between alternating cold
compilations with and without it, in processor time of clew's own code: the operating system's time
for fresh memory varies by half a second between processes.
"""

import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import onnx
import typer
from rich.table import Table

import zoo
from harness.child import run_child
from harness.report import console, progress
from zoo import handmade


@dataclass(frozen=True)
class Timing:
    """Medians of one model, in seconds; `trace_cost` is a share of processor time without it."""

    model: str
    import_s: float
    cold_s: float
    warm_s: float
    untraced_cold_s: float
    trace_cost: float


def compile_once(path: Path, cache: Path, trace: bool) -> dict[str, float]:
    """Returns {import_s, load_s, compile_s, user_s} of a new process with this cache folder."""
    spans: dict[str, float] = run_child(
        "compile_child", str(path), str(int(trace)), environment={"CLEW_CACHE_DIR": str(cache)}
    )
    return spans


def measure(name: str, path: Path, rounds: int) -> Timing:
    """Returns the timing of the model at `path`; runs with and without trace alternate."""
    cold: dict[bool, list[float]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}
    warm, imports = [], []
    for turn in range(rounds):
        progress.print(f"{name}, round {turn + 1} of {rounds}")
        for trace in (turn % 2 == 0, turn % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                spans = compile_once(path, Path(folder), trace)
                cold[trace].append(spans["load_s"] + spans["compile_s"])
                used[trace].append(spans["user_s"])
                imports.append(spans["import_s"])
                if trace:
                    again = compile_once(path, Path(folder), trace)
                    warm.append(again["load_s"] + again["compile_s"])
    traced, untraced = statistics.median(cold[True]), statistics.median(cold[False])
    return Timing(
        model=name,
        import_s=statistics.median(imports),
        cold_s=traced,
        warm_s=statistics.median(warm),
        untraced_cold_s=untraced,
        trace_cost=statistics.median(used[True]) / statistics.median(used[False]) - 1,
    )


def main(
    models: Annotated[
        str, typer.Option(help="Names of the zoo's models.")
    ] = "light_resnet50,bert_base",
    chains: Annotated[str, typer.Option(help="Lengths of generated chains.")] = "1000,10000",
    rounds: Annotated[int, typer.Option(help="Compilations of each kind.", min=1)] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints compile times of models and chains, and how the time grows with the chain."""
    timings = [measure(name, zoo.path(name), rounds) for name in models.split(",") if name]
    lengths = [int(word) for word in chains.split(",") if word]
    grown: list[Timing] = []
    for length in lengths:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chain.onnx"
            onnx.save(handmade.chain(length), path)
            grown.append(measure(f"chain of {length}", path, rounds))
    table = Table(title="compile time, medians", title_justify="left")
    table.add_column("model")
    for header in ("cold s", "warm s", "cold s, no trace", "trace costs", "import s"):
        table.add_column(header, justify="right")
    for timing in timings + grown:
        table.add_row(
            timing.model,
            f"{timing.cold_s:.2f}",
            f"{timing.warm_s:.2f}",
            f"{timing.untraced_cold_s:.2f}",
            f"{100 * timing.trace_cost:+.1f} %",
            f"{timing.import_s:.2f}",
        )
    console.print(table)
    for shorter, longer in pairwise(grown):
        growth = longer.cold_s / shorter.cold_s
        console.print(f"{shorter.model} → {longer.model}: {growth:.1f} × the time")
    if json_file:
        json_file.write_text(json.dumps([asdict(t) for t in timings + grown], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
