"""Predicts models that the predictor has not seen, and compares with measured times.

`python benchmarks/predicting.py --table TABLE.parquet [--markdown docs/predict.md]`

Measures random networks, the zoo's models and five held-out ones into the table (skipping what it
already has, so it may be interrupted), learns without the held-out models and their siblings, and
predicts the held-out models from their files.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import clew
import zoo
from clew.machine.target import host
from clew.predict import Wanted, collect
from clew.predict.dataset import Subject, drawn_networks
from clew.predict.describe import describe_uses
from clew.predict.plan import plan
from clew.predict.predictor import Predictor, train
from clew.predict.table import columns_of, columns_of_table, read_table
from harness.report import circumstances, console, fill, markdown, progress

HELD_OUT = ("light_resnet50", "mobilenet_v2", "bert_base", "gpt2", "light_squeezenet")
# Of the same families as the held-out models, and so also excluded from training.
SIBLINGS = ("resnet18", "resnet_tiny", "resnet50_batch8", "mobilenet_tiny", "bert_tiny",
            "distilbert", "bert_base_batch8", "gpt2_tiny", "gpt2_decode")  # fmt: skip
LEARNED = ("light_shufflenet", "light_densenet121", "light_inception_v1", "light_inception_v2",
           "light_vgg19", "light_bvlc_alexnet", "light_zfnet512", "vit_base", "deit_small",
           "llama_small", "convnext_tiny", "keyword_spotting", "efficientnet_b0",
           "regnet_y_800mf", "encoder_small")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One held-out model: milliseconds of a call, predicted without and with the measured times of
    kernels in the table; shares of kernels within 10 %, and of their time.
    """

    model: str
    threads: int
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    looked_up_ms: float
    looked_up: float
    kernels: int
    within_10: float
    within_10_of_time: float

    @property
    def error(self) -> float:
        """The relative error of the prediction without look-ups."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def looked_up_error(self) -> float:
        """The relative error of the prediction with look-ups."""
        return self.looked_up_ms / self.measured_ms - 1


def main(
    table: Annotated[Path, typer.Option(help="Table to create or extend.")],
    networks: Annotated[int, typer.Option(help="Random networks.", min=0)] = 120,
    seed: Annotated[int, typer.Option(help="Seed of the first network.", min=0)] = 0,
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    minutes: Annotated[float | None, typer.Option(help="Time limit for measuring.")] = None,
    lock: Annotated[
        Path | None, typer.Option(help="File to lock while measuring, for shared machines.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows to this file.")
    ] = None,
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the tables into this document.")
    ] = None,
) -> None:
    """Prints predicted and measured times of models left out of the table."""
    counts = tuple(int(word) for word in threads.split(","))
    asked = Wanted(threads=counts, minutes=minutes)
    models = [_of_zoo(name) for name in (*HELD_OUT, *LEARNED)]
    subjects = list(chain(models, drawn_networks(seed, networks)))
    inputs = {s.name: list(zoo.inputs(s.name).values()) for s in models}
    result = collect(
        table, asked, subjects=subjects, inputs=inputs, alone=_alone(lock),
        say=progress.print, note=progress.print,
    )  # fmt: skip
    progress.print(f"{result.networks} networks measured, {result.skipped} were in the table")
    rows: list[Row] = []
    learned: list[Predictor] = []
    for count in counts:
        progress.print(f"learning, {count} thread{'s' * (count > 1)}")
        predictor = train(table, host(), count, without=(*HELD_OUT, *SIBLINGS))
        batch = [_row(table, predictor, name, count) for name in HELD_OUT]
        console.print(_shown(batch, predictor))
        console.print(_summary(batch))
        rows += batch
        learned.append(predictor)
    if json_file:
        json_file.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if document:
        fill(document, "predicting", _document(rows, learned))


def _of_zoo(name: str) -> Subject:
    return Subject(name, "model", lambda: clew.load(zoo.path(name)))


def _alone(lock: Path | None) -> Callable[[], AbstractContextManager[Any]]:
    if lock is None:
        return nullcontext

    @contextmanager
    def locked() -> Iterator[None]:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return locked


def _row(table: Path, predictor: Predictor, name: str, threads: int) -> Row:
    wanted = ("kernel", "latency_ns", "network_call_ns", "network", "threads", "mode")
    columns = columns_of_table(read_table(table, wanted))
    measured = {
        kernel: (ns, call)
        for kernel, ns, call, network, count, mode in zip(
            *(columns[key] for key in wanted), strict=True
        )
        if (network, count, mode) == (name, threads, "program")
    }
    made = plan(clew.load(zoo.path(name)), threads=threads)
    kernels = columns_of(describe_uses(made.uses, made.segments, threads))
    alone, known = (predictor.predict(kernels, lookup=lookup) for lookup in (False, True))
    times = np.array([measured[kernel][0] for kernel in kernels["kernel"]])
    close = np.abs(alone.kernels_ns / times - 1) <= 0.1
    call = next(iter(measured.values()))[1]
    return Row(
        name,
        threads,
        call / 1e6,
        alone.total_ns / 1e6,
        alone.total_low_ns / 1e6,
        alone.total_high_ns / 1e6,
        known.total_ns / 1e6,
        float(known.looked_up.mean()),
        len(times),
        float(close.mean()),
        float((close * times).sum() / times.sum()),
    )


# ----------------------------------------------------------------------------------------- printing

_COLUMNS = ("model", "ms", "predicted", "from", "to", "error, %", "looked up, %", "error so, %",
            "kernels", "within 10 %", "of time")  # fmt: skip


def _cells(row: Row) -> list[str]:
    return [
        row.model,
        f"{row.measured_ms:.2f}",
        f"{row.predicted_ms:.2f}",
        f"{row.low_ms:.2f}",
        f"{row.high_ms:.2f}",
        f"{100 * row.error:+.1f}",
        f"{100 * row.looked_up:.0f}",
        f"{100 * row.looked_up_error:+.1f}",
        str(row.kernels),
        f"{100 * row.within_10:.0f}",
        f"{100 * row.within_10_of_time:.0f}",
    ]


def _shown(rows: Sequence[Row], predictor: Predictor) -> Table:
    made = Table(title=_title(predictor), title_justify="left", box=None)
    for number, name in enumerate(_COLUMNS):
        made.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        made.add_row(*_cells(row))
    return made


def _title(predictor: Predictor) -> str:
    count = predictor.threads
    return (
        f"{count} thread{'s' * (count > 1)}; learned from {predictor.rows} kernels of "
        f"{predictor.networks} networks"
    )


def _summary(rows: Sequence[Row]) -> str:
    errors = [abs(row.error) for row in rows]
    kernels = sum(row.kernels for row in rows)
    within = sum(row.kernels * row.within_10 for row in rows) / kernels
    time = sum(row.measured_ms for row in rows)
    of_time = sum(row.measured_ms * row.within_10_of_time for row in rows) / time
    return (
        f"Mean absolute error {100 * np.mean(errors):.1f} %, largest {100 * max(errors):.1f} %; "
        f"{100 * within:.0f} % of {kernels} kernels within 10 %, {100 * of_time:.0f} % of their "
        "time."
    )


def _left_out(predictor: Predictor) -> str:
    e = predictor.errors
    return (
        f"Cross-validated on the networks that were learned from: totals off by "
        f"{100 * e.total_mean:.1f} % (mean), {100 * e.total_worst:.0f} % (largest); "
        f"{100 * e.within_10:.0f} % of kernels within 10 %, {100 * e.within_10_of_time:.0f} % of "
        "their time."
    )


def _document(rows: Sequence[Row], learned: Sequence[Predictor]) -> str:
    parts = [circumstances()]
    for predictor in learned:
        batch = [row for row in rows if row.threads == predictor.threads]
        parts.append(f"**{_title(predictor)}.** {_summary(batch)}")
        parts.append(markdown(list(_COLUMNS), [_cells(row) for row in batch], numbers=1))
        parts.append(_left_out(predictor))
    return "\n\n".join(parts)


if __name__ == "__main__":
    typer.run(main)
