"""Errors of weights of 4 bits: clew and ONNX Runtime's quantizer, with the same groups and data.

    taskset -c 0 python benchmarks/weight_only.py --models minilm --groups 32

Models are a trained encoder of sentences and a trained reader of written lines, which ship inside
Python packages, and a decoder like Llama whose weights have the tails of trained ones. All
quantized models run in clew. Errors are those of the outputs on samples that were not used for
calibration.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import onnx
import typer

import clew
from clew.quantization import Scheme
from exports.packages import MODELS, NotThere
from harness.report import progress
from harness.samples import KINDS
from harness.sentences import TOKENS, called, exported, minilm, sentences

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
_VOCABULARY: Final = 2_000
_LINES: Final = "ch_PP-OCRv4_rec_infer"

ONLY: Final = Scheme.weight_only
OURS: Final[dict[str, dict[str, Any]]] = {
    "minmax": {"weight_range": "minmax"},
    "mse": {},
    "AWQ": {"migration": True},
    "GPTQ": {"rounding": "gptq"},
    "AWQ + GPTQ": {"migration": True, "rounding": "gptq"},
}
_WITHOUT_DATA: Final = ("minmax", "mse")


@dataclass
class Row:
    """Relative errors for a model in one size of groups, and the seconds that each method took.
    None means that it failed, for the reason in `notes`.
    """

    model: str
    group: int
    errors: dict[str, float | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


# --- models ---------------------------------------------------------------------------------------


def _minilm() -> tuple[Path, list[Feed]]:
    """A trained encoder of sentences, and paragraphs of this project's documents."""
    return minilm(), list(sentences())


def _llama() -> tuple[Path, list[Feed]]:
    """A decoder like Llama. Trained weights have heavy tails, and norms gains that differ: here a
    t-distribution, and a few channels in a hundred that are several times larger. Tokens follow
    Zipf's law.
    """

    def make() -> Any:
        import torch  # noqa: PLC0415 - optional
        import transformers  # noqa: PLC0415 - optional

        config = transformers.LlamaConfig(
            vocab_size=_VOCABULARY,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
        network = transformers.LlamaForCausalLM(config)
        rng = np.random.default_rng(0)
        with torch.no_grad():
            for name, value in network.named_parameters():
                shape = tuple(value.shape)
                if "norm" in name:
                    drawn = np.exp(0.4 * rng.standard_normal(shape))
                    drawn[rng.random(shape) < 0.02] *= 4
                else:
                    drawn = rng.standard_t(5, shape) / math.sqrt(5 / 3 * shape[-1])
                    drawn *= 0.5 if re.search("[qko]_proj|down_proj", name) else 1
                value.copy_(torch.from_numpy(drawn.astype(np.float32)))
        ids = torch.ones((1, TOKENS), dtype=torch.int64)
        return called(network, "logits"), (ids,), ["input_ids"]

    path = exported("llama", make)
    chances = 1 / np.arange(1, _VOCABULARY + 1)
    rng = np.random.default_rng(1)
    drawn = rng.choice(_VOCABULARY, (256, 1, TOKENS), p=chances / chances.sum())
    return path, [{"input_ids": ids.astype(np.int64)} for ids in drawn]


def _lines() -> tuple[Path, list[Feed]]:
    """A trained reader of lines: convolutions, which stay in floats, attention, and a wide product
    at the end.
    """
    (found,) = (m for m in MODELS if _LINES in m.member)
    shape = next(iter(found.inputs.values()))[0]
    feeds = [{"x": KINDS["line"](np.random.default_rng((n, 1)), shape)} for n in range(256)]
    return found.path(), feeds


_ALL: Final[dict[str, Callable[[], tuple[Path, list[Feed]]]]] = {
    "minilm": _minilm,
    "lines": _lines,
    "llama": _llama,
}


# --- measurements ---------------------------------------------------------------------------------


class _Errors:
    """Errors of models against the float model, on samples. Values of padding do not count."""

    def __init__(self, path: Path, samples: Sequence[Feed]) -> None:
        exact = clew.compile(
            path, diagnostics=clew.Diagnostics(trace=False), tuned=None, inputs=_sizes(samples[0])
        )
        self._samples = samples
        self._exact = [self._outputs(exact, s) for s in samples]

    @staticmethod
    def _outputs(model: Any, sample: Feed) -> Array:
        found = np.asarray(next(iter(model.run(dict(sample)).values())), np.float64)
        mask = sample.get("attention_mask")
        return found if mask is None else found[mask.astype(bool)]

    def of(self, model: Any) -> float:
        found = clew.compile(
            model, diagnostics=clew.Diagnostics(trace=False), tuned=None, **self._inputs(model)
        )
        squares = np.zeros(2)
        for sample, exact in zip(self._samples, self._exact, strict=True):
            output = self._outputs(found, sample)
            squares += [np.sum((output - exact) ** 2), np.sum(exact**2)]
        return math.sqrt(squares[0] / squares[1])

    def _inputs(self, model: Any) -> dict[str, Any]:
        return {"inputs": _sizes(self._samples[0])} if isinstance(model, Path) else {}


def _sizes(sample: Feed) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in sample.items()}


def _peers(path: Path, folder: Path, data: Sequence[Feed], group: int) -> Iterator[Any]:
    """Yields the methods of ONNX Runtime: names, and what writes the model."""
    from onnxruntime import quantization  # noqa: PLC0415 - only where it is a peer
    from onnxruntime.quantization import matmul_nbits_quantizer as ort  # noqa: PLC0415

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(data)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    configs: dict[str, Callable[[], Any]] = {
        "ORT": lambda: ort.DefaultWeightOnlyQuantConfig(block_size=group, is_symmetric=False),
        "ORT k-quant": lambda: ort.KQuantWeightOnlyQuantConfig(),
        "ORT HQQ": lambda: ort.HQQWeightOnlyQuantConfig(block_size=group),
        "ORT GPTQ": lambda: ort.GPTQWeightOnlyQuantConfig(Reader(), block_size=group),
    }
    for name, config in configs.items():

        def write(config: Callable[[], Any] = config) -> Path:
            made = folder / "made.onnx"
            quantizer = ort.MatMulNBitsQuantizer(
                onnx.load(path), block_size=group, is_symmetric=False, algo_config=config()
            )
            quantizer.process()
            model = quantizer.model.model
            if all(o.domain != "com.microsoft" for o in model.opset_import):
                model.opset_import.add(domain="com.microsoft", version=1)  # some methods forget it
            onnx.save(model, made)
            return made

        yield name, write


def _measured(name: str, group: int, samples: int, held: int, peers: bool) -> Row:
    path, feeds = _ALL[name]()
    data, rest = feeds[:samples], feeds[samples : samples + held]
    errors, row = _Errors(path, rest), Row(name, group)

    def note(method: str, make: Callable[[], Any]) -> None:
        progress.print(f"{name}, groups of {group}: {method}")
        start, said = time.perf_counter(), io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                made = make()
                row.seconds[method] = time.perf_counter() - start
                row.errors[method] = errors.of(made)
            progress.print(f"{row.errors[method]:.4f}")
        except Exception as error:  # any failure of a peer is a result
            row.errors[method] = None
            row.notes[method] = f"{type(error).__name__}: {str(error)[:300]}"
            progress.print(row.notes[method], markup=False)

    module = clew.load(path, inputs=_sizes(data[0]))
    for method, fields in OURS.items():
        scheme = ONLY(group=group, **{"migration": False, "bias_correction": False, **fields})
        given = None if method in _WITHOUT_DATA else data
        note(method, lambda s=scheme, g=given: clew.quantize(module, g, scheme=s).module)  # type: ignore[misc]
    if peers:
        with tempfile.TemporaryDirectory() as folder:
            for method, write in _peers(path, Path(folder), data, group):
                note(method, write)
    return row


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as Markdown: a column for each model and size of groups."""
    methods = list(dict.fromkeys(m for r in rows for m in r.errors))
    lines = [
        f"| method | {' | '.join(f'{r.model}, {r.group}' for r in rows)} |",
        f"| --- |{' ---: |' * len(rows)}",
    ]
    for method in methods:
        cells = []
        for r in rows:
            value = r.errors.get(method)
            shown = "fails" if value is None else f"{value:.4f}"
            cells.append(shown if method in r.errors else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(_ALL),
    groups: Annotated[str, typer.Option(help="Sizes of groups.")] = "32,128",
    samples: Annotated[int, typer.Option(min=1, help="Samples for calibration.")] = 96,
    held: Annotated[int, typer.Option(min=1, help="Samples for the errors.")] = 48,
    peers: Annotated[bool, typer.Option(help="Also measure ONNX Runtime's quantizer.")] = True,
    into: Annotated[Path | None, typer.Option("--json", help="Also write the rows here.")] = None,
) -> None:
    """Compares the errors of weights of 4 bits and prints a table."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rows: list[Row] = []
    for name in models.split(","):
        for group in map(int, groups.split(",")):
            try:
                rows.append(_measured(name, group, samples, held, peers))
            except NotThere as error:
                progress.print(f"{name}: {error}", markup=False)
                continue
            if into is not None:
                into.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print(table(rows))


if __name__ == "__main__":
    typer.run(main)
