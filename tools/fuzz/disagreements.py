"""Where ONNX Runtime or ONNX's reference is known to disagree with the standard's text.

One entry each: which engine, when (a narrow predicate on the first node that differs and what it was
given), why, and where the standard says so. The engine's results are then left aside. `UNDEFINED` is
what the standard leaves open: there the engines may differ as they like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fuzz import engines
from fuzz.case import Case
from fuzz.compare import _is_float
from fuzz.locate import Site, first_difference

ORT: Final = "onnxruntime"
REFERENCE: Final = "reference"
_ENGINES: Final = {ORT: engines.onnx_runtime, REFERENCE: engines.reference}


@dataclass(frozen=True)
class Disagreement:
    """What some engines do otherwise. `text` is the operator's page of the standard."""

    engines: tuple[str, ...]
    when: Callable[[Site], bool]
    reason: str
    text: str

    @property
    def link(self) -> str:
        """Where the standard says it."""
        return f"https://onnx.ai/onnx/operators/onnx__{self.text}.html"


def has_nan(value: Any) -> bool:
    """Whether an operand holds a NaN."""
    return (
        isinstance(value, np.ndarray)
        and _is_float(value)
        and bool(np.isnan(value.astype(np.float32)).any())
    )


_ORDERED: Final = (
    "ArgMax", "ArgMin", "Hardmax", "TopK", "Unique", "NonMaxSuppression", "MaxPool", "GlobalMaxPool",
    "ReduceMax", "ReduceMin", "Max", "Min", "Clip", "MaxRoiPool",
)  # fmt: skip


def nearly_constant(site: Site) -> bool:
    """Whether some of what is normalised together is nearly all the same."""
    x = site.operands[0].astype(np.float64)
    if site.is_a("LayerNormalization"):
        axis = site.attribute("axis", -1) % x.ndim
        rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    else:
        groups = site.attribute("num_groups", x.shape[1])
        rows = x.reshape(x.shape[0] * groups, -1)
    return bool(np.any(rows.var(-1) < 1e-2 * np.square(rows).mean(-1)))


KNOWN: Final[tuple[Disagreement, ...]] = (
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a(*_ORDERED) and has_nan(s.operands[0]),
        "the order of NaN among numbers is nowhere defined", "ArgMax",
    ),
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a("Cast", "CastLike") and has_nan(s.operands[0]),
        "what a NaN is as a whole number is nowhere defined", "Cast",
    ),
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a("LSTM", "GRU", "RNN") and any(map(has_nan, s.operands)),
        "clipping and activations of NaN", "LSTM",
    ),
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a("Gelu") and s.dtype == np.float64,
        "take the square root of 2/pi from the operator's definition, which has it in f32", "Gelu",
    ),
    Disagreement(
        (ORT,),
        lambda s: s.is_a("Sigmoid") and s.dtype == np.float64,
        "is right to about 3e-12 only", "Sigmoid",
    ),
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a("GroupNormalization", "InstanceNormalization", "LayerNormalization") and nearly_constant(s),
        "take the variance as the difference of two large numbers", "GroupNormalization",
    ),
    Disagreement(
        (ORT, REFERENCE),
        lambda s: s.is_a("DynamicQuantizeLinear") and not np.any(s.operands[0]),
        "scale of zeros: the text divides by zero", "DynamicQuantizeLinear",
    ),
    Disagreement(
        (ORT,),
        lambda s: s.is_a("LSTM", "GRU", "RNN") and b"Relu" in s.attribute("activations", []),
        "Relu of a NaN is zero there, and activations without a bound overflow", "GRU",
    ),
    Disagreement(
        (ORT,),
        lambda s: s.is_a("ReduceProd"),
        "saturates where whole numbers overflow, and keeps the sizes of empty tensors", "ReduceProd",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Unique") and s.attribute("axis") is not None and s.attribute("sorted", 1) == 0,
        "turns the result round along an axis, unsorted", "Unique",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Unsqueeze"), "takes axes in their order, which must not matter", "Unsqueeze",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Gemm") and np.dtype(s.dtype).kind in "iu",
        "goes through floats", "Gemm",
    ),
    Disagreement(
        (ORT,),
        lambda s: s.is_a("Dropout") and s.opset < 12,
        "gives a mask of zeros where nothing is dropped; the old text does not say", "Dropout",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Loop") and len(s.node.output) > len(s.node.input) - 2,
        "joins what is scanned along its first axis instead of stacking it", "Loop",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Loop") and (len(s.node.input) < 2 or not s.node.input[1]),
        "does not run a loop without a condition", "Loop",
    ),
    Disagreement(
        (ORT,),
        lambda s: s.is_a("MeanVarianceNormalization") and s.dtype == np.float16,
        "squares in f32, where f16 overflows", "MeanVarianceNormalization",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("BatchNormalization") and s.opset < 14,
        "takes the form for learning", "BatchNormalization",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("HardSwish", "Gelu", "Selu", "HardSigmoid", "Celu", "AffineGrid", "Erf") and s.dtype == np.float64,
        "computes partly in f32", "HardSwish",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("LRN"), "sums other channels than the text says, at the ends", "LRN",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: str(s.dtype) in ("float16", "bfloat16"),
        "computes in the narrow type step by step: sums of many, squares beyond its range", "ReduceSum",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("LpNormalization") and s.attribute("p", 2) == 1,
        "sums the elements, not their absolute values", "LpNormalization",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Softmax", "LogSoftmax", "Hardmax") and s.opset < 13,
        "applies the newest version, along one axis, where the old one counts all axes from its own on", "Softmax",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("GlobalMaxPool", "GlobalAveragePool") and np.ndim(s.operands[0]) != 4,
        "takes away the wrong number of axes but for images of two", "GlobalMaxPool",
    ),
    Disagreement(
        (ORT,),
        lambda s: s.is_a("MatMulInteger", "QLinearMatMul", "ConvInteger") and 0 in np.shape(s.operands[0]),
        "leaves the result of an empty sum unset", "MatMulInteger",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("GridSample") and s.operands[0].dtype == np.float64,
        "computes in f32", "GridSample",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("Conv") and s.attribute("auto_pad") is not None and s.attribute("dilations") is not None,
        "pads for a kernel without gaps", "Conv",
    ),
    Disagreement(
        (REFERENCE,),
        lambda s: s.is_a("AveragePool", "MaxPool", "LpPool")
        and (s.attribute("ceil_mode", 0) == 1 or bool({"dilations", "auto_pad"} & s.attributes)),
        "moves windows where sizes are rounded up, and pads for kernels without gaps", "AveragePool",
    ),
)  # fmt: skip


def excuse(engine: str, case: Case) -> str:
    """Returns why an engine's results do not count in a case, nothing where they do."""
    site = first_difference(case, _ENGINES[engine])
    if site is None:
        return ""
    return next((d.reason for d in KNOWN if engine in d.engines and d.when(site)), "")
