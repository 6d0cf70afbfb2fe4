"""Operators that ONNX Runtime had before ONNX, or for a few models; most are ONNX's by another name
and use ONNX's converters.
"""

from __future__ import annotations

from clew.frontends.building import call, fields, reshaped, scalar
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.converters.quantized import dequantize_linear, quantize_linear
from clew.frontends.onnx.converters.transform import arange, gather_nd, pad_by_inputs, trilu
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ops.common import differ

converter("Trilu", domain=MICROSOFT)(trilu)
converter("GatherND", domain=MICROSOFT)(gather_nd)
converter("Pad", domain=MICROSOFT)(pad_by_inputs)
converter("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
converter("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


@converter("Range", domain=MICROSOFT)
def range_of_numbers(layer: Layer) -> Result:
    """ONNX's Range, in steps of 1 by default."""
    step = layer.optional(2)
    if step is None:
        step = scalar(1, layer.type(0).dtype)
    return arange(layer.with_inputs(layer.input(0), layer.input(1), step))


@converter("ExpandDims", domain=MICROSOFT)
def expand_dims(layer: Layer) -> Result:
    """Inserts an axis of size 1."""
    shape = layer.type(0).shape
    axis = layer.positive(layer.one_int(1, "the axis"), len(shape) + 1)
    return reshaped(layer.input(0), (*shape[:axis], 1, *shape[axis:]))


@converter("Unique", domain=MICROSOFT)
def unique(layer: Layer) -> Result:
    """The distinct elements in the order of their first occurrence, the number of each element
    among them, and their counts.
    """
    if layer.rank() != 1:
        raise layer.wrong(f"takes one axis, got {layer.type(0)}")
    values, _, places, counts = fields(call("unique", layer.input(0), axis=None, sort=False), 4)
    return [values, places, counts]


@converter("Inverse", domain=MICROSOFT)
def inverse(layer: Layer) -> Result:
    """Inverses of matrices."""
    return call("inverse", layer.input(0))


@converter("CDist", domain=MICROSOFT)
def distances(layer: Layer) -> Result:
    """Distances between all rows of one matrix and all rows of another."""
    a, b, metric = layer.input(0), layer.input(1), layer.text("metric")
    if metric not in ("sqeuclidean", "euclidean"):
        raise layer.unsupported(f"with the metric {metric!r}")
    if layer.rank(0) != 2 or layer.rank(1) != 2 or differ(a.tensor.shape[1], b.tensor.shape[1]):
        raise layer.wrong(f"compares rows of {a.type} and {b.type}")
    rows, width = a.tensor.shape
    apart = call("subtract", reshaped(a, (rows, 1, width)), b)
    total = call("sum", call("multiply", apart, apart), axes=(2,), keepdims=False)
    return call("sqrt", total) if metric == "euclidean" else total


# --- Fourier transforms ---------------------------------------------------------------------------


@converter("Rfft", domain=MICROSOFT)
def rfft(layer: Layer) -> Result:
    """The transform of real numbers over the last axes: half of the bins of the last axis, as pairs
    of numbers along a new axis.
    """
    x, count = layer.input(0), _transformed_axes(layer, layer.rank())
    rank = layer.rank()
    found = call("dft", reshaped(x, (*x.tensor.shape, 1)), axis=rank - 1, onesided=True)
    for n in range(1, count):
        found = call("dft", found, axis=rank - 1 - n)
    return found


@converter("Irfft", domain=MICROSOFT)
def irfft(layer: Layer) -> Result:
    """The inverse of Rfft, with an even number of elements in the last axis."""
    x, rank = layer.input(0), layer.rank() - 1
    if rank < 1 or differ(x.tensor.shape[-1], 2):
        raise layer.wrong(f"takes pairs of numbers, got {x.type}")
    for n in range(1, _transformed_axes(layer, rank)):
        x = call("dft", x, axis=rank - 1 - n, inverse=True)
    found = call("dft", x, axis=rank - 1, inverse=True, onesided=True)
    return reshaped(found, found.tensor.shape[:-1])


def _transformed_axes(layer: Layer, rank: int) -> int:
    """Returns the number of last axes that a transform covers."""
    count = layer.integer("signal_ndim")
    if not 1 <= count <= rank:
        raise layer.wrong(f"transforms {count} axes of {layer.type(0)}")
    if layer.flag("normalized") or not layer.flag("onesided"):
        raise layer.unsupported("normalized, or with all bins")
    return count
