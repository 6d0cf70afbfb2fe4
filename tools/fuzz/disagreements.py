"""Known disagreements of ONNX Runtime or ONNX's reference with the standard's text.

Each entry has the engines, the reason, the page of the standard, and a narrow predicate on the
first node whose results differ and on its operands. The engine's results are then ignored. Some
entries name both engines: there the text does not define the behavior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fuzz import engines
from fuzz.compare import is_float_array
from fuzz.locate import Site, Whole, case_at

ORT: Final = "onnxruntime"
REFERENCE: Final = "reference"
_ENGINES: Final = {ORT: engines.onnx_runtime, REFERENCE: engines.reference}
_ALONE_RTOL: Final = 1e-3
Predicate = Callable[[Site], bool]


@dataclass(frozen=True)
class Disagreement:
    """A deviation of some engines. `page` is the operator's page of the standard."""

    engines: tuple[str, ...]
    when: Predicate
    reason: str
    page: str

    @property
    def link(self) -> str:
        """The link to the standard's page."""
        return f"https://onnx.ai/onnx/operators/onnx__{self.page}.html"


KNOWN: Final[list[Disagreement]] = []


def disagree(*names: str, page: str, reason: str) -> Callable[[Predicate], Predicate]:
    """Decorator: enters a predicate for engines."""

    def enter(when: Predicate) -> Predicate:
        KNOWN.append(Disagreement(names, when, reason, page))
        return when

    return enter


def excuse(engine: str, whole: Whole, few: bool = False) -> str:
    """Returns why an engine's results do not count in a case, empty if they do. After only a `few`
    perturbed runs, the answer may be unknown.
    """
    site = whole.differs(_ENGINES[engine], few)
    if site is None:
        return ""
    reasons = (d.reason for d in KNOWN if engine in d.engines and d.when(site))
    return next(reasons, "") or _alone(site)


def _alone(site: Site) -> str:
    """Returns something where ONNX Runtime agrees with clew on this node by itself: it had no say
    in the whole graph, or was given what differs within the tolerance from what clew was.
    """
    for at in (site, site.in_f32()):  # it has few kernels of f64
        alone = case_at(at)
        if alone is None:
            break
        try:
            found = engines.onnx_runtime(alone)
        except engines.CannotRun:
            continue
        pairs = [(np.asarray(found[n]), np.asarray(at.results[n])) for n in found]
        agree = all(
            f.shape == w.shape and f.dtype == w.dtype and f.dtype.kind in "biuf"
            and np.allclose(f, w, rtol=_ALONE_RTOL, atol=_ALONE_RTOL, equal_nan=True)
            for f, w in pairs
        )  # fmt: skip
        return "alone: ONNX Runtime agrees with clew on this node" if agree else ""
    return ""


def has_nan(value: Any) -> bool:
    """Whether an operand holds a NaN."""
    floats = isinstance(value, np.ndarray) and is_float_array(value)
    return floats and bool(np.isnan(value.astype(np.float64)).any())


def not_finite(value: Any) -> bool:
    """Whether an operand holds a NaN or an infinity."""
    floats = isinstance(value, np.ndarray) and is_float_array(value)
    return floats and not bool(np.isfinite(value.astype(np.float64)).all())


def nearly_constant(site: Site) -> bool:
    """Whether some values that are normalized together are nearly equal."""
    x = site.operands[0].astype(np.float64)
    if site.is_a("LayerNormalization"):
        axis = site.attribute("axis", -1) % x.ndim
        rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    else:
        groups = site.attribute("num_groups", x.shape[1])
        rows = x.reshape(x.shape[0] * groups, -1)
    return bool(np.any(rows.var(-1) < 1e-2 * np.square(rows).mean(-1)))


def quotients_past_i32(site: Site) -> bool:
    """Whether some quotient of the first two operands is not finite, or past 32 bits."""
    x, scale = (o.astype(np.float64) for o in site.operands[:2])
    least = np.abs(scale).min(initial=np.inf)
    with np.errstate(all="ignore"):
        return not bool(np.all(np.abs(x) / least < 2.0**31))


def between_pixels(site: Site) -> bool:
    """Whether the place of some pixel of a `Resize` lies where the nearest one changes."""
    (result,) = (np.asarray(r) for r in site.results.values())
    how = site.attribute("coordinate_transformation_mode", b"half_pixel")
    given = site.operands[2] if len(site.operands) > 2 else None
    scales = (
        given.astype(np.float64)
        if given is not None and given.size == result.ndim
        else np.array(result.shape) / np.maximum(np.shape(site.operands[0]), 1)
    )
    for size, out, scale in zip(np.shape(site.operands[0]), result.shape, scales, strict=True):
        places = np.arange(out)
        if how == b"align_corners":
            at = places * (size - 1) / max(out - 1, 1)
        elif how == b"asymmetric":
            at = places / scale
        else:
            at = (places + 0.5) / scale - 0.5
        if scale != 1 and np.any(np.abs(2 * at - np.round(2 * at)) < 1e-5):
            return True
    return False


_ORDERED: Final = (
    "ArgMax", "ArgMin", "Hardmax", "TopK", "Unique", "NonMaxSuppression", "MaxPool",
    "GlobalMaxPool", "ReduceMax", "ReduceMin", "Max", "Min", "Clip", "MaxRoiPool", "RoiAlign",
    "Ends",
)  # fmt: skip
_SUMS: Final = (
    "Attention", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "CumSum", "Einsum",
    "Gemm", "GlobalAveragePool", "GlobalLpPool", "GroupNormalization", "InstanceNormalization",
    "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization", "LpPool", "MatMul", "Mean",
    "MeanVarianceNormalization", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Resize",
    "Softmax", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "CumProd", "Gelu",
)  # fmt: skip


# --- what the text leaves open --------------------------------------------------------------------


@disagree(ORT, REFERENCE, page="ArgMax", reason="the order of NaN among numbers is undefined")
def _(s: Site) -> bool:
    scatter = s.attribute("reduction") in (b"max", b"min")
    return (scatter or s.is_a(*_ORDERED)) and any(map(has_nan, s.operands))


@disagree(ORT, REFERENCE, page="Cast", reason="what a NaN is as a whole number is undefined")
def _(s: Site) -> bool:
    return s.is_a("Cast", "CastLike") and has_nan(s.operands[0])


@disagree(ORT, REFERENCE, page="LSTM", reason="clipping and activations of NaN")
def _(s: Site) -> bool:
    return s.is_a("LSTM", "GRU", "RNN") and any(map(has_nan, s.operands))


@disagree(
    ORT, REFERENCE, page="DynamicQuantizeLinear", reason="of zeros alone the text divides by zero"
)
def _(s: Site) -> bool:
    x = s.operands[0] if s.is_a("DynamicQuantizeLinear") else None
    return x is not None and (not np.any(x) or not_finite(x))


@disagree(
    ORT, REFERENCE, page="Resize", reason="whether a pixel of weight zero that is not finite counts"
)
def _(s: Site) -> bool:
    return s.is_a("Resize", "Upsample") and not_finite(s.operands[0])


@disagree(
    ORT, REFERENCE, page="QuantizeLinear", reason="what no 32-bit integer holds; the text saturates"
)
def _(s: Site) -> bool:
    return s.is_a("QuantizeLinear") and quotients_past_i32(s)


@disagree(ORT, REFERENCE, page="GridSample", reason="pixels and places not finite")
def _(s: Site) -> bool:
    return s.is_a("GridSample") and any(map(not_finite, s.operands))


@disagree(
    ORT, page="Dropout", reason="a mask of zeros where nothing is dropped; old texts are mute"
)
def _(s: Site) -> bool:
    return s.is_a("Dropout") and s.opset < 12


# --- accuracy --------------------------------------------------------------------


@disagree(
    ORT, REFERENCE, page="Gelu", reason="the root of 2/pi as the definition has it, in f32, for f64"
)
def _(s: Site) -> bool:
    return s.is_a("Gelu") and s.dtype == np.float64


@disagree(
    ORT, REFERENCE, page="GroupNormalization", reason="variance as the difference of two means"
)
def _(s: Site) -> bool:
    norms = ("GroupNormalization", "InstanceNormalization", "LayerNormalization")
    return s.is_a(*norms) and nearly_constant(s)


@disagree(
    ORT, page="MeanVarianceNormalization", reason="roots what rounding made negative; f16 in f32"
)
def _(s: Site) -> bool:
    return s.is_a("MeanVarianceNormalization")


@disagree(
    ORT, REFERENCE, page="GroupNormalization", reason="stage one of f64 in f32, by its stash_type"
)
def _(s: Site) -> bool:
    return s.is_a("GroupNormalization", "LayerNormalization") and s.dtype == np.float64


@disagree(ORT, REFERENCE, page="BlackmanWindow", reason="ends that are nearly zero")
def _(s: Site) -> bool:
    return s.is_a("BlackmanWindow", "HannWindow", "HammingWindow")


@disagree(ORT, page="Sigmoid", reason="right to about 3e-12 only, or in f32")
def _(s: Site) -> bool:
    return s.is_a("Sigmoid", "Shrink") and s.dtype == np.float64


@disagree(ORT, page="Shrink", reason="whole numbers through floats")
def _(s: Site) -> bool:
    return s.is_a("Shrink") and s.dtype is not None and s.dtype.kind in "iu"


@disagree(ORT, REFERENCE, page="DFT", reason="right to about 1e-6 of the largest only")
def _(s: Site) -> bool:
    return s.is_a("DFT", "STFT")


@disagree(REFERENCE, page="HardSwish", reason="f64 computed partly in f32")
def _(s: Site) -> bool:
    ops = (
        "HardSwish", "Selu", "HardSigmoid", "Celu", "AffineGrid", "Erf", "GridSample",
        "DeformConv", "RoiAlign",
    )  # fmt: skip
    return s.is_a(*ops) and s.dtype == np.float64


@disagree(REFERENCE, page="ReduceSum", reason="sums of many in f16 or bf16, step by step")
def _(s: Site) -> bool:
    return s.is_a(*_SUMS) and str(s.dtype) in ("float16", "bfloat16")


# --- ONNX Runtime's mistakes --------------------------------------------------------------------


@disagree(ORT, page="GRU", reason="Relu of a NaN is zero")
def _(s: Site) -> bool:
    return s.is_a("LSTM", "GRU", "RNN") and b"Relu" in s.attribute("activations", [])


@disagree(ORT, page="ReduceProd", reason="saturates whole numbers")
def _(s: Site) -> bool:
    whole = s.dtype is not None and s.dtype.kind in "iu"
    return s.is_a("ReduceProd", "ReduceSum", "ReduceSumSquare", "ReduceL1") and whole


@disagree(ORT, page="MaxPool", reason="`auto_pad` SAME: sizes as if kernels had no gaps")
def _(s: Site) -> bool:
    same = s.attribute("auto_pad", b"").startswith(b"SAME")
    return s.is_a("MaxPool", "LpPool", "AveragePool") and same and "dilations" in s.attributes


@disagree(ORT, page="MaxPool", reason="SAME: cuts rows off where strides are longer than windows")
def _(s: Site) -> bool:
    same = s.attribute("auto_pad", b"").startswith(b"SAME")
    steps, sizes = s.attribute("strides", []), s.attribute("kernel_shape", [])
    longer = any(step > size for step, size in zip(steps, sizes, strict=False))
    return s.is_a("MaxPool", "LpPool", "AveragePool") and same and longer


@disagree(ORT, page="Attention", reason="rows that are masked out whole: NaN, where they are zero")
def _(s: Site) -> bool:
    mask = s.operands[3] if s.is_a("Attention") and len(s.operands) > 3 else None
    if mask is None or mask.dtype != bool:
        return False
    seen = np.tril(mask) if s.attribute("is_causal", 0) else mask
    return not seen.any(-1).all()


@disagree(ORT, page="InstanceNormalization", reason="`x * a + b`, of which `a` is past f32")
def _(s: Site) -> bool:
    norms = s.node.op_type.endswith("Normalization")
    return norms and any(map(not_finite, s.operands))


@disagree(
    ORT, REFERENCE, page="Det", reason="eliminates in another order: of infinities, NaN or infinity"
)
def _(s: Site) -> bool:
    return s.is_a("Det") and not_finite(s.operands[0])


@disagree(ORT, page="DeformConv", reason="of a pixel that is not finite, weight zero, NaN")
def _(s: Site) -> bool:
    return s.is_a("DeformConv") and any(map(not_finite, s.operands))


@disagree(ORT, page="Sign", reason="of a NaN, zero")
def _(s: Site) -> bool:
    return s.is_a("Sign") and has_nan(s.operands[0])


@disagree(ORT, page="ReduceLogSumExp", reason="of an infinity and a NaN, the infinity")
def _(s: Site) -> bool:
    return s.is_a("ReduceLogSumExp") and has_nan(s.operands[0])


@disagree(
    ORT, REFERENCE, page="LogSoftmax", reason="beside an infinity: NaN, or the logarithm of zero"
)
def _(s: Site) -> bool:
    return s.is_a("LogSoftmax", "Softmax") and not_finite(s.operands[0])


@disagree(REFERENCE, page="LinearClassifier", reason="the best of scores that are NaN")
def _(s: Site) -> bool:
    return s.is_a("LinearClassifier") and not_finite(s.operands[0])


@disagree(ORT, page="LRN", reason="takes what leaves a window off its sum: NaN of infinities")
def _(s: Site) -> bool:
    return s.is_a("LRN") and not_finite(s.operands[0])


@disagree(ORT, page="Resize", reason="places in f32, which miss the whole ones and the halves")
def _(s: Site) -> bool:
    nearest = s.attribute("mode", b"nearest") == b"nearest"
    return s.is_a("Resize") and nearest and between_pixels(s)


@disagree(ORT, REFERENCE, page="GRU", reason="beside what is not finite: numbers of clipped sums")
def _(s: Site) -> bool:
    return s.is_a("LSTM", "GRU", "RNN") and any(not_finite(o) for o in s.operands if o is not None)


@disagree(ORT, page="Mod", reason="`fmod` of 64-bit integers in f64")
def _(s: Site) -> bool:
    return s.is_a("Mod") and s.dtype in (np.int64, np.uint64) and s.attribute("fmod", 0) == 1


@disagree(ORT, page="LSTM", reason="does not clip what goes into the last activation")
def _(s: Site) -> bool:
    return s.is_a("LSTM") and "clip" in s.attributes


@disagree(ORT, page="StringSplit", reason="an empty text has no parts, not one that is empty")
def _(s: Site) -> bool:
    return s.is_a("StringSplit")


@disagree(ORT, page="ReduceMax", reason="empty tensors keep sizes that are reduced")
def _(s: Site) -> bool:
    return s.node.op_type.startswith("Reduce") and 0 in np.shape(s.operands[0])


@disagree(ORT, page="MatMulInteger", reason="the result of an empty sum is not set")
def _(s: Site) -> bool:
    ops = ("MatMul", "MatMulInteger", "QLinearMatMul", "ConvInteger")
    return s.is_a(*ops) and 0 in np.shape(s.operands[0])


# --- the reference's mistakes --------------------------------------------------------------------


@disagree(REFERENCE, page="Optional", reason="keeps a tensor in a list of one")
def _(s: Site) -> bool:
    return s.is_a("Optional", "OptionalGetElement")


@disagree(
    REFERENCE,
    page="Unique",
    reason="unsorted: sorts a lone result, takes rows in others",
)
def _(s: Site) -> bool:
    return s.is_a("Unique") and s.attribute("sorted", 1) == 0


@disagree(REFERENCE, page="Unsqueeze", reason="takes axes in their order, which must not matter")
def _(s: Site) -> bool:
    return s.is_a("Unsqueeze")


@disagree(REFERENCE, page="Gemm", reason="whole numbers go through floats")
def _(s: Site) -> bool:
    return s.is_a("Gemm") and s.dtype is not None and s.dtype.kind in "iu"


@disagree(
    REFERENCE, page="Loop", reason="joins what is scanned along its first axis, not a new one"
)
def _(s: Site) -> bool:
    return s.is_a("Loop") and len(s.node.output) > len(s.node.input) - 2


@disagree(REFERENCE, page="Loop", reason="does not run a loop without a condition")
def _(s: Site) -> bool:
    loops = [n for n in s.nodes if n.op_type == "Loop"]
    return any(len(n.input) < 2 or not n.input[1] for n in loops)


@disagree(
    ORT, page="Loop", reason="the stacks of a loop of no iterations: it loses the sizes of the body"
)
def _(s: Site) -> bool:
    return s.is_a("Loop") and any(0 in np.shape(r)[:1] for r in s.results.values())


@disagree(REFERENCE, page="BatchNormalization", reason="old opsets: takes the form for learning")
def _(s: Site) -> bool:
    return s.is_a("BatchNormalization") and s.opset < 14


@disagree(REFERENCE, page="ReduceSumSquare", reason="small whole numbers become i64")
def _(s: Site) -> bool:
    small = s.dtype is not None and s.dtype.kind in "iu" and s.dtype.itemsize < 8
    return s.is_a("ReduceSumSquare", "ReduceSum", "ReduceL1", "ReduceProd") and small


@disagree(REFERENCE, page="LogSoftmax", reason="the logarithm of what underflowed")
def _(s: Site) -> bool:
    return s.is_a("LogSoftmax") and any(np.any(np.asarray(r) < -80) for r in s.results.values())


@disagree(REFERENCE, page="LRN", reason="sums other channels at the ends")
def _(s: Site) -> bool:
    return s.is_a("LRN")


@disagree(REFERENCE, page="LpNormalization", reason="sums elements, not their absolute values")
def _(s: Site) -> bool:
    return s.is_a("LpNormalization") and s.attribute("p", 2) == 1


@disagree(REFERENCE, page="Softmax", reason="old opsets: one axis where all from it on are meant")
def _(s: Site) -> bool:
    return s.is_a("Softmax", "LogSoftmax", "Hardmax") and s.opset < 13


@disagree(REFERENCE, page="GlobalMaxPool", reason="wrong axes but for images of two")
def _(s: Site) -> bool:
    return s.is_a("GlobalMaxPool", "GlobalAveragePool") and np.ndim(s.operands[0]) != 4


@disagree(REFERENCE, page="Conv", reason="pads for a kernel without gaps")
def _(s: Site) -> bool:
    return s.is_a("Conv") and {"auto_pad", "dilations"} <= s.attributes


@disagree(REFERENCE, page="MaxPool", reason="places in a plane, not in the whole tensor")
def _(s: Site) -> bool:
    return s.is_a("MaxPool") and len(s.node.output) > 1


@disagree(REFERENCE, page="AveragePool", reason="moves windows for sizes rounded up; uneven pads")
def _(s: Site) -> bool:
    odd = {"dilations", "auto_pad", "pads"} & s.attributes or s.attribute("ceil_mode", 0) == 1
    return s.is_a("AveragePool", "MaxPool", "LpPool") and bool(odd)


@disagree(REFERENCE, page="LSTM", reason="no clipping, lengths, directions or activations")
def _(s: Site) -> bool:
    lengths = len(s.operands) > 4 and s.operands[4] is not None
    return s.is_a("LSTM", "GRU", "RNN") and (
        lengths or bool({"clip", "direction", "activations"} & s.attributes)
    )


@disagree(REFERENCE, page="GridSample", reason="cubic weights at the border")
def _(s: Site) -> bool:
    return s.is_a("GridSample") and s.attribute("mode", b"") in (b"cubic", b"bicubic")


@disagree(REFERENCE, page="Resize", reason="weights in f32")
def _(s: Site) -> bool:
    return s.is_a("Resize") and s.dtype == np.float64


@disagree(REFERENCE, page="Resize", reason="one pixel of `pytorch_half_pixel` where there are more")
def _(s: Site) -> bool:
    return s.is_a("Resize") and "coordinate_transformation_mode" in s.attributes


@disagree(REFERENCE, page="aionnxml_Scaler", reason="keeps whole numbers whole")
def _(s: Site) -> bool:
    return s.is_a("Scaler", "FeatureVectorizer") and s.dtype != np.float32


@disagree(ORT, REFERENCE, page="aionnxml_Normalizer", reason="rows of zeros; largest of absolutes")
def _(s: Site) -> bool:
    return s.is_a("Normalizer") and s.attribute("norm") == b"MAX"


@disagree(REFERENCE, page="StringNormalizer", reason="takes accents away, which nothing says")
def _(s: Site) -> bool:
    return s.is_a("StringNormalizer")


@disagree(REFERENCE, page="Det", reason="f64 for narrow floats")
def _(s: Site) -> bool:
    return s.is_a("Det") and s.dtype != np.float32


@disagree(ORT, page="Gemm", reason="an empty product leaves beta out")
def _(s: Site) -> bool:
    return s.is_a("Gemm") and 0 in np.shape(s.operands[0])
