"""Scatter, segment reductions and embedding lookups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, filled, reshaped, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ir.types import integer_limits, is_float, to_numpy
from clew.ops.common import differ

_SUM, _MEAN, _ROOT = 0, 1, 2


@converter("SCATTER_ND")
def scatter_nd(layer: TfliteLayer) -> Result:
    """Adds slices to zeros of a shape, at given indices."""
    updates, shape = layer.input(1), layer.dims(2, "the shape")
    dtype = updates.tensor.dtype
    if dtype == "bool":
        zeros = filled(0, "u8", shape)
        found = call("scatter_nd", zeros, layer.input(0), cast(updates, "u8"), reduction="max")
        return cast(found, dtype)
    zeros = filled(0, dtype, shape)
    return call("scatter_nd", zeros, layer.input(0), updates, reduction="add")


@converter("SPARSE_TO_DENSE", codes=True)
def sparse_to_dense(layer: TfliteLayer) -> Result:
    """A tensor of one value, with others at given indices."""
    places, shape = layer.input(0), layer.dims(1, "the shape")
    values, default = layer.input(2), reshaped(layer.input(3), ())
    if places.tensor.rank < 2:
        count = product(places.tensor.shape)
        places = reshaped(places, (count, 1))
    if places.tensor.rank != 2 or places.tensor.shape[1] != len(shape):
        raise layer.wrong(f"has places {layer.type(0)} in {len(shape)} axes")
    values = call("broadcast_to", values, shape=places.tensor.shape[:1])
    whole = call("broadcast_to", default, shape=tuple(shape))
    return call("scatter_nd", whole, cast(places, "i64"), values)


@converter("SEGMENT_SUM")
def segment_sum(layer: TfliteLayer) -> Result:
    """Sums of rows with the same segment number. Numbers ascend; the last gives the size."""
    numbers = layer.numbers(1, "the number of segments")
    if any(a > b for a, b in pairwise(numbers)) or min(numbers, default=0) < 0:
        raise layer.wrong("has numbers of segments that do not ascend")
    count = numbers[-1] + 1 if numbers else 0
    return _joined(layer, count, scalar(count, "i64"), "add")


_UNSORTED: Final = {
    "UNSORTED_SEGMENT_SUM": "add", "UNSORTED_SEGMENT_PROD": "mul", "UNSORTED_SEGMENT_MAX": "max",
    "UNSORTED_SEGMENT_MIN": "min",
}  # fmt: skip


@converter(*_UNSORTED)
def unsorted_segments(layer: TfliteLayer) -> Result:
    """Reduces rows with the same segment number; rows with negative numbers are omitted."""
    (count,) = layer.dims(2, "the number of segments")
    last = cast(reshaped(layer.input(2), ()), "i64")
    return _joined(layer, count, last, _UNSORTED[layer.op])


def _joined(layer: TfliteLayer, count: Dim, last: Expr, reduction: str) -> Expr:
    x, numbers = layer.input(0), cast(layer.input(1), "i64")
    inner = numbers.tensor.rank
    if any(map(differ, x.tensor.shape, numbers.tensor.shape)) or inner > x.tensor.rank:
        raise layer.wrong(f"has numbers {layer.type(1)} for rows of {layer.type(0)}")
    rows, rest = product(numbers.tensor.shape), x.tensor.shape[inner:]
    numbers = reshaped(numbers, (rows, 1))
    # Rows that are left out go to one more segment, which is cut off.
    left_out = call("less", numbers, scalar(0, "i64"))
    numbers = call("where", left_out, last, numbers)
    start = filled(_neutral(reduction, x.tensor.dtype), x.tensor.dtype, (count + 1, *rest))
    found = call("scatter_nd", start, numbers, reshaped(x, (rows, *rest)), reduction=reduction)
    return call("slice", found, begin=(0,), end=(count,), strides=(1,), axes=(0,))


def _neutral(reduction: str, dtype: str) -> float:
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    if is_float(dtype):
        limit = float(np.finfo(to_numpy(dtype)).max)
        return limit if reduction == "min" else -limit
    return integer_limits(dtype)[reduction == "min"]


# --- rows by number -------------------------------------------------------------------------------


@converter("EMBEDDING_LOOKUP")
def embedding_lookup(layer: TfliteLayer) -> Result:
    """Rows of a table, by index."""
    return call("gather", layer.input(1), layer.input(0), axis=0)


@converter("EMBEDDING_LOOKUP_SPARSE")
def embedding_lookup_sparse(layer: TfliteLayer) -> Result:
    """Weighted sums or means of table rows, placed by the indices of a sparse tensor."""
    ids, places, weights, table = (layer.input(n) for n in (0, 1, 3, 4))
    shape = layer.dims(2, "the shape")
    if places.tensor.rank != 2 or places.tensor.shape[1] != len(shape):
        raise layer.wrong(f"has places {layer.type(1)} in {len(shape)} axes")
    outer, inner = tuple(shape[:-1]), table.tensor.shape[1:]
    where = call("slice", places, begin=(0,), end=(len(outer),), strides=(1,), axes=(1,))
    rows = call("gather", table, ids, axis=0)
    count = rows.tensor.shape[:1]
    rows = call("multiply", rows, reshaped(weights, (*count, *(1,) * len(inner))))
    total = _added(outer + inner, where, rows)
    kind = layer.integer("combiner", 0)
    if kind == _SUM:
        return total
    if kind not in (_MEAN, _ROOT):
        raise layer.wrong(f"has the combiner {kind}")
    power = weights if kind == _MEAN else call("multiply", weights, weights)
    length = _added(outer, where, reshaped(power, count))
    if kind == _ROOT:
        length = call("sqrt", length)
    length = reshaped(length, (*outer, *(1,) * len(inner)))
    empty = call("equal", length, scalar(0, "f32"))
    return call("divide", total, call("where", empty, scalar(1, "f32"), length))


def _added(shape: Sequence[Dim], places: Expr, rows: Expr) -> Expr:
    zeros = filled(0, rows.tensor.dtype, tuple(shape))
    return call("scatter_nd", zeros, cast(places, "i64"), rows, reduction="add")


@converter("HASHTABLE_LOOKUP")
def hashtable_lookup(layer: TfliteLayer) -> Result:
    """Rows of values by key, zeros for an unknown key, and whether each key is known."""
    wanted, keys, values = (layer.input(n) for n in range(3))
    count = keys.tensor.shape[0]
    hit = call("equal", reshaped(wanted, (*wanted.tensor.shape, 1)), reshaped(keys, (1, count)))
    known = call("any", hit, axes=(1,), keepdims=False)
    place = call("argmax", cast(hit, "i32"), axis=1, keepdims=False)
    rows = call("gather", values, place, axis=0)
    seen = reshaped(known, (*known.tensor.shape, *(1,) * (values.tensor.rank - 1)))
    found = call("where", seen, rows, scalar(0, values.tensor.dtype))
    return [found, cast(known, "u8")]
