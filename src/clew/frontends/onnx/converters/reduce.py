"""Reductions, scans along an axis, softmax and selection of the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.lowering.reduction import of_dtype, reduced
from clew.frontends.onnx.held import held
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import product
from clew.ir.expr import Expr
from clew.ir.types import is_float, is_integer
from clew.ops.math.ranking import selects_by_rank
from clew.vocabularies.onnx import REDUCTIONS
from clew.vocabularies.same import read

# For integers these are computed in f64 and truncated.
_OF_FLOATS: Final = ("l2", "log_sum", "logsumexp")


def _reduction(op: str) -> Callable[[Layer], Result]:
    def convert(layer: Layer) -> Result:
        x, dtype = layer.input(0), layer.type(0).dtype
        if op in _OF_FLOATS and is_integer(dtype):
            x = cast(x, "f64")
        skip = "noop_with_empty_axes" in layer.schema.attributes and layer.flag(
            "noop_with_empty_axes"
        )
        given = "axes" not in layer.schema.attributes and layer.optional(1) is not None
        if given and layer.known(1) is None:
            return _over_unknown(layer, x, op, skip)
        axes = layer.ints_of("axes", 1)
        rank = layer.rank()
        chosen = tuple(layer.positive(a, rank) for a in axes or ()) if rank else ()
        if not chosen and not skip:
            chosen = tuple(range(rank))
        return cast(reduced(op, x, chosen, layer.flag("keepdims")), dtype)

    return convert


def _over_unknown(layer: Layer, x: Expr, op: str, skip: bool) -> Expr:
    """Reduces over axes known only in the run. Without `skip`, their number must be known: an empty
    list means all axes.
    """
    keepdims = layer.flag("keepdims")
    if layer.type(1).shape == (0,):
        found = reduced(op, x, () if skip else tuple(range(layer.rank())), keepdims)
    else:
        if not skip and not layer.type(1).is_static:
            layer.value(1, "over which axes")  # none would be all
        found = held(layer, of_dtype(op, x), [x], {"axes": 1}, keepdims=keepdims)
    return cast(found, layer.type(0).dtype)


for _pair in read(REDUCTIONS):
    converter(_pair.foreign)(_reduction(_pair.op))


@converter("CumProd", "CumSum")
def cumulative(layer: Layer) -> Result:
    """Products or sums up to each element along an axis."""
    op, flags = layer.op.lower(), {name: layer.flag(name) for name in ("exclusive", "reverse")}
    if layer.known(1) is None:
        return held(layer, op, [layer.input(0)], {"axis": 1}, **flags)
    axis = layer.positive(layer.one_int(1, "the axis"), layer.rank())
    return call(op, layer.input(0), axis=axis, **flags)


@converter("TopK", since=10)
def top_k(layer: Layer) -> Result:
    """The `k` largest or smallest elements along an axis, and their indices."""
    largest = "largest" not in layer.schema.attributes or layer.flag("largest")
    return _top_k(layer, layer.input(1), largest)


@converter("TopK")
def top_k_by_attribute(layer: Layer) -> Result:
    """`k` as an attribute, to version 9."""
    return _top_k(layer, scalar(layer.integer("k"), "i64"), largest=True)


def _top_k(layer: Layer, k: Expr, largest: bool) -> Result:
    axis, shape = layer.axis(), layer.type(0).shape
    ranks = selects_by_rank(shape[axis], k, is_last=axis % len(shape) == len(shape) - 1)
    op = "top_k_ranked" if ranks else "top_k"
    count = {"k": reshaped(k, ())}
    return fields(held(layer, op, [layer.input(0)], count, axis=axis, largest=largest), 2)


# --- softmax --------------------------------------------------------------------------------------


def _along_axis(layer: Layer, body: Callable[[Expr, int], Expr]) -> Expr:
    """Applies `body(x, axis)`; before version 13 all axes from the given one on count as one."""
    x, axis, rank = layer.input(0), layer.axis(), layer.rank()
    if layer.version >= 13 or axis == rank - 1:
        return body(x, axis)
    shape = layer.type(0).shape
    rows = reshaped(x, (product(shape[:axis]), product(shape[axis:])))
    return reshaped(body(rows, 1), shape)


@converter("Softmax")
def softmax(layer: Layer) -> Result:
    """Exponentials that sum to 1."""
    return _along_axis(layer, lambda x, axis: call("nn.softmax", x, axis=axis))


@converter("LogSoftmax")
def log_softmax(layer: Layer) -> Result:
    """Logarithm of softmax."""
    return _along_axis(layer, lambda x, axis: call("nn.log_softmax", x, axis=axis))


@converter("Hardmax")
def hardmax(layer: Layer) -> Result:
    """1 at the first largest element, else 0."""
    return _along_axis(layer, lambda x, axis: _first_largest(layer, x, axis))


def _first_largest(layer: Layer, x: Expr, axis: int) -> Expr:
    size = x.tensor.shape[axis]
    places = call("arange", start=0, stop=size, step=1, dtype="i64")
    along = reshaped(places, (size, *(1,) * (x.tensor.rank - axis - 1)))
    if isinstance(size, int) and size:
        best = call("argmax", x, axis=axis, keepdims=True, select_last=False)
    else:  # an axis without elements has no largest element, and needs none
        top = call("max", x, axes=(axis,), keepdims=True)
        found = call("equal", x, top)
        if is_float(x.tensor.dtype):
            found = call("logical_or", found, call("isnan", x))
        most = scalar(np.iinfo(np.int64).max, "i64")
        best = call("min", call("where", found, along, most), axes=(axis,), keepdims=True)
    return cast(call("equal", along, best), x.tensor.dtype)


@converter("LpNormalization")
def lp_normalization(layer: Layer) -> Result:
    """`x` over its norm along an axis; 0 where the norm is 0."""
    x, p = layer.input(0), layer.integer("p")
    if p not in (1, 2):
        raise layer.wrong(f"has p={p}, expected 1 or 2")
    norm = call(f"l{p}", x, axes=(layer.axis(),), keepdims=True)
    zero, one = (scalar(v, layer.type(0).dtype) for v in (0, 1))
    return call("divide", x, call("where", call("equal", norm, zero), one, norm))


@converter("MeanVarianceNormalization")
def mean_variance_normalization(layer: Layer) -> Result:
    """`(x - mean) / (deviation + 1e-9)` over axes."""
    x, dtype = layer.input(0), layer.type(0).dtype
    axes = tuple(layer.positive(a, layer.rank()) for a in layer.integers("axes"))
    centered = call("subtract", x, call("mean", x, axes=axes, keepdims=True))
    squares = call("multiply", centered, centered)
    deviation = call("sqrt", call("mean", squares, axes=axes, keepdims=True))
    return call("divide", centered, call("add", deviation, scalar(1e-9, dtype)))
