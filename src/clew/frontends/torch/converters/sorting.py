"""Operators that order or compare all elements of an axis: searches, medians, running extremes,
distinct elements, histograms.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.torch.converters.movement import sliced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, SymDim, product
from clew.ir.expr import Expr
from clew.ir.types import is_float


def _last(x: Expr, axis: int) -> Expr:
    """Returns `x` with an axis moved behind all others."""
    order = [n for n in range(x.tensor.rank) if n != axis] + [axis]
    return x if order == sorted(order) else call("transpose", x, axes=tuple(order))


def _wide(x: Expr) -> Expr:
    """Returns booleans as numbers, which can be ordered."""
    return cast(x, "u8") if x.tensor.dtype == "bool" else x


# --- searches -------------------------------------------------------------------------------------


@converter("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(layer: Layer) -> Result:
    """Where values belong in sorted rows: the number of elements below each value, or not above."""
    rows = layer.tensor("sorted_sequence")
    values = layer.tensor()
    if layer.has("sorter"):
        rows = call("gather_elements", rows, layer.tensor("sorter"), axis=rows.tensor.rank - 1)
    right = layer.flag("right") or layer.get("side") == "right"
    if rows.tensor.rank == 1:
        rows = reshaped(rows, (*(1,) * values.tensor.rank, *rows.tensor.shape))
    else:
        shape = rows.tensor.shape
        rows = reshaped(rows, (*shape[:-1], 1, shape[-1]))
    return _places(layer, rows, values, right)


@converter("bucketize.Tensor", "bucketize.Scalar")
def bucketize(layer: Layer) -> Result:
    """The bucket of each value: the number of boundaries below it, or not above it."""
    values, bounds = layer.tensor(), layer.tensor("boundaries")
    bounds = reshaped(bounds, (*(1,) * values.tensor.rank, *bounds.tensor.shape))
    return _places(layer, bounds, values, layer.flag("right"))


def _places(layer: Layer, rows: Expr, values: Expr, right: bool) -> Expr:
    dtype = rows.tensor.dtype
    if values.tensor.dtype != dtype:
        dtype = "f64" if is_float(dtype) or is_float(values.tensor.dtype) else "i64"
    size = rows.tensor.shape[-1]
    if size == 0:
        return layer.filled(0)
    values = reshaped(cast(values, dtype), (*values.tensor.shape, 1))
    # A NaN stands behind all numbers.
    compare = "less_equal" if right else "less"
    passed: Expr = call(compare, cast(rows, dtype), values)
    if is_float(dtype):
        passed = call("logical_or", passed, call("isnan", values))
    count = call("sum", cast(passed, "i64"), axes=(passed.tensor.rank - 1,), keepdims=False)
    return layer.shaped(count)


# --- order ----------------------------------------------------------------------------------------


def _in_order(x: Expr, k: Dim, axis: int, largest: bool = False) -> list[Expr]:
    """Returns the first `k` elements of an axis in order, and their places. Booleans become
    numbers.
    """
    x = _wide(x)
    if isinstance(k, int):
        return fields(call("top_k", x, k=k, axis=axis, largest=largest), 2)
    room = call("broadcast_to", scalar(False, "bool"), shape=(k,))
    return fields(call("top_k_into", x, room, axis=axis, largest=largest), 2)


@converter("topk")
def top_k(layer: Layer) -> Result:
    """The largest or smallest elements, sorted, and their places."""
    x, k = layer.tensor(), layer.dim("k")
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    axis = layer.axis()
    values, places = _in_order(x, k, axis, layer.flag("largest", True))
    return [layer.to_result(values), places]


@converter("sort")
def sort(layer: Layer) -> Result:
    """All elements of an axis in order, and their places."""
    x = layer.tensor()
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    axis = layer.axis()
    values, places = _in_order(x, x.tensor.shape[axis], axis, layer.flag("descending"))
    return [layer.to_result(values), places]


def _kth(x: Expr, place: Dim) -> tuple[Expr, Expr]:
    """Returns the element at a place in the order of the last axis, and where it is."""
    axis = x.tensor.rank - 1
    found = _in_order(x, place + 1, axis)
    values, places = (sliced(part, axis, place, place + 1) for part in found)
    return cast(values, x.tensor.dtype), places


def _row(layer: Layer, x: Expr) -> Expr:
    """Returns the tensor with the axis to reduce at the end: all elements if none is given."""
    if x.tensor.rank and layer.has("dim"):
        return _last(x, layer.axis())
    return reshaped(x, (product(x.tensor.shape),))


@converter("kthvalue")
def kthvalue(layer: Layer) -> Result:
    """The k-th smallest element of an axis, and its place."""
    x = _row(layer, layer.tensor())
    values, places = _kth(x, layer.dim("k") - 1)
    return [layer.shaped(values), layer.shaped(places, 1)]


@converter("median", "median.dim", "nanmedian", "nanmedian.dim")
def median(layer: Layer) -> Result:
    """The lower of the middle elements; NaN if there is one, unless these are left out."""
    x = _row(layer, layer.tensor())
    size, several = x.tensor.shape[-1], len(layer.fakes) > 1
    if size == 0:
        if several:
            raise layer.unsupported("an axis without elements")
        return layer.filled(float("nan"))
    values, places = _median(layer, x, layer.op.startswith("nan"))
    values = layer.shaped(values)
    return [values, layer.shaped(places, 1)] if several else values


def _median(layer: Layer, x: Expr, ignore: bool) -> tuple[Expr, Expr]:
    """Returns the median of the last axis, and its place. With `ignore`, NaNs are left out."""
    axis, size = x.tensor.rank - 1, x.tensor.shape[-1]
    if not is_float(x.tensor.dtype):
        return _kth(x, (size - 1) // 2)
    ordered = _in_order(x, size, axis)
    number = layer.importer.scalar_of(size, "i64")
    last = call("subtract", number, scalar(1, "i64"))
    count = call("sum", cast(call("isnan", x), "i64"), axes=(axis,), keepdims=True)
    left = call("maximum", call("subtract", last, count), scalar(0, "i64"))
    half = call("right_shift", left, scalar(1, "i64"))
    if not ignore:
        # The first NaN stands behind all numbers.
        first = call("subtract", number, count)
        none = call("equal", count, scalar(0, "i64"))
        half = call("where", none, half, first)
    values, places = (call("gather_elements", part, half, axis=axis) for part in ordered)
    return values, places


@converter("mode")
def mode(layer: Layer) -> Result:
    """The most frequent element of an axis, the smallest of several, and its last place."""
    x = layer.tensor()
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    x = _wide(_last(x, layer.axis()))
    *lead, size = x.tensor.shape
    axis = x.tensor.rank - 1
    same = call("equal", reshaped(x, (*lead, size, 1)), reshaped(x, (*lead, 1, size)))
    counts = call("sum", cast(same, "i64"), axes=(axis + 1,), keepdims=False)
    most = call("max", counts, axes=(axis,), keepdims=True)
    rare = call("less", counts, most)
    _, places = _in_order(x, size, axis)
    # In ascending order, the first frequent element.
    frequent = call("logical_not", call("gather_elements", rare, places, axis=axis))
    first = call("argmax", cast(frequent, "u8"), axis=axis, keepdims=True)
    place = call("gather_elements", places, first, axis=axis)
    value = call("gather_elements", x, place, axis=axis)
    equal = cast(call("equal", x, value), "u8")
    last = call("argmax", equal, axis=axis, keepdims=True, select_last=True)
    return [layer.shaped(value), layer.shaped(last, 1)]


@converter("cummax", "cummin")
def running_extreme(layer: Layer) -> Result:
    """The largest or smallest element so far, and its last place."""
    x = layer.tensor()
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    axis, op = layer.axis(), layer.op.partition(".")[0]
    wide = _wide(x)
    values = call(op, wide, axis=axis)
    here: Expr = call("equal", wide, values)
    if is_float(wide.tensor.dtype):
        here = call("logical_or", here, call("isnan", wide))
    size = wide.tensor.shape[axis]
    steps: Expr = call("arange", start=0, stop=size, step=1, dtype="i64")
    steps = reshaped(steps, (size, *(1,) * (wide.tensor.rank - axis - 1)))
    places = call("cummax", call("where", here, steps, scalar(0, "i64")), axis=axis)
    return [cast(values, x.tensor.dtype), places]


# --- distinct elements ----------------------------------------------------------------------------


def _counted(layer: Layer, count: Dim, carrier: Expr) -> None:
    """Records the number of distinct elements as the size that torch named."""
    if isinstance(count, SymDim):
        layer.importer.builder.carriers.setdefault(str(count), carrier)
        for fake in layer.fakes:
            for size in fake.shape:
                layer.importer.sizes.learn(size, count)


@converter("_unique2", "unique_dim")
def unique(layer: Layer) -> Result:
    """Distinct elements or slices in order, the place of each element among them, and counts."""
    x = layer.tensor()
    axis = layer.axis() if layer.op.startswith("unique_dim") else None
    found = call("unique", _wide(x), axis=axis)
    values, _, inverse, counts = fields(found, 4)
    _counted(layer, counts.tensor.shape[0], counts)
    return _distinct(layer, cast(values, x.tensor.dtype), inverse, counts)


def _distinct(layer: Layer, values: Expr, inverse: Expr, counts: Expr) -> list[Expr]:
    """Returns the requested results; torch leaves the others empty."""
    empty = [layer.result(n).shape == (0,) for n in (1, 2)]
    return [
        values,
        layer.filled(0, 1) if empty[0] else layer.shaped(inverse, 1),
        layer.filled(0, 2) if empty[1] else counts,
    ]


@converter("unique_consecutive")
def unique_consecutive(layer: Layer) -> Result:
    """Elements or slices that differ from the one before, the run of each, and its length."""
    x = layer.tensor()
    if layer.has("dim"):
        axis = layer.axis()
    else:
        x, axis = reshaped(x, (product(x.tensor.shape),)), 0
    if layer.fakes[0].dim() != x.tensor.rank:
        raise layer.unsupported("slices of inner axes, whose result torch types wrongly")
    size = x.tensor.shape[axis]
    others = tuple(n for n in range(x.tensor.rank) if n != axis)
    differs: Expr = call("not_equal", sliced(x, axis, 1, size), sliced(x, axis, 0, size - 1))
    if others:
        differs = call("any", differs, axes=others, keepdims=False)
    first = call("broadcast_to", scalar(True, "bool"), shape=(1,))
    starts = call("concatenate", first, differs, axis=0)
    values = call("compress", x, starts, axis=axis)
    _counted(layer, values.tensor.shape[axis], values)
    inverse = call("subtract", call("cumsum", cast(starts, "i64"), axis=0), scalar(1, "i64"))
    begins = reshaped(call("nonzero", starts), (values.tensor.shape[axis],))
    ends = _shifted(layer, begins, size)
    return _distinct(layer, values, inverse, call("subtract", ends, begins))


def _shifted(layer: Layer, begins: Expr, size: Dim) -> Expr:
    """Returns where runs end: where the next one begins, the last at the size."""
    count = begins.tensor.shape[0]
    last = reshaped(layer.importer.scalar_of(size, "i64"), (1,))
    return call("concatenate", sliced(begins, 0, 1, count), last, axis=0)


# --- histograms -----------------------------------------------------------------------------------


def _bins(places: Expr, count: int, weights: Expr) -> Expr:
    """Returns sums of weights by place; places outside are left out."""
    size = places.tensor.shape[0]
    bins = call("arange", start=0, stop=count, step=1, dtype="i64")
    here = call("equal", reshaped(bins, (count, 1)), reshaped(places, (1, size)))
    zero = scalar(0, weights.tensor.dtype)
    return call("sum", call("where", here, weights, zero), axes=(1,), keepdims=False)


@converter("histc")
def histc(layer: Layer) -> Result:
    """The numbers of elements in bins of equal width; with equal bounds, between the extremes."""
    x, bins = layer.tensor(), layer.integer("bins", 100)
    dtype = x.tensor.dtype
    wide = dtype if dtype in ("f32", "f64") else "f64" if dtype in ("i64", "i32") else "f32"
    flat = cast(reshaped(x, (product(x.tensor.shape),)), wide)
    low, high = float(layer.number("min", 0)), float(layer.number("max", 0))
    if flat.tensor.shape == (0,):
        return layer.filled(0)
    bounds: Sequence[Expr] = (scalar(low, wide), scalar(high, wide))
    if low == high:
        bounds = [call(op, flat, axes=(0,), keepdims=False) for op in ("min", "max")]
        same = call("equal", *bounds)
        one = scalar(1, wide)
        bounds = [
            call("where", same, call(op, b, one), b)
            for op, b in zip(("subtract", "add"), bounds, strict=True)
        ]
    least, most = bounds
    width = call("subtract", most, least)
    place: Expr = call("divide", call("subtract", flat, least), width)
    place = cast(call("floor", call("multiply", place, scalar(bins, wide))), "i64")
    place = call("minimum", place, scalar(bins - 1, "i64"))
    inside = call("logical_and", call("greater_equal", flat, least), call("less_equal", flat, most))
    place = call("where", inside, place, scalar(-1, "i64"))
    ones = call("broadcast_to", scalar(1, "i64"), shape=flat.tensor.shape)
    return layer.to_result(_bins(place, bins, ones))


@converter("bincount")
def bincount(layer: Layer) -> Result:
    """How often each number occurs, or sums of its weights."""
    x = cast(layer.tensor(), "i64")
    least = layer.importer.as_dtype(layer.get("minlength", 0), "i64")
    size = x.tensor.shape[0]
    if size == 0:
        return layer.filled(0)
    dtype = "i64"
    if layer.has("weights"):  # torch sums all but f32 in f64
        dtype = "f32" if layer.type("weights").dtype == "f32" else "f64"
    top = call("add", call("max", x, axes=(0,), keepdims=False), scalar(1, "i64"))
    room = call("room", call("maximum", top, least))
    count = room.tensor.shape[0]
    _counted(layer, count, room)
    zeros = cast(room, dtype)
    if layer.has("weights"):
        weights = cast(layer.tensor("weights"), dtype)
    else:
        weights = call("broadcast_to", scalar(1, dtype), shape=(size,))
    return call("scatter_nd", zeros, reshaped(x, (size, 1)), weights, reduction="add")
