"""Static int8 by clew, ONNX Runtime and NNCF, with the same calibration data: errors and speed.

    python benchmarks/quantizing.py accuracy --json rows.json --markdown docs/quantize.md
    python benchmarks/quantizing.py speed --models mobilenet_v2 --json times.json

Models are trained ones that ship inside Python packages, and networks of the zoo. Inputs are those
of users as far as packages have some (`harness/samples.py`).

`accuracy`: all quantized models run in clew, whose integers are exact, so that only the choice of
numbers is compared. (ONNX Runtime's products saturate on CPUs without VNNI.) Errors are those of
the outputs on samples that were not used for calibration. A run goes on where the last one with the
same JSON file ended; what the peers' files gave is kept while the samples and tools are the same.

`speed`: clew runs the file that it saved, ONNX Runtime and OpenVINO those of ONNX Runtime and NNCF,
and ONNX Runtime the float file; alternately, best of all calls. `accuracy` must have run before.
"""

from __future__ import annotations

import json
import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

import clew
from clew.bench.engines import engines
from clew.profile.interleave import interleaved_ns
from exports.packages import NotThere
from harness import int8_peers
from harness.int8_models import Subject, subjects
from harness.report import circumstances, fill, markdown, progress

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
_NEED_SHAPES: Final = ("U002", "I403")
_WANTED: Final = 0.8  # of the smallest error of a peer, in the mean
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Row:
    """The relative errors for a model. An error of None means that the tool failed, for the reason
    in `notes`. `key` is that of the samples and tools; `seconds` are those of `clew.quantize`.
    """

    model: str
    trained: bool
    key: str
    clew: float | None = None
    peers: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    quantized: int = 0
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The smallest error of a peer; NaN if all failed."""
        found = [e for e in self.peers.values() if e is not None]
        return min(found, default=math.nan)

    @property
    def ratio(self) -> float:
        """The error of clew over the smallest of a peer."""
        return math.nan if self.clew is None else self.clew / self.best


class _Errors:
    """Errors of models against the float model, on samples: the root of the sum of squared
    differences over that of squares, of the output where it is largest.
    """

    def __init__(self, path: Path, samples: Sequence[Feed]) -> None:
        exact = clew.compile(path, diagnostics=clew.Diagnostics(trace=False), tuned=None)
        self._samples = samples
        self._exact = [exact.run(dict(s)) for s in samples]

    def of(self, model: Any) -> float:
        found = clew.compile(model, diagnostics=clew.Diagnostics(trace=False), tuned=None)
        squares: dict[str, Array] = {}
        for sample, exact in zip(self._samples, self._exact, strict=True):
            # By position: NNCF and ONNX Runtime keep the order of outputs, but not all names.
            results = found.run(dict(sample)).values()
            for (name, value), result in zip(exact.items(), results, strict=True):
                if value.dtype.kind == "f":
                    wide = value.astype(np.float64)
                    pair = np.array([np.sum((result - wide) ** 2), np.sum(wide**2)])
                    squares[name] = squares.get(name, np.zeros(2)) + pair
        return max(math.sqrt(e / s) for e, s in squares.values() if s)


def _measured(
    subject: Subject,
    samples: int,
    held: int,
    calibrators: Sequence[str],
    known: Mapping[str, Row],
) -> Row:
    path, calibration = subject.path(), subject.calibration(samples)
    row = Row(subject.name, subject.trained, int8_peers.key(path, calibration))
    errors = _Errors(path, subject.held(held))
    began = time.perf_counter()
    quantized = _quantized(path, calibration)
    row.seconds = time.perf_counter() - began
    row.quantized = len(quantized.parameters)
    row.clew = errors.of(quantized.module)
    try:
        quantized.save(int8_peers.folder(row.key) / "clew.onnx")
    except clew.ClewError as error:
        row.notes["clew"] = str(error)[:200]
    before = known.get(subject.name)
    if before is not None and before.key == row.key:
        row.peers, row.notes = before.peers, {**before.notes, **row.notes}
    for peer in int8_peers.peers(subject.transformer, calibrators):
        if peer.shown in row.peers:
            continue
        try:
            row.peers[peer.shown] = errors.of(int8_peers.made(peer, path, calibration, row.key))
        except Exception as error:  # any failure of a peer is a result
            row.peers[peer.shown] = None
            row.notes[peer.shown] = f"{type(error).__name__}: {str(error)[:200]}"
    return row


def _quantized(path: Path, calibration: Sequence[Feed]) -> clew.Quantized:
    try:
        return clew.quantize(path, calibration)
    except clew.ClewError as error:
        if error.code not in _NEED_SHAPES:
            raise
        shapes = {name: value.shape for name, value in calibration[0].items()}
        return clew.quantize(path, calibration, inputs=shapes)


def summary(rows: Sequence[Row]) -> str:
    """Returns how clew's errors compare to the smallest of the peers'."""
    ratios = [r.ratio for r in rows if math.isfinite(r.ratio)]
    if not ratios:
        return "No model that clew and a peer quantized."
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    least = sum(r <= 1 for r in ratios)
    return (
        f"clew ÷ smallest of a peer: geometric mean {mean:.2f}, "
        f"no larger on {least} of {len(ratios)} models."
    )


def table(rows: Sequence[Row]) -> str:
    """Returns the errors as Markdown."""
    tools = list(dict.fromkeys(t for r in rows for t in r.peers))

    def shown(value: float | None) -> str:
        return "fails" if value is None else f"{value:.4f}"

    lines = [
        [
            r.model,
            "trained" if r.trained else "drawn",
            shown(r.clew),
            *(shown(r.peers[t]) if t in r.peers else "–" for t in tools),
            f"{r.ratio:.2f}" if math.isfinite(r.ratio) else "–",
        ]
        for r in rows
    ]
    return markdown(["model", "weights", "clew", *tools, "clew ÷ best"], lines, numbers=2)


def _wanted(models: str) -> list[Subject]:
    parts = [part for part in models.split(",") if part]
    return [s for s in subjects() if not parts or any(part in s.name for part in parts)]


_MODELS = Annotated[str, typer.Option(help="Parts of names, separated by commas.")]
_JSON = Annotated[Path | None, typer.Option("--json", help="Also write the rows here.")]
_DOCUMENT = Annotated[
    Path | None, typer.Option("--markdown", help="Also put the table into this document.")
]


@app.command()
def accuracy(
    models: _MODELS = "",
    samples: Annotated[int, typer.Option(min=1, help="Samples for calibration.")] = 64,
    held: Annotated[int, typer.Option(min=1, help="Samples for the errors.")] = 32,
    calibrators: Annotated[str, typer.Option(help="Of ONNX Runtime.")] = ",".join(
        int8_peers.CALIBRATORS
    ),
    into: _JSON = None,
    document: _DOCUMENT = None,
) -> None:
    """Compares the errors of quantized models and prints a table."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows: dict[str, Row] = {}
    if into is not None and into.exists():
        rows = {r["model"]: Row(**r) for r in json.loads(into.read_text())}
    for subject in _wanted(models):
        progress.print(subject.name)
        try:
            rows[subject.name] = _measured(subject, samples, held, calibrators.split(","), rows)
        except (NotThere, clew.ClewError) as error:
            progress.print(f"{subject.name}: {error}", markup=False)
            continue
        if into is not None:
            into.write_text(json.dumps([asdict(r) for r in rows.values()], indent=1))
    names = [s.name for s in subjects()]
    found = sorted(rows.values(), key=lambda r: names.index(r.model))
    text = f"{summary(found)}\n\n{table(found)}"
    print(text)
    if document is not None:
        fill(document, "quantizing accuracy", text)


@dataclass
class Times:
    """The best times of calls in ms, by the column of the table."""

    model: str
    best_ms: dict[str, float]

    def cells(self, columns: Sequence[str]) -> list[str]:
        """Returns the row of a table."""
        own = self.best_ms["clew"]
        peers = [t for n, t in self.best_ms.items() if n not in ("clew", "ORT floats")]
        times = [f"{self.best_ms[c]:.3f}" if c in self.best_ms else "–" for c in columns]
        return [self.model, *times, f"{min(peers) / own:.2f}" if peers else "–"]


def _timed(subject: Subject, samples: int, rounds: int) -> Times:
    path, calibration = subject.path(), subject.calibration(samples)
    key, feed = int8_peers.key(path, calibration), dict(subject.held(1)[0])
    known = engines()
    files = {"clew": ("clew", int8_peers.folder(key) / "clew.onnx")}
    for peer in int8_peers.peers(transformer=False):
        if peer.shown in ("ORT MinMax", "NNCF"):
            files[peer.shown] = (peer.engine, int8_peers.file_of(peer, key))
    files["ORT floats"] = ("onnxruntime", path)
    runs = {}
    for name, (engine, file) in files.items():
        try:
            run = known[engine].prepare(file, 1, "auto").run
            run(feed)
        except Exception as error:  # any failure of an engine is a result
            progress.print(f"{name}: {type(error).__name__}: {str(error)[:200]}", markup=False)
            continue
        runs[name] = lambda run=run: run(feed)
    times = interleaved_ns(runs, rounds)
    return Times(subject.name, {name: min(each) / 1e6 for name, each in times.items()})


@app.command()
def speed(
    models: _MODELS = "",
    samples: Annotated[int, typer.Option(min=1, help="Samples for calibration.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each engine.")] = 12,
    into: _JSON = None,
    document: _DOCUMENT = None,
) -> None:
    """Times the files that `accuracy` made, each in its own engine, on one thread."""
    warnings.filterwarnings("ignore")
    rows: dict[str, Times] = {}
    if into is not None and into.exists():
        rows = {r["model"]: Times(**r) for r in json.loads(into.read_text())}
    for subject in _wanted(models) if models else []:
        progress.print(subject.name)
        found = _timed(subject, samples, rounds)
        if "clew" in found.best_ms:
            rows[subject.name] = found
        if into is not None:
            into.write_text(json.dumps([asdict(r) for r in rows.values()], indent=1))
    columns = ("clew", "ORT MinMax", "NNCF", "ORT floats")
    engine = {"clew": "clew", "NNCF": "NNCF in OpenVINO"}
    headers = ["model", *(f"{engine.get(c, c)}, ms" for c in columns), "fastest int8 peer ÷ clew"]
    names = [s.name for s in subjects()]
    lines = sorted(rows.values(), key=lambda r: names.index(r.model))
    text = markdown(headers, [r.cells(columns) for r in lines], numbers=1)
    text = f"{circumstances()}\n\n{text}"
    print(text)
    if document is not None:
        fill(document, "quantizing speed", text)


if __name__ == "__main__":
    app()
