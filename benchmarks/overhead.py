"""Times calls of models with very little to compute: the overhead of a call.

    python benchmarks/overhead.py

The models are chains of one and of eight operators on 64 floats, about ten nanoseconds each.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from rich.table import Table

from clew.bench.measure import in_turn
from clew.profile.interleave import interleaved_ns
from harness.engines import engines
from harness.report import console
from zoo import handmade


def main(
    only: Annotated[str, typer.Option("--engines", help="Engines.")] = "clew,onnxruntime,openvino",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Turns of each engine.", min=1)] = 10,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints the median and the best call of each engine, in microseconds."""
    known = engines()
    table = Table(title="call of a tiny model, µs", title_justify="left")
    table.add_column("operators", justify="right")
    table.add_column("engine")
    table.add_column("median", justify="right")
    table.add_column("best", justify="right")
    rows = []
    for length in (1, 8):
        line = np.linspace(-1, 1, 64, dtype=np.float32)[None]
        feeds = [{"x": line * sign} for sign in (1, -1, 2)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "chain.onnx"
            onnx.save(handmade.chain(length), path)
            runners = {
                name: in_turn(known[name].prepare(path, threads, "f32"), feeds)
                for name in only.split(",")
            }
            times = interleaved_ns(runners, rounds, min_turn_s=0.02)
        for name, spans in times.items():
            median, best = statistics.median(spans) / 1e3, min(spans) / 1e3
            table.add_row(str(length), name, f"{median:.1f}", f"{best:.1f}")
            rows.append({"operators": length, "engine": name, "median_us": median, "best_us": best})
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
