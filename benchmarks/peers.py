"""Times clew against other engines, interleaved in one run.

    python benchmarks/peers.py --models light_resnet50,bert_base --threads 1,2 --json out.json
    python benchmarks/peers.py --engines clew,openvino,mnn,ncnn,tvm,torch,zentorch
    python benchmarks/peers.py --results peers-f32-amx

For each model and thread count, all engines load the same weights and run alternately. The table
shows the median call, its ratio to the first engine's, the rate, its share of the FMA peak measured
in the same turns, and the difference of the outputs from ONNX Runtime's. FLOPs are those of Conv,
Gemm and MatMul. The last table shows, for each model, the fastest peer's time divided by clew's,
with the geometric mean and the minimum of these ratios.

`--precision bf16` compares clew's bf16 with OpenVINO's own choice; ONNX Runtime stays at f32, and
errors are relative to it. The exit code is 1 if clew fails or an engine's outputs disagree.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import zoo
from clew.bench.engines import PRECISIONS
from clew.bench.measure import Figures, Measured, geometric_mean, measure
from clew.machine.probes.peak import FmaPeak
from harness import results as written
from harness.engines import Engine, engines
from harness.flops import model_flops
from harness.report import console, progress

DEFAULT_MODELS = (
    "light_resnet50,light_squeezenet,light_shufflenet,light_densenet121,light_inception_v1,"
    "light_inception_v2,light_vgg19,mobilenet_v2,vit_base,bert_base,gpt2,llama_small,"
    "convnext_tiny,keyword_spotting"
)
_TOLERANCES = {"f32": 1e-3, "bf16": 1e-1, "auto": 1e-1}
_FASTER = "clew"
# The number of inputs used in turn, so that results cached for one do not help another.
_FEEDS = 3


@dataclass(frozen=True)
class Result:
    """The measurements of one model at one thread count."""

    model: str
    threads: int
    gflop: float
    measured: Measured


def main(
    models: Annotated[str, typer.Option(help="Names or groups of the zoo.")] = DEFAULT_MODELS,
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    rounds: Annotated[int, typer.Option(help="Turns of each engine.", min=1)] = 10,
    only: Annotated[
        str, typer.Option("--engines", help="Engines; the first is the baseline.")
    ] = "clew,onnxruntime,openvino,torch",
    precision: Annotated[str, typer.Option(help=" or ".join(PRECISIONS))] = "f32",
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error; default 1e-3, or 0.1 if not f32.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
    subject: Annotated[
        str, typer.Option(help="What the results call the networks.")
    ] = "benchmark networks",
) -> None:
    """Times clew and its peers on models of the zoo and prints one table per thread count."""
    known = engines()
    chosen = [known[name] for name in _choices(only, list(known), "engine")]
    _choices(precision, list(PRECISIONS), "precision")
    for engine in chosen:
        if not engine.installed:
            progress.print(f"{engine.name} is not installed and is skipped: {engine.install}")
    present = [engine for engine in chosen if engine.installed]
    names = list(dict.fromkeys(name for word in models.split(",") for name in _models(word)))
    accepted = _TOLERANCES[precision] if tolerance is None else tolerance
    peak = FmaPeak()
    results: list[Result] = []
    for count in [int(word) for word in threads.split(",")]:
        batch: list[Result] = []
        for name in names:
            progress.print(f"{name}, {_threads(count)}")
            batch.append(measured(name, count, present, rounds, peak, precision))
        console.print(_table(batch, accepted))
        console.print(_leads_table(batch))
        results += batch
        if json_file:  # after each thread count, so an interrupted run loses little
            json_file.write_text(json.dumps(_rows(results, precision), indent=1) + "\n")
        if section:
            written.record(section, tables(results), subject=subject, precision=precision)
    if any(_is_wrong(f, accepted) for r in results for f in r.measured.figures):
        raise typer.Exit(1)


def _choices(text: str, known: list[str], kind: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise typer.BadParameter(f"no {kind} {word!r}; known: {', '.join(known)}")
    return words


def _models(word: str) -> list[str]:
    """Returns the models for a word of `--models`: a name, a group, or the default."""
    if word == "default":
        return DEFAULT_MODELS.split(",")
    if word in zoo.groups():
        return zoo.names(word)
    return _choices(word, zoo.names(), "model")


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def measured(
    name: str, threads: int, chosen: list[Engine], rounds: int, peak: FmaPeak, precision: str
) -> Result:
    """Returns the measurements of a model, including failures, which do not end the benchmark."""
    try:
        path, feeds = zoo.path(name), [zoo.inputs(name, seed) for seed in range(_FEEDS)]
        flops = model_flops(path)
    except Exception as failure:  # any exception of an exporter
        text = f"{type(failure).__name__}: {failure}".splitlines()[0]
        return Result(name, threads, 0.0, Measured((Figures("model", text),), ()))
    serving = [e for e in chosen if e.from_file or name in zoo.names("exported")]
    prepares = {e.name: partial(e.prepare, path, threads, precision) for e in serving}
    found = measure(prepares, flops, threads, rounds, peak, feeds)
    return Result(name, threads, flops / 1e9, found)


def _is_wrong(figures: Figures, accepted: float) -> bool:
    """Whether clew failed, or outputs disagree. A peer's failure does not count."""
    if figures.failure:
        return figures.engine in (_FASTER, "model")
    return figures.error > accepted


def _rows(results: Sequence[Result], precision: str) -> list[dict[str, object]]:
    """Returns a row per model, thread count and engine."""
    return [
        {
            "model": r.model,
            "threads": r.threads,
            "precision": precision,
            "gflop": r.gflop,
            "peak_gflops": r.measured.peak_gflops,
            **asdict(f),
            # JSON has no NaN: there is no reference.
            "error": f.error if f.error == f.error else None,
        }
        for r in results
        for f in r.measured.figures
    ]


def _peak(results: Sequence[Result]) -> str:
    peaks = [p for r in results for p in r.measured.peaks]
    if not peaks:
        return ""
    middle = sorted(peaks)[len(peaks) // 2]
    return f", FMA peak {middle:.0f} GFLOP/s (median; best {max(peaks):.0f})"


def _cells(f: Figures, first: Figures | None) -> list[str]:
    return [
        f"{f.median_ms:.3f}",
        f"{f.best_ms:.3f}",
        f"{f.median_ms / first.median_ms:.2f}" if first else "",
        f"{f.gflops:.0f}",
        f"{100 * f.peak_share:.0f}",
        f"{f.error:.1e}",
    ]


_COLUMNS = ("median ms", "best ms", "× first", "GFLOP/s", "% of peak", "error")


def _table(results: Sequence[Result], accepted: float) -> Table:
    title = f"{_threads(results[0].threads)}{_peak(results)}"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    table.add_column("engine")
    for header in _COLUMNS:
        table.add_column(header, justify="right")
    for r in results:
        label = f"{r.model} ({r.gflop:.2f} GFLOP)"
        first = next((f for f in r.measured.figures if not f.failure), None)
        for f in r.measured.figures:
            if f.failure:
                table.add_row(label, f.engine, Text(f.failure[:60], style="red"))
            else:
                *numbers, error = _cells(f, first)
                wrong = _is_wrong(f, accepted)
                table.add_row(label, f.engine, *numbers, f"[red]{error}" if wrong else error)
            label = ""
        table.add_section()
    return table


def leads(results: Sequence[Result]) -> list[tuple[str, float, str]]:
    """Returns, for each model that clew and a peer ran, (model, fastest peer ÷ clew, that peer)."""
    found = [(r.model, r.measured.lead(_FASTER)) for r in results]
    return [(model, *lead) for model, lead in found if lead is not None]


def _summary(results: Sequence[Result]) -> str:
    found = leads(results)
    if not found:
        return "no model that clew and a peer ran"
    ratios = [ratio for _, ratio, _ in found]
    least = min(found, key=lambda each: each[1])
    return (
        f"geometric mean {geometric_mean(ratios):.2f}, least {least[1]:.2f} ({least[0]}), "
        f"{sum(r >= 1 for r in ratios)} of {len(ratios)} models at least as fast"
    )


def _leads_table(results: Sequence[Result]) -> Table:
    table = Table(title="fastest peer ÷ clew", title_justify="left", caption=_summary(results))
    table.add_column("model")
    table.add_column("ratio", justify="right")
    table.add_column("fastest peer")
    for model, ratio, peer in leads(results):
        table.add_row(model, f"{ratio:.2f}" if ratio >= 1 else f"[red]{ratio:.2f}", peer)
    return table


def tables(results: Sequence[Result]) -> list[written.Table]:
    """Returns a table per thread count, with models as rows and engines as columns."""
    found = []
    for count in dict.fromkeys(r.threads for r in results):
        batch = [r for r in results if r.threads == count]
        names = list(dict.fromkeys(f.engine for r in batch for f in r.measured.figures))
        rows = [[r.model, *(_cell(r.measured, n) for n in names), *_ends(r)] for r in batch]
        ends = ("% of peak", "fastest peer ÷ clew", "error")
        columns = ["model", *(f"{n}, ms" for n in names), *ends]
        note = _peak(batch).removeprefix(", ")
        found.append(written.Table(_threads(count), columns, rows, note=note))
    return found


def _cell(measured: Measured, engine: str) -> str:
    found = measured.of(engine)
    if found is not None:
        return f"{found.median_ms:.2f}"
    return "failed" if any(f.engine == engine for f in measured.figures) else "–"


def _ends(result: Result) -> list[str]:
    """Returns clew's share of the peak, its ratio to the fastest peer, and its error."""
    own, lead = result.measured.of(_FASTER), result.measured.lead(_FASTER)
    return [
        f"{100 * own.peak_share:.0f}" if own else "–",
        f"{lead[0]:.2f}" if lead else "–",
        f"{own.error:.1e}" if own else "–",
    ]


if __name__ == "__main__":
    typer.run(main)
