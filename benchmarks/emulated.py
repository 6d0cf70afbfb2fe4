"""Exports models as C libraries for other machines, runs these under emulators, and compares the
results with those of this machine: integers bit for bit, floats within a tolerance.

`python benchmarks/emulated.py [--targets aarch64 ...] [--models NAME ...] [--files FILE ...]`
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew
import zoo
from emulators import TOOLS, missing, run
from quantized_layers import cut_at_codes, difference_of_codes
from random_graphs import Graph
from tflite_suite import families, movement  # noqa: F401 - they register operators
from tflite_suite.cases import drawn

Array = np.ndarray[Any, Any]
_ZOO: Final = (
    *("if_branches", "loop_recurrence", "keyword_spotting", "resnet_tiny", "mobilenet_tiny"),
    *("qdq_resnet_tiny", "qdq_mobilenet_tiny", "convnext_micro", "vit_tiny", "bert_tiny"),
    *("qdq_vit_tiny", "qdq_bert_tiny", "dynamic_bert_tiny", "gpt2_tiny", "llama_tiny"),
    "light_squeezenet",
)
_DRAWN: Final = 6
_TFLITE: Final = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "ADD", "MUL"),
    *("SOFTMAX", "LOGISTIC", "TRANSPOSE_CONV", "MEAN"),
)
# Networks that round to codes inside: if a sum of floats differs in its last bits, a code may
# differ by one, and then later codes. Where the model says which values are codes, each layer is
# compared on its own, and few codes may differ by one.
_CODES: Final = "qdq_"
_MOST_APART: Final = 0.01
_ROUNDED: Final = "dynamic_"
_TIMES_ROUNDED: Final = 2000.0
# As in the tests on this machine: sums are divided among lanes, of which machines have different
# numbers.
_RELATIVE, _ABSOLUTE = 2e-4, 2e-5

# Loops that stack rows have memory for so many.
_LIMITS: Final = {"limits": clew.Limits(budgets=clew.Budgets(loop_steps=1000))}

Model = tuple[Any, Mapping[str, Array] | None]


def models() -> dict[str, Callable[[], Model]]:
    """Returns the models by name: networks, drawn graphs, and drawn int8 operators of TFLite."""
    found: dict[str, Callable[[], Model]] = {}
    found.update({f"tflite_{op.lower()}": partial(_int8, op) for op in _TFLITE})
    found.update({f"drawn_{seed}": partial(_drawn, seed) for seed in range(_DRAWN)})
    found.update({name: partial(_of_zoo, name) for name in _ZOO})
    return found


def _of_zoo(name: str) -> Model:
    if name.startswith(_CODES):
        return cut_at_codes(zoo.path(name), zoo.inputs(name))
    return str(zoo.path(name)), zoo.inputs(name)


def _drawn(seed: int) -> Model:
    graph = Graph(seed)
    for _ in range(8):
        graph.grow()
    return graph.module(), graph.arrays


def _int8(op: str) -> Model:
    """Returns the first drawn case of an operator on codes, with inputs and without free sizes."""
    for number in range(1000):
        case = drawn(op, number)
        sizes = {operand.value.size for operand in case.operands if operand is not None}
        if (
            case.is_quantized
            and "i8" in case.dtypes
            and case.feed()
            and not case.free
            and all(sizes)
        ):
            return case.file(), None
    raise AssertionError(op)


def _file(path: Path) -> Model:
    return str(path), None


class Here:
    """A model on this machine, with inputs and results."""

    def __init__(self, make: Callable[[], Model]) -> None:
        source, feed = make()
        self.source, self.options = source, dict[str, Any](_LIMITS)
        if feed is not None and isinstance(source, str):
            self.options["inputs"] = {name: np.shape(array) for name, array in feed.items()}
        model = clew.compile(source, threads=1, **self.options)
        drawn = dict(zip(model.input_names, model.drawn(seed=1), strict=True)) | dict(feed or {})
        specs = zip(model.input_names, model.inputs, strict=True)
        self.inputs = {name: np.asarray(drawn[name], spec.dtype) for name, spec in specs}
        self.wanted = {name: np.asarray(array) for name, array in model.run(self.inputs).items()}

    def compared(self, target: str, folder: Path, times: float, *, codes: bool = False) -> str:
        """Returns how the results of the library for a target differ from those here. Tolerances
        are `times` the usual ones; `codes` may differ by one.
        """
        model = clew.compile(self.source, threads=1, target=target, **self.options)
        made = model.export_c(folder, "net")
        outputs = {name: (array.shape, array.dtype) for name, array in self.wanted.items()}
        start = time.perf_counter()
        found = run(target, made, self.inputs, outputs)
        seconds = time.perf_counter() - start
        measure = _codes if codes else _difference
        worst = max((measure(found[n], self.wanted[n]) for n in self.wanted), default=0.0)
        worst /= times
        if worst > 1:
            return f"WRONG: {worst:.3g} times the tolerance, {seconds:.1f} s"
        return f"{f'{worst:.2g} of the tolerance' if worst else 'equal bits'}, {seconds:.1f} s"


def _codes(found: Array, wanted: Array) -> float:
    """Returns the share of codes that differ by one, as a part of the tolerance; infinity if one
    differs by more.
    """
    return difference_of_codes(found, wanted) / _MOST_APART


def _difference(found: Array, wanted: Array) -> float:
    """Returns the largest difference as a part of the tolerance; infinity for other integers."""
    if wanted.dtype.kind not in "fV":
        return 0.0 if found.tobytes() == wanted.tobytes() else float("inf")
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~both], b[~both], equal_nan=True):
        return float("inf")
    scale = max(float(np.abs(b[both]).max(initial=0.0)), 1e-30)
    limit = _ABSOLUTE * scale + _RELATIVE * np.abs(b[both])
    return float((np.abs(a[both] - b[both]) / limit).max(initial=0.0))


def _lines(args: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    chosen = models()
    chosen.update({path.stem: partial(_file, path) for path in args.files})
    for name in args.models or list(chosen):
        here = Here(chosen[name])
        for target in args.targets:
            folder = Path(tempfile.mkdtemp())
            try:
                times = _TIMES_ROUNDED if name.startswith(_ROUNDED) else 1.0
                codes = name.startswith(_CODES)
                yield name, target, here.compared(target, folder, times, codes=codes)
            except (clew.ClewError, RuntimeError) as error:
                yield name, target, f"FAILED: {error}"
            finally:
                shutil.rmtree(folder)


def main() -> int:
    """Prints a line for each target and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    there = [target for target in TOOLS if not missing(target)]
    parser.add_argument("--targets", nargs="+", default=there, choices=list(TOOLS))
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--files", nargs="+", type=Path, default=[])
    failed = 0
    for name, target, said in _lines(parser.parse_args()):
        failed += said.startswith(("WRONG", "FAILED"))
        print(f"{name:28} {target:16} {said}", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
