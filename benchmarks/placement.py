"""Placement by measured costs, next to each backend alone.

    taskset -c 0 python benchmarks/placement.py --models resnet18,qdq_mobilenet_v2

Places each model, then measures the placed model, clew alone and each engine alone once more, in
turns and with other inputs: a placement that won by chance does not win again. Also times a second
placement, from the database.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import clew
import zoo
from clew.placement import Placement
from clew.placement.clock import in_turns
from harness.report import fill, markdown, progress

MODELS: Final = (
    *("light_squeezenet", "light_resnet50", "light_inception_v1", "resnet18", "mobilenet_v2"),
    *("efficientnet_b0", "convnext_tiny", "unet", "deit_small", "mobilevit_s", "distilbert"),
    *("gpt2", "t5_small_encoder", "whisper_tiny_encoder", "keyword_spotting"),
    *("qdq_light_resnet50", "qdq_mobilenet_v2", "qdq_efficientnet_b0", "qdq_vit_tiny"),
    *("qdq_bert_base", "dynamic_bert_tiny"),
)
_CPU: Final = "cpu"
_SECONDS: Final = 6.0  # of comparing whole calls once more

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _row(name: str, engines: list[str], threads: int, seconds: float) -> dict[str, Any]:
    path = zoo.path(name)
    shapes = {n: a.shape for n, a in zoo.inputs(name).items()}
    module = clew.load(path, inputs=shapes)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"threads": threads, "tuned": Path(folder) / "records.db"}
        began = time.perf_counter()
        found = clew.place(module, engines, zoo.inputs(name), seconds=seconds, **options)
        took = time.perf_counter() - began
        began = time.perf_counter()
        assert clew.place(module, engines, **options).kept
        again = time.perf_counter() - began
    functions = {plan: _calls(name, module, found, plan, threads) for plan in _plans(found)}
    times = in_turns(functions, _SECONDS)
    return {
        "units": found.units,
        "gap": found.gap,
        "took": took,
        "again": again,
        "chosen": found.best.name,
        "regions": {b: sum(r.backend == b for r in found.regions) for b in found.backends},
        "planned": {p.name: p.seconds for p in found.plans},
        "failed": {p.name: p.failure for p in found.plans if p.failure},
        "seconds": times,
        "placement": found.to_json(),
    }


def _plans(found: Placement) -> list[str]:
    """Returns the plans to measure once more: single backends that run, and the chosen one."""
    singles = [p.name for p in found.plans if not p.is_mix and p.seconds is not None]
    return [*singles, "placed"]


def _calls(
    name: str, module: clew.Module, found: Placement, plan: str, threads: int
) -> Callable[[], Any]:
    """Returns a function that calls a plan's model with other inputs each time."""
    options: dict[str, Any] = {"threads": threads, "tuned": None}
    if plan == "placed":
        model = clew.compile(module, backends=list(found.backends), place=found, **options)
    else:
        model = clew.compile(module, backends=[] if plan == _CPU else [plan], **options)
    feeds = [list(zoo.inputs(name, seed).values()) for seed in range(10, 14)]
    number = 0

    def call() -> Any:
        nonlocal number
        number += 1
        return model(*feeds[number % len(feeds)])

    return call


def _cells(name: str, row: Mapping[str, Any], engines: list[str]) -> list[str]:
    seconds = row["seconds"]
    singles = {n: s for n, s in seconds.items() if n != "placed"}
    alone = [f"{1e3 * seconds[n]:.2f}" if n in seconds else "wrong" for n in (_CPU, *engines)]
    chosen = row["chosen"]
    if row["regions"] and chosen.startswith("mix"):
        chosen = " + ".join([_CPU, *(f"{b} ({n})" for b, n in row["regions"].items())])
    ratio = min(singles.values()) / seconds["placed"]
    placed = f"{1e3 * seconds['placed']:.2f}"
    return [
        name,
        *alone,
        placed,
        chosen,
        f"{ratio:.2f}",
        f"{row['took']:.0f}",
        f"{row['again']:.2f}",
    ]


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Names of the zoo.")] = ",".join(MODELS),
    engines: Annotated[str, typer.Option(help="Backends.")] = "onnxruntime,openvino",
    threads: Annotated[int, typer.Option(help="Threads.")] = 1,
    seconds: Annotated[float, typer.Option(help="Seconds of measuring units.")] = 20.0,
    into: Annotated[Path | None, typer.Option("--json", help="Rows, kept and added to.")] = None,
    document: Annotated[Path | None, typer.Option("--markdown", help="Document to fill.")] = None,
) -> None:
    """Places models and compares the result with each backend alone."""
    rows: dict[str, Any] = {}
    if into is not None and into.exists():
        rows = json.loads(into.read_text())
    names = engines.split(",")
    for name in models.split(","):
        if name in rows:
            continue
        progress.print(name)
        rows[name] = _row(name, names, threads, seconds)
        if into is not None:
            into.write_text(json.dumps(rows, indent=1) + "\n")
    columns = ["model", *(f"{n}, ms" for n in (_CPU, *names)), "placed, ms", "where"]
    columns += ["best alone ÷ placed", "to place, s", "again, s"]
    text = markdown(columns, [_cells(name, row, names) for name, row in rows.items()])
    print(text)
    if document is not None:
        fill(document, f"placement {threads}", text)


if __name__ == "__main__":
    app()
