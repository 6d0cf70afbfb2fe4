"""Evaluations until the layers in floats are found: clew, and NNCF's accuracy control.

    python benchmarks/float_sets.py --models light_resnet50,mobilenet_v2 --markdown docs/quantize.md

Both tools get the same calibration data, the same metric on the same samples, and the same bound: a
share of what clew's int8 loses with no layer in floats. The metric is 1 less the relative error of
the outputs. Each counts the samples that the metric was called for. NNCF's models run in ONNX
Runtime without its optimizations, so that integers of 8 bits do not saturate.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnx.version_converter
import typer

import clew
from harness.int8_models import subjects
from harness.report import fill, markdown, progress

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
_FEW: Final = 8  # samples by which clew estimates single layers
_OPSET: Final = 13
_QUANTIZING: Final = ("QuantizeLinear", "DequantizeLinear")


@dataclass
class Found:
    """How a tool ended: layers in floats, what is lost, and the runs of samples that it took."""

    floats: int
    of: int
    lost: float
    evaluations: int
    runs: int
    seconds: float

    def cells(self) -> list[str]:
        """Returns the columns of a table."""
        return [
            f"{self.floats} of {self.of}",
            f"{self.lost:.4f}",
            str(self.evaluations),
            str(self.runs),
        ]


class _Metric:
    """1 less the relative error of the outputs; the one with the largest, if there are several."""

    def __init__(self, exact: Sequence[Sequence[Array]]) -> None:
        self.exact = exact

    def of(self, runs: Iterable[tuple[int, Sequence[Array]]]) -> float:
        """Returns the value for runs by the number of their sample."""
        squares = np.zeros((len(self.exact[0]), 2))
        for number, outputs in runs:
            for n, (found, wanted) in enumerate(zip(outputs, self.exact[number], strict=True)):
                wide = wanted.astype(np.float64)
                squares[n] += [np.sum((found - wide) ** 2), np.sum(wide**2)]
        return 1 - math.sqrt(float(np.max(squares[:, 0] / squares[:, 1])))


def _exact(path: Path, samples: Sequence[Feed]) -> list[list[Array]]:
    model = clew.compile(path, diagnostics=clew.Diagnostics(trace=False))
    return [[np.array(o) for o in model.run(dict(s)).values()] for s in samples]


def _by_clew(path: Path, samples: Sequence[Feed], share: float) -> tuple[Found, float]:
    metric = _Metric(_exact(path, samples))

    def value(outputs: list[dict[str, Array]]) -> float:
        return metric.of(enumerate([list(o.values()) for o in outputs]))

    plain = clew.quantize(path, samples)
    assert plain.error is not None
    bound = float(f"{share * plain.error:.2g}")
    began = time.perf_counter()
    found = clew.quantize(path, samples, metric=value, max_drop=bound)
    took = time.perf_counter() - began
    floats = found.floats
    assert floats is not None
    few = min(_FEW, len(samples))
    runs = floats.evaluations * len(samples) + floats.estimates * few
    count = len(found.parameters) + len(floats.layers)
    return Found(len(floats.layers), count, floats.figure, floats.evaluations, runs, took), bound


def _by_nncf(path: Path, samples: Sequence[Feed], bound: float) -> Found:
    import nncf  # noqa: PLC0415 - only where it is a peer
    import onnxruntime  # noqa: PLC0415 - as above

    items = list(enumerate(samples))
    metric = _Metric(_exact(path, samples))
    calls: list[int] = []

    def value(model: onnx.ModelProto, data: Iterable[Any]) -> tuple[float, list[float]]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        runs = [(number, session.run(None, dict(feed))) for number, feed in data]
        calls.append(len(runs))
        return metric.of(runs), [metric.of([run]) for run in runs]

    data = nncf.Dataset(items, lambda item: dict(item[1]))
    model = onnx.load(path)
    if model.opset_import[0].version < _OPSET:  # which NNCF refuses
        model = onnx.version_converter.convert_version(model, _OPSET)
    began = time.perf_counter()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        made = nncf.quantize_with_accuracy_control(
            model, data, data, value, max_drop=bound, subset_size=len(samples)
        )
    took = time.perf_counter() - began
    counted = sum(calls)
    lost = 1 - value(made, items)[0]
    plain = nncf.quantize(model, data, subset_size=len(samples))
    whole, kept = _products(plain), _products(made)
    whole_runs = sum(1 for c in calls[:-1] if c == len(samples))
    return Found(whole - kept, whole, lost, whole_runs, counted, took)


def _products(model: onnx.ModelProto) -> int:
    """Returns the number of products with a constant weight whose operands are quantized."""
    makers = {o: n for n in model.graph.node for o in n.output}
    constants = {t.name for t in model.graph.initializer}

    def constant(name: str) -> bool:
        node = makers.get(name)
        return name in constants or (
            node is not None and node.op_type in _QUANTIZING and constant(node.input[0])
        )

    def quantized(name: str) -> bool:
        return name in makers and makers[name].op_type == "DequantizeLinear"

    products = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")]
    return sum(quantized(n.input[0]) and constant(n.input[1]) for n in products)


def main(
    models: Annotated[
        str, typer.Option(help="Names.")
    ] = "light_resnet50,mobilenet_v2,encoder_small",
    samples: Annotated[int, typer.Option(min=1, help="Samples.")] = 16,
    share: Annotated[float, typer.Option(help="The bound, as a share of what int8 loses.")] = 0.5,
    into: Annotated[Path | None, typer.Option("--json", help="Also write the rows here.")] = None,
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the table into this document.")
    ] = None,
) -> None:
    """Counts the evaluations of both tools and prints a table."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows: dict[str, dict[str, Any]] = {}
    if into is not None and into.exists():
        rows = json.loads(into.read_text())
    every = {s.name: s for s in subjects()}
    for name in [n for n in models.split(",") if n]:
        subject = every[name]
        path, data = subject.path(), subject.calibration(samples)
        progress.print(f"{name}, clew")
        own, bound = _by_clew(path, data, share)
        progress.print(f"{name}, NNCF, bound {bound:g}")
        peer = _by_nncf(path, data, bound)
        rows[name] = {"bound": bound, "clew": asdict(own), "NNCF": asdict(peer)}
        if into is not None:
            into.write_text(json.dumps(rows, indent=1))
    lines = [
        [name, f"{row['bound']:g}", tool, *Found(**row[tool]).cells()]
        for name, row in rows.items()
        for tool in ("clew", "NNCF")
    ]
    columns = ["model", "bound", "tool", "in floats", "lost", "evaluations", "samples run"]
    text = markdown(columns, lines)
    print(text)
    if document is not None:
        fill(document, "float sets", text)


if __name__ == "__main__":
    typer.run(main)
