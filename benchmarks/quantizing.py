"""Errors of static int8: clew, ONNX Runtime and NNCF with the same calibration data.

    python benchmarks/quantizing.py --models ocr,vit --samples 64

Models are networks of the zoo, and trained ones that ship inside Python packages. Inputs are
pictures, written lines, speech, or what the model takes. All quantized models run in clew, whose
integers are exact, so that only the choice of numbers is compared. Errors are those of the outputs
on samples that were not used for calibration.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnx.version_converter
import typer

import clew
import zoo
from exports.packages import MODELS, NotThere
from harness.report import progress
from harness.samples import picture, speech, writing

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
_METHODS: Final = ("MinMax", "Entropy", "Percentile")
_LEAST_SIGNAL: Final = 500  # elements
_OPSET: Final = 13
_NEED_SHAPES: Final = ("U002", "I403")
_ZOO: Final = (
    "light_squeezenet",
    "light_shufflenet",
    "light_resnet50",
    "resnet18",
    "mobilenet_v2",
    "efficientnet_b0",
    "vit_tiny",
    "bert_tiny",
    "keyword_spotting",
)


@dataclass
class Row:
    """The relative errors for a model, and the seconds that each tool took. An error of None means
    that the tool failed, for the reason in `notes`.
    """

    model: str
    trained: bool
    clew: float | None = None
    peers: dict[str, float | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
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


def _sample(name: str, drawn: Mapping[str, Array], rng: np.random.Generator) -> Feed:
    found: Feed = {}
    for key, value in drawn.items():
        if value.dtype != np.float32:
            found[key] = value
        elif value.ndim == 4 and value.shape[1] == 3:
            found[key] = (writing if "ocr" in name else picture)(rng, value.shape)
        elif value.size >= _LEAST_SIGNAL:
            found[key] = speech(rng, value.shape)
        else:
            found[key] = value
    return found


def _models() -> Iterator[tuple[str, bool, Callable[[], Path], Callable[[int], Feed]]]:
    """Yields names, whether the model is trained, its file, and samples by seed."""
    for model in MODELS:

        def trained(seed: int, model: Any = model) -> Feed:
            drawn = model.draw(seed)
            return _sample(model.name, drawn, np.random.default_rng((seed, 1)))

        yield model.name, True, model.path, trained
    for name in _ZOO:

        def drawn(seed: int, name: str = name) -> Feed:
            found = zoo.inputs(name, seed)
            image = any(a.ndim == 4 and a.shape[1] == 3 for a in found.values())
            return _sample(name, found, np.random.default_rng((seed, 1))) if image else found

        yield name, False, partial(_zoo_path, name), drawn


def _zoo_path(name: str) -> Path:
    return Path(zoo.path(name))


class _Errors:
    """Errors of models against the float model, on samples."""

    def __init__(self, path: Path, samples: Sequence[Feed]) -> None:
        exact = clew.compile(path, trace=False, tuned=None)
        self._samples = samples
        self._exact = [exact.run(dict(s)) for s in samples]

    def of(self, model: Any) -> float:
        found = clew.compile(model, trace=False, tuned=None)
        squares: dict[str, Array] = {}
        for sample, exact in zip(self._samples, self._exact, strict=True):
            outputs = found.run(dict(sample))
            for name, value in exact.items():
                if value.dtype.kind == "f":
                    wide = value.astype(np.float64)
                    pair = np.array([np.sum((outputs[name] - wide) ** 2), np.sum(wide**2)])
                    squares[name] = squares.get(name, np.zeros(2)) + pair
        return max(math.sqrt(e / s) for e, s in squares.values() if s)


def _onnxruntime(path: Path, folder: Path, samples: Sequence[Feed]) -> Iterator[tuple[str, Path]]:
    from onnxruntime import quantization as ort  # noqa: PLC0415 - only where it is a peer
    from onnxruntime.quantization.shape_inference import quant_pre_process  # noqa: PLC0415

    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    prepared = folder / "prepared.onnx"
    try:
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    except Exception:  # it fails on some models, and is optional
        onnx.save(onnx.load(path), prepared)
    model = onnx.load(prepared)
    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < _OPSET:
        onnx.save(onnx.version_converter.convert_version(model, _OPSET), prepared)
    for method in _METHODS:
        made = folder / f"{method}.onnx"
        ort.quantize_static(
            str(prepared),
            str(made),
            Reader(),
            quant_format=ort.QuantFormat.QDQ,
            per_channel=True,
            activation_type=ort.QuantType.QUInt8,
            weight_type=ort.QuantType.QInt8,
            calibrate_method=getattr(ort.CalibrationMethod, method),
        )
        yield f"ORT {method}", made


def _nncf(path: Path, folder: Path, samples: Sequence[Feed]) -> Iterator[tuple[str, Path]]:
    import nncf  # noqa: PLC0415 - only where it is a peer

    found = nncf.quantize(onnx.load(path), nncf.Dataset(list(samples)), subset_size=len(samples))
    made = folder / "nncf.onnx"
    onnx.save(found, made)
    yield "NNCF", made


def _measured(
    name: str, trained: bool, path: Path, draw: Callable[[int], Feed], samples: int, held: int
) -> Row:
    row = Row(name, trained)
    calibration = [draw(seed) for seed in range(samples)]
    errors = _Errors(path, [draw(10_000 + seed) for seed in range(held)])
    start = time.perf_counter()
    quantized = _quantized(path, calibration)
    row.seconds["clew"] = time.perf_counter() - start
    row.clew = errors.of(quantized.module)
    with tempfile.TemporaryDirectory() as folder:
        for tool, peer in (("ORT", _onnxruntime), ("NNCF", _nncf)):
            start, said = time.perf_counter(), io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    for what, made in peer(path, Path(folder), calibration):
                        row.peers[what] = errors.of(made)
            except Exception as error:  # any failure of a peer is a result
                row.peers.setdefault(tool, None)
                row.notes[tool] = f"{type(error).__name__}: {str(error)[:200]}"
            row.seconds[tool] = time.perf_counter() - start
    return row


def _quantized(path: Path, calibration: Sequence[Feed]) -> clew.Quantized:
    try:
        return clew.quantize(path, calibration)
    except clew.ClewError as error:
        if error.code not in _NEED_SHAPES:
            raise
        shapes = {name: value.shape for name, value in calibration[0].items()}
        return clew.quantize(path, calibration, inputs=shapes)


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as Markdown."""
    tools = list(dict.fromkeys(t for r in rows for t in r.peers))
    lines = [
        f"| model | clew | {' | '.join(tools)} | clew ÷ best |",
        f"| --- | ---: |{' ---: |' * len(tools)} ---: |",
    ]

    def shown(value: float | None) -> str:
        return "fails" if value is None else f"{value:.4f}"

    for r in rows:
        peers = " | ".join(shown(r.peers[t]) if t in r.peers else "" for t in tools)
        lines.append(f"| {r.model} | {shown(r.clew)} | {peers} | {r.ratio:.2f} |")
    ratios = [r.ratio for r in rows if math.isfinite(r.ratio)]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        least = sum(r <= 1 for r in ratios)
        lines.append("")
        lines.append(
            f"Geometric mean of clew ÷ best {mean:.2f}; no larger on {least} of {len(ratios)}."
        )
    return "\n".join(lines)


def main(
    models: Annotated[str, typer.Option(help="Parts of names, separated by commas.")] = "",
    samples: Annotated[int, typer.Option(min=1, help="Samples for calibration.")] = 64,
    held: Annotated[int, typer.Option(min=1, help="Samples for the errors.")] = 24,
    into: Annotated[Path | None, typer.Option("--json", help="Also write the rows here.")] = None,
) -> None:
    """Compares the errors of quantized models and prints a table."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    wanted = [part for part in models.split(",") if part]
    rows: list[Row] = []
    for name, trained, path, draw in _models():
        if wanted and not any(part in name for part in wanted):
            continue
        progress.print(name)
        try:
            rows.append(_measured(name, trained, path(), draw, samples, held))
        except (NotThere, clew.ClewError) as error:
            progress.print(f"{name}: {error}", markup=False)
            continue
        if into is not None:
            into.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print(table(rows))


if __name__ == "__main__":
    typer.run(main)
