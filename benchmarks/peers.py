"""Times clew against onnxruntime, openvino and torch.compile, interleaved in one run.

    python benchmarks/peers.py --models light_resnet50,bert_base --threads 1,2 --json out.json

For each model and thread count all engines load the same weights and take turns; the table shows
the median call, how its time compares with the first engine's, the rate, its share of the FMA peak
that was measured in the same turns, and how far the outputs lie from ONNX Runtime's. FLOPs are
those of Conv, Gemm and MatMul. The exit code is 1 when an engine failed or outputs disagree.
"""

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import zoo
from harness.engines import Engine, Feed, Outputs, Runner, engines
from harness.flops import model_flops
from harness.interleave import interleaved_ns, median_ms
from harness.peak import FmaPeak
from harness.report import console, progress

DEFAULT_MODELS = (
    "light_resnet50,mobilenet_v2,resnet18,convnext_tiny,vit_base,bert_base,gpt2,llama_small"
)
REFERENCE = "onnxruntime"


@dataclass(frozen=True)
class Row:
    """One engine on one model. `failure` says why there are no figures."""

    model: str
    threads: int
    engine: str
    gflop: float
    failure: str = ""
    median_ms: float = 0.0
    best_ms: float = 0.0
    calls: int = 0
    over_first: float = 0.0  # its median ÷ the first engine's
    gflops: float = 0.0
    peak_share: float = 0.0
    error: float = 0.0  # max |difference| ÷ max |reference|, the worst output


def main(
    models: Annotated[str, typer.Option(help="Names or groups of the zoo.")] = DEFAULT_MODELS,
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    rounds: Annotated[int, typer.Option(help="Turns of each engine.", min=1)] = 10,
    only: Annotated[
        str, typer.Option("--engines", help="Engines, the first is compared with.")
    ] = "clew,onnxruntime,openvino,torch",
    tolerance: Annotated[float, typer.Option(help="Largest accepted relative error.")] = 1e-3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows to this file.")
    ] = None,
) -> None:
    """Times clew and its peers on models of the zoo and prints one table per thread count."""
    known = engines()
    chosen = [known[name] for name in _choices(only, list(known), "engine")]
    present = [engine for engine in chosen if engine.installed]
    for engine in chosen:
        if engine not in present:
            progress.print(f"{engine.name} is not installed and left out")
    names = [name for word in models.split(",") for name in _models(word)]
    peak = FmaPeak()
    rows: list[Row] = []
    for count in [int(word) for word in threads.split(",")]:
        peaks: list[float] = []
        batch: list[Row] = []
        for name in names:
            progress.print(f"{name}, {count} thread{'s' * (count > 1)}")
            batch += measure(name, count, present, rounds, peak, peaks)
        console.print(_table(batch, count, peaks, tolerance))
        rows += batch
    if json_file:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if any(row.failure or row.error > tolerance for row in rows):
        raise typer.Exit(1)


def _choices(text: str, known: list[str], kind: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"no {kind} {word!r}; there are {', '.join(known)}")
    return words


def _models(word: str) -> list[str]:
    """Returns the models that a word of `--models` means: one name or a whole group."""
    if word in zoo.groups():
        return zoo.names(word)
    return _choices(word, zoo.names(), "model")


def measure(
    name: str, threads: int, chosen: list[Engine], rounds: int, peak: FmaPeak, peaks: list[float]
) -> list[Row]:
    """Returns a row per engine; appends each round's FMA peak (GFLOP/s) to `peaks`."""
    feed = zoo.inputs(name)
    flops = model_flops(zoo.path(name))
    serving = [e for e in chosen if e.from_onnx or name in zoo.names("exported")]
    runners, failures = _prepare(zoo.path(name), feed, threads, serving)
    outputs: dict[str, Outputs] = {engine: runners[engine]() for engine in runners}
    reference = outputs.get(REFERENCE) or next(iter(outputs.values()), [])
    errors = {engine: _error(values, reference) for engine, values in outputs.items()}
    of_this_model: list[float] = []
    times = interleaved_ns(
        runners, rounds, on_round=lambda: of_this_model.append(peak.gflops(threads))
    )
    peaks += of_this_model
    rows = [
        Row(name, threads, engine, flops / 1e9, failure=text) for engine, text in failures.items()
    ]
    first = next(iter(times), "")
    for engine, spans in times.items():
        rate = flops / median_ms(spans) / 1e6
        rows.append(
            Row(
                name,
                threads,
                engine,
                flops / 1e9,
                median_ms=median_ms(spans),
                best_ms=min(spans) / 1e6,
                calls=len(spans),
                over_first=median_ms(spans) / median_ms(times[first]),
                gflops=rate,
                peak_share=rate / statistics.median(of_this_model),
                error=errors[engine],
            )
        )
    return rows


def _prepare(
    path: Path, feed: Feed, threads: int, chosen: list[Engine]
) -> tuple[dict[str, Runner], dict[str, str]]:
    """Returns runners that ran once, and for the others the first line of what went wrong."""
    runners: dict[str, Runner] = {}
    failures: dict[str, str] = {}
    for engine in chosen:
        try:
            runner = engine.prepare(path, feed, threads)
            runner()
        except Exception as failure:  # whatever one engine raises must not end the comparison
            failures[engine.name] = f"{type(failure).__name__}: {failure}".splitlines()[0]
        else:
            runners[engine.name] = runner
    return runners, failures


def _error(values: Outputs, reference: Outputs) -> float:
    """Returns the worst output's max |difference| ÷ max |reference|; infinite if shapes differ."""
    if [value.shape for value in values] != [value.shape for value in reference]:
        return float("inf")
    return max(
        float(np.abs(value - true).max() / max(np.abs(true).max(), 1e-30))
        for value, true in zip(values, reference, strict=True)
    )


def _table(rows: list[Row], threads: int, peaks: list[float], tolerance: float) -> Table:
    measured = (
        f"FMA peak {statistics.median(peaks):.0f} GFLOP/s (median; best {max(peaks):.0f})"
        if peaks
        else ""
    )
    table = Table(title=f"{threads} thread{'s' * (threads > 1)}, {measured}", title_justify="left")
    table.add_column("model")
    table.add_column("engine")
    for header in ("median ms", "best ms", "× first", "GFLOP/s", "% of peak", "error"):
        table.add_column(header, justify="right")
    previous = ""
    for row in rows:
        if row.model != previous and previous:
            table.add_section()
        label = f"{row.model} ({row.gflop:.2f} GFLOP)" if row.model != previous else ""
        previous = row.model
        if row.failure:
            table.add_row(label, row.engine, f"[red]{row.failure[:60]}")
            continue
        table.add_row(
            label,
            row.engine,
            f"{row.median_ms:.3f}",
            f"{row.best_ms:.3f}",
            f"{row.over_first:.2f}",
            f"{row.gflops:.0f}",
            f"{100 * row.peak_share:.0f}",
            f"[red]{row.error:.1e}" if row.error > tolerance else f"{row.error:.1e}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
