"""Predicts models that the predictor has not seen, and compares with measured times.

`python benchmarks/predicting.py --table TABLE.parquet [--markdown docs/predict.md]`

Measures random networks, the zoo's models and five held-out ones into the table (skipping what it
already has, so it may be interrupted), and predicts the held-out models from their files: without
training, and by what is learned without them and their siblings. They are measured twice, some time
apart: no prediction can be closer to a measurement than another measurement is.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
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
from clew.predict.predicted import Predicted
from clew.predict.predictor import Predictor, train
from clew.predict.table import columns_of, columns_of_table, read_table
from clew.predict.untrained import Untrained
from harness.report import circumstances, console, fill, markdown, progress

HELD_OUT = ("light_resnet50", "mobilenet_v2", "bert_base", "gpt2", "light_squeezenet")
# Of the same families as the held-out models, and so also excluded from training.
SIBLINGS = ("resnet18", "resnet_tiny", "resnet50_batch8", "mobilenet_tiny", "bert_tiny",
            "distilbert", "bert_base_batch8", "gpt2_tiny", "gpt2_decode")  # fmt: skip
_AGAIN = " (again)"
_LONG_NS = 5000.0
LEARNED = ("light_shufflenet", "light_densenet121", "light_inception_v1", "light_inception_v2",
           "light_vgg19", "light_bvlc_alexnet", "light_zfnet512", "vit_base", "deit_small",
           "llama_small", "convnext_tiny", "keyword_spotting", "efficientnet_b0",
           "regnet_y_800mf", "encoder_small")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One held-out model: milliseconds of a call, predicted without training, and without and with
    the measured times of kernels in the table; shares of kernels of more than 5 µs within 10 %, and
    of their time, without training (`bare`), with it, and of a second measurement; shares of
    kernels inside their ranges.
    """

    model: str
    threads: int
    measured_ms: float
    bare_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float
    looked_up_ms: float
    looked_up: float
    kernels: int
    bare_10: float
    bare_10_of_time: float
    bare_inside: float
    inside: float
    within_10: float
    within_10_of_time: float
    again_10: float
    again_10_of_time: float

    @property
    def bare_error(self) -> float:
        """The relative error of the prediction without training."""
        return self.bare_ms / self.measured_ms - 1

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
    again = [replace(_of_zoo(name), name=name + _AGAIN) for name in HELD_OUT]
    subjects = list(chain(models, drawn_networks(seed, networks), again))
    inputs = {s.name: list(zoo.inputs(s.name).values()) for s in models}
    inputs |= {name + _AGAIN: inputs[name] for name in HELD_OUT}
    result = collect(
        table, asked, subjects=subjects, inputs=inputs, alone=_alone(lock),
        say=progress.print, note=progress.print,
    )  # fmt: skip
    progress.print(f"{result.networks} networks measured, {result.skipped} were in the table")
    rows: list[Row] = []
    learned: list[Predictor] = []
    for count in counts:
        progress.print(f"learning, {count} thread{'s' * (count > 1)}")
        predictor = train(table, host(), count, without=_without(table))
        batch = [_row(table, predictor, name, count) for name in HELD_OUT]
        console.print(_shown(batch, predictor))
        console.print(_summary(batch))
        rows += batch
        learned.append(predictor)
    if json_file:
        json_file.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if document:
        fill(document, "predicting", _document(rows, learned))


def _without(table: Path) -> list[str]:
    """Returns the networks of a table that are not learned from."""
    out = {*HELD_OUT, *SIBLINGS, *(name + _AGAIN for name in HELD_OUT)}
    found = columns_of_table(read_table(table, ("network",)))["network"]
    return sorted(out & set(found))


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
    measured, again = _measured(table, name, threads), _measured(table, name + _AGAIN, threads)
    made = plan(clew.load(zoo.path(name)), threads=threads)
    kernels = columns_of(describe_uses(made.uses, made.segments, threads))
    alone, known = (predictor.predict(kernels, lookup=lookup) for lookup in (False, True))
    bare = Untrained(host()).predict(kernels)
    times = np.array([measured[kernel][0] for kernel in kernels["kernel"]])
    others = np.array([again[kernel][0] for kernel in kernels["kernel"]])
    within = [_within_10(found, times) for found in (bare.kernels_ns, alone.kernels_ns, others)]
    call = next(iter(measured.values()))[1]
    return Row(
        name,
        threads,
        call / 1e6,
        bare.total_ns / 1e6,
        alone.total_ns / 1e6,
        alone.total_low_ns / 1e6,
        alone.total_high_ns / 1e6,
        known.total_ns / 1e6,
        float(known.looked_up.mean()),
        len(times),
        *within[0],
        _inside(bare, times),
        _inside(alone, times),
        *within[1],
        *within[2],
    )


def _inside(found: Predicted, times: Any) -> float:
    """Returns the share of kernels whose measured time is in the range."""
    return float(((found.low_ns <= times) & (times <= found.high_ns)).mean())


def _within_10(found: Any, times: Any) -> tuple[float, float]:
    """Returns the share of the kernels of more than 5 µs whose time is within 10 % of the measured
    one, and of their time.
    """
    long = times > _LONG_NS
    close = np.abs(found / times - 1)[long] <= 0.1
    return float(close.mean()), float((close * times[long]).sum() / times[long].sum())


def _measured(table: Path, network: str, threads: int) -> dict[str, tuple[float, float]]:
    """Returns nanoseconds of each kernel of a network and of a whole call, by the kernel's name."""
    wanted = ("kernel", "latency_ns", "network_call_ns", "network", "threads", "mode")
    columns = columns_of_table(read_table(table, wanted))
    return {
        kernel: (ns, call)
        for kernel, ns, call, name, count, mode in zip(
            *(columns[key] for key in wanted), strict=True
        )
        if (name, count, mode) == (network, threads, "program")
    }


# ----------------------------------------------------------------------------------------- printing

_COLUMNS = ("model", "ms", "untrained", "error, %", "within 10 %", "of time", "inside, %",
            "predicted", "from", "to", "error, %", "looked up, %", "error so, %", "kernels",
            "inside, %", "within 10 %", "of time", "again", "of time so")  # fmt: skip


def _cells(row: Row) -> list[str]:
    return [
        row.model,
        f"{row.measured_ms:.2f}",
        f"{row.bare_ms:.2f}",
        f"{100 * row.bare_error:+.1f}",
        f"{100 * row.bare_10:.0f}",
        f"{100 * row.bare_10_of_time:.0f}",
        f"{100 * row.bare_inside:.0f}",
        f"{row.predicted_ms:.2f}",
        f"{row.low_ms:.2f}",
        f"{row.high_ms:.2f}",
        f"{100 * row.error:+.1f}",
        f"{100 * row.looked_up:.0f}",
        f"{100 * row.looked_up_error:+.1f}",
        str(row.kernels),
        f"{100 * row.inside:.0f}",
        f"{100 * row.within_10:.0f}",
        f"{100 * row.within_10_of_time:.0f}",
        f"{100 * row.again_10:.0f}",
        f"{100 * row.again_10_of_time:.0f}",
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
    bare = [abs(row.bare_error) for row in rows]
    kernels = sum(row.kernels for row in rows)
    return (
        f"Without training: mean absolute error {100 * np.mean(bare):.1f} %, largest "
        f"{100 * max(bare):.1f} %; {_of_all(rows, 'bare_10')} % of the kernels of more than 5 µs "
        f"within 10 %, {_of_all(rows, 'bare_10_of_time')} % of their time; "
        f"{_of_all(rows, 'bare_inside')} % of all inside their ranges. Trained: "
        f"mean absolute error {100 * np.mean(errors):.1f} %, largest {100 * max(errors):.1f} %; "
        f"{_of_all(rows, 'within_10')} % of {kernels} kernels (over 5 µs) within 10 %, "
        f"{_of_all(rows, 'within_10_of_time')} % of their time. Measured again, "
        f"{_of_all(rows, 'again_10')} % of the kernels, {_of_all(rows, 'again_10_of_time')} % of "
        "their time, are within 10 % of themselves."
    )


def _of_all(rows: Sequence[Row], share: str) -> str:
    """Returns the percentage of all models' kernels, or of their time."""
    weights = [row.measured_ms if share.endswith("time") else row.kernels for row in rows]
    return f"{100 * np.average([getattr(row, share) for row in rows], weights=weights):.0f}"


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
