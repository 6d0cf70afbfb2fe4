"""Models as ONNX Runtime's own tools save them: optimized at each level, fused for transformers,
quantized in each form. They are made of the zoo's models, into a folder that the caller chooses.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx

import zoo
from clew.support.errors import ClewError
from exports.by_node import off_by_more
from exports.comparing import (
    JUDGED,
    TOLERANCE,
    PeerError,
    Result,
    compare,
    onnxruntime_session,
    worst,
)

_STEP: Final = 1 / 127  # of the largest value: a step of 8 bits
_CALIBRATED: Final = 4  # feeds
_BLOCK: Final = 32
Make = Callable[["Case", Path], Path]


class NotMade(Exception):
    """ONNX Runtime's tool failed, or changed nothing."""


@dataclass(frozen=True)
class Case:
    """A model of the zoo, and what is done to it."""

    model: str
    variant: str

    def __str__(self) -> str:
        return f"{self.model}.{self.variant}"

    def made(self, folder: Path) -> Path:
        """Returns the file. Raises NotMade."""
        path = zoo.path(self.model)
        for name in self.variant.split("+"):
            try:
                path = _STEPS[name](self, path, folder / f"{self}.{name}.onnx")
            except NotMade:
                raise
            except Exception as error:  # whatever these tools raise
                raise NotMade(f"{name}: {type(error).__name__}: {str(error)[:200]}") from error
        return path


def cases(models: list[str], variants: list[str]) -> Iterator[Case]:
    """Yields the variants of the models; of the quick ones, and in all forms, where none is named.

    Raises KeyError for an unknown name.
    """
    for name in models:
        if name not in zoo.names():
            raise KeyError(name)
    for variant in variants:
        if variant not in VARIANTS:
            raise KeyError(variant)
    for model in models or zoo.names("quick"):
        yield from (Case(model, variant) for variant in variants or VARIANTS)


def checked(case: Case, folder: Path) -> Result:
    """Returns how clew and ONNX Runtime agree. Of a quantized model, `one step` says that they
    differ by no more than a step of the largest value, and `rounds` that they do so with the
    optimizations of both off, in most runs: a sum on the border of two steps falls to either side
    with the order of its terms, and later layers amplify that. `by node` says that each node does
    so on the inputs that it has in ONNX Runtime.
    """
    try:
        path = case.made(folder)
    except NotMade as error:
        return Result("not made", str(error))
    try:
        found = compare(path, lambda seed: zoo.inputs(case.model, seed))
    except PeerError as error:
        return Result("peer fails", str(error)[:200])
    except ClewError as error:
        return Result("refused", str(error))
    except Exception as error:
        return Result("fails", f"{type(error).__name__}: {error}")
    if found.status in ("differs", "noisy") and case.variant.split("+")[0] in _QUANTIZED:
        if found.difference <= _STEP:
            found.status = "one step"
        elif _without_passes(case, path) <= _STEP:
            found.status = "rounds"
        elif not off_by_more(path, zoo.inputs(case.model, JUDGED[0]), TOLERANCE):
            found.status = "by node"
    return found


def _without_passes(case: Case, path: Path) -> float:
    """Returns the median of differences with the optimizations of both off."""
    import clew  # noqa: PLC0415 - as in `compare`

    compiled = clew.compile(path, threads=1, opt_level=0)
    peer = onnxruntime_session(path, optimized=False)
    feeds = [zoo.inputs(case.model, seed) for seed in JUDGED]
    return statistics.median(worst(list(compiled.run(f).values()), peer(f)) for f in feeds)


def contrib(path: Path) -> list[str]:
    """Returns the types of a model's nodes that are ONNX Runtime's own."""
    graph = onnx.load(path, load_external_data=False).graph
    return sorted(
        {n.op_type for n in graph.node if "microsoft" in n.domain or n.op_type.startswith("Simpl")}
    )


# --- steps ----------------------------------------------------------------------------------------


def _level(name: str) -> Callable[[Case, Path, Path], Path]:
    def make(case: Case, source: Path, target: Path) -> Path:
        import onnxruntime  # noqa: PLC0415 - a peer

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(target)
        level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{name.upper()}")
        options.graph_optimization_level = level
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return target

    return make


def _fused(case: Case, source: Path, target: Path) -> Path:
    from onnxruntime.transformers import optimizer  # noqa: PLC0415 - a peer

    kind = next((k for k in ("gpt2", "vit", "bert") if k in case.model), "bert")
    made = optimizer.optimize_model(str(source), model_type=kind, opt_level=0)
    made.save_model_to_file(str(target))
    if not contrib(target):
        raise NotMade("nothing was fused")
    return target


def _dynamic(case: Case, source: Path, target: Path) -> Path:
    from onnxruntime import quantization  # noqa: PLC0415 - a peer

    quantization.quantize_dynamic(_prepared(source, target), target)
    return target


def _static(form: str) -> Callable[[Case, Path, Path], Path]:
    def make(case: Case, source: Path, target: Path) -> Path:
        from onnxruntime import quantization  # noqa: PLC0415 - a peer

        class Feeds(quantization.CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self._left = [zoo.inputs(case.model, 100 + n) for n in range(_CALIBRATED)]

            def get_next(self) -> dict[str, Any] | None:
                return self._left.pop() if self._left else None

        kind = getattr(quantization.QuantFormat, form)
        prepared = _prepared(source, target)
        quantization.quantize_static(prepared, target, Feeds(), quant_format=kind)
        return target

    return make


def _prepared(source: Path, target: Path) -> Path:
    """Returns a model with the shapes that quantization requires."""
    path = target.with_suffix(".shaped.onnx")
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(source)), path)
    return path


def _four_bits(case: Case, source: Path, target: Path) -> Path:
    from onnxruntime.quantization.matmul_nbits_quantizer import (  # noqa: PLC0415 - a peer
        MatMulNBitsQuantizer,
    )

    made = MatMulNBitsQuantizer(onnx.load(source), block_size=_BLOCK, is_symmetric=False)
    made.process()
    made.model.save_model_to_file(str(target))
    if not contrib(target):
        raise NotMade("nothing was quantized")
    return target


_STEPS: Final[dict[str, Callable[[Case, Path, Path], Path]]] = {
    "basic": _level("basic"),
    "extended": _level("extended"),
    "all": _level("all"),
    "fused": _fused,
    "dynamic": _dynamic,
    "qdq": _static("QDQ"),
    "qoperator": _static("QOperator"),
    "4bits": _four_bits,
}
_QUANTIZED: Final = ("dynamic", "qdq", "qoperator")
VARIANTS: Final = (
    "basic",
    "extended",
    "all",
    "fused",
    "dynamic",
    "dynamic+all",
    "qdq",
    "qdq+all",
    "qoperator",
    "qoperator+all",
    "4bits",
)
"""The transformations of a model, applied in order."""
