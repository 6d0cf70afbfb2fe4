"""Operators that read or write at given places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.torch.converters.linalg import norm_of
from clew.frontends.torch.converters.movement import bounds, joined, sliced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, SymDim, dim_max, product
from clew.ir.expr import Call, Expr
from clew.ir.types import is_float
from clew.ops.common import broadcast_shapes
from clew.te.interpret import identity_of


@converter("embedding")
def embedding(layer: Layer) -> Result:
    """Rows of a table."""
    table, indices = layer.tensor("weight"), layer.tensor("indices")
    return call("gather", table, indices, axis=0, from_end=False)


@converter("index_select")
def index_select(layer: Layer) -> Result:
    """Slices of an axis by index."""
    x, index = layer.tensor(), layer.tensor("index")
    if x.tensor.rank == 0:
        return layer.shaped(x)
    index = reshaped(index, (index.tensor.size,))
    return call("gather", x, index, axis=layer.axis())


@converter("gather")
def gather(layer: Layer) -> Result:
    """For each index, the element at the same position with the index on one axis."""
    x, index = layer.tensor(), layer.tensor("index")
    if 0 in layer.result().shape:
        return layer.filled(0)
    if x.tensor.rank == 0 or index.tensor.rank == 0:
        flat = reshaped(x, (x.tensor.size,))
        found = call("gather", flat, reshaped(index, (index.tensor.size,)), axis=0)
        return reshaped(found, index.tensor.shape)
    return call("gather_elements", x, index, axis=layer.axis())


def _advanced(layer: Layer, x: Expr) -> tuple[list[int], list[Expr]]:
    """Returns the axes with indices, and these. Masks become the places where they hold."""
    given = layer["indices"]
    assert isinstance(given, Sequence)
    axes: list[int] = []
    indices: list[Expr] = []
    axis = 0
    for index in given:
        if index is None:
            axis += 1
            continue
        assert isinstance(index, Expr)
        if index.tensor.dtype not in ("bool", "u8"):
            axes.append(axis)
            indices.append(index if index.tensor.dtype == "i64" else cast(index, "i64"))
            axis += 1
            continue
        rank = index.tensor.rank
        if rank == 0:
            raise layer.unsupported("a mask without axes")
        mask = cast(index, "bool")
        places = call("nonzero", mask)
        count = places.tensor.shape[1]
        _learn_count(layer, count, places)
        for n in range(rank):
            axes.append(axis + n)
            indices.append(reshaped(sliced(places, 0, n, n + 1), (count,)))
        axis += rank
    return axes, indices


def _learn_count(layer: Layer, count: Dim, carrier: Expr) -> None:
    """Records the number of places where a mask holds as the size that torch named."""
    if not isinstance(count, SymDim):
        return
    layer.importer.builder.carriers.setdefault(str(count), carrier)
    for fake in layer.fakes:
        for size in fake.shape:
            if str(getattr(getattr(size, "node", None), "expr", "")).startswith("u"):
                layer.importer.sizes.learn(size, count)


def _placed(layer: Layer, x: Expr) -> tuple[Expr, list[int], Expr, int, bool]:
    """Returns `x` with its indexed axes in front, the order of axes, places with one column for
    each of them, their number, and whether the indices are next to each other.
    """
    axes, indices = _advanced(layer, x)
    rest = [a for a in range(x.tensor.rank) if a not in axes]
    order = [*axes, *rest]
    if order != list(range(x.tensor.rank)):
        x = call("transpose", x, axes=tuple(order))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    wide = indices[0]
    for other in indices[1:]:
        wide = call("add", wide, other)
    shape = wide.tensor.shape
    columns = [
        reshaped(
            i if i.tensor.shape == shape else call("broadcast_to", i, shape=shape), (*shape, 1)
        )
        for i in indices
    ]
    return x, order, joined(columns, len(shape)), len(axes), together


@converter("index.Tensor", "_unsafe_index")
def index(layer: Layer) -> Result:
    """NumPy's advanced indexing."""
    x = layer.tensor()
    axes, indices = _advanced(layer, x)
    if len(axes) == 1:
        return call("gather", x, indices[0], axis=axes[0])
    moved, _, places, _, together = _placed(layer, x)
    found = call("gather_nd", moved, places)
    rank = places.tensor.rank - 1
    if not together or axes[0] == 0:
        return found
    # The result's axes of indices stand where the first index stood.
    first = axes[0]
    order = [*range(rank, rank + first), *range(rank), *range(rank + first, found.tensor.rank)]
    return call("transpose", found, axes=tuple(order))


@converter("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(layer: Layer) -> Result:
    """Values written, or added, at places of advanced indexing."""
    x = layer.tensor()
    axes, indices = _advanced(layer, x)
    values = cast(layer.tensor("values"), x.tensor.dtype)
    mode = "add" if layer.flag("accumulate") else "none"
    if mode == "none" and len(axes) == 1 and axes[0] and indices[0].tensor.rank == 1:
        sizes = list(x.tensor.shape)
        (sizes[axes[0]],) = indices[0].tensor.shape
        if values.tensor.shape != tuple(sizes):
            values = call("broadcast_to", values, shape=tuple(sizes))
        return call("index_copy", x, indices[0], values, axis=axes[0])
    moved, order, places, count, together = _placed(layer, x)
    rank = places.tensor.rank - 1
    shape = (*places.tensor.shape[:-1], *moved.tensor.shape[count:])
    first = axes[0] if together else 0
    if first:
        # Values have the result's order of axes: bring it into that of the places.
        own = (
            *moved.tensor.shape[count : count + first],
            *places.tensor.shape[:-1],
            *moved.tensor.shape[count + first :],
        )
        if values.tensor.shape != own:
            values = call("broadcast_to", values, shape=own)
        back = [*range(first, first + rank), *range(first), *range(first + rank, len(own))]
        values = call("transpose", values, axes=tuple(back))
    elif values.tensor.shape != shape:
        values = call("broadcast_to", values, shape=shape)
    found = call("scatter_nd", moved, places, values, reduction=mode)
    if order == sorted(order):
        return found
    return call("transpose", found, axes=tuple(order.index(a) for a in range(len(order))))


_REDUCTIONS: Final = {
    "sum": "add", "mean": "mean", "prod": "mul", "amax": "max", "amin": "min", "add": "add",
    "multiply": "mul",
}  # fmt: skip


@converter("scatter", "scatter_add", "scatter_reduce")
def scatter(layer: Layer) -> Result:
    """Updates written, or combined, at places of one axis."""
    x, places = layer.tensor(), layer.tensor("index")
    mode = "add" if layer.op.startswith("scatter_add") else "none"
    if layer.has("reduce"):
        mode = _REDUCTIONS[str(layer["reduce"])]
    if 0 in places.tensor.shape:
        return x
    name = "src" if "src" in layer.arguments else "value"
    value = layer.importer.as_dtype(layer[name], x.tensor.dtype)
    shape = places.tensor.shape
    include = layer.flag("include_self", True)
    if x.tensor.rank == 0 or not shape:
        # One place, or a vector of places in a scalar.
        many = (places.tensor.size,)
        lone = reshaped(x, (x.tensor.size,))
        places = reshaped(places, many)
        value = call("broadcast_to", reshaped(value, (value.tensor.size,)), shape=many)
        return reshaped(_scattered(lone, places, value, 0, mode, include), x.tensor.shape)
    if value.tensor.rank == 0:
        value = call("broadcast_to", value, shape=shape)
    for axis in range(len(shape)):
        value = sliced(value, axis, 0, shape[axis])
    return _scattered(x, places, value, layer.axis(), mode, include)


@converter("index_reduce")
def index_reduce(layer: Layer) -> Result:
    """Slices combined with those of one axis by index."""
    x, index, source = layer.tensor(), layer.tensor("index"), layer.tensor("source")
    if 0 in index.tensor.shape:
        return x
    axis = layer.axis()
    shape = x.tensor.shape
    x = x if shape else reshaped(x, (1,))
    source = source if source.tensor.rank else reshaped(source, (1,))
    places = reshaped(index, (index.tensor.size, *(1,) * (x.tensor.rank - axis - 1)))
    places = call("broadcast_to", places, shape=source.tensor.shape)
    mode, include = _REDUCTIONS[str(layer["reduce"])], layer.flag("include_self", True)
    return reshaped(_scattered(x, places, source, axis, mode, include), shape)


_NEUTRAL: Final = {"add": "sum", "mean": "sum", "mul": "prod", "max": "max", "min": "min"}


def _scattered(x: Expr, places: Expr, value: Expr, axis: int, mode: str, include: bool) -> Expr:
    """Returns `x` with updates along an axis. Without `include`, the elements that they meet do not
    take part. A mean is the sum over the number of updates.
    """
    dtype = x.tensor.dtype
    start = x
    ones = call("broadcast_to", scalar(1, "i64"), shape=places.tensor.shape)
    none = call("broadcast_to", scalar(0, "i64"), shape=x.tensor.shape)
    count = call("scatter_elements", none, places, ones, axis=axis, reduction="add")
    if not include and mode != "none":
        met = call("greater", count, scalar(0, "i64"))
        start = call("where", met, scalar(identity_of(_NEUTRAL[mode], dtype), dtype), x)
    if mode != "mean":
        return call("scatter_elements", start, places, value, axis=axis, reduction=mode)
    total = call("scatter_elements", start, places, value, axis=axis, reduction="add")
    number: Expr = call("add", count, scalar(1, "i64")) if include else count
    number = cast(call("maximum", number, scalar(1, "i64")), dtype)
    if is_float(dtype):
        return call("divide", total, number)
    rest = call("floor_mod", total, number)
    return call("divide", call("subtract", total, rest), number)


@converter("masked_scatter")
def masked_scatter(layer: Layer) -> Result:
    """Elements of `source`, in order, where a mask holds."""
    x, source = layer.tensor(), layer.tensor("source")
    mask, shape = layer.tensor("mask"), layer.result().shape
    if mask.tensor.shape != shape:
        mask = call("broadcast_to", mask, shape=shape)
    if x.tensor.shape != shape:
        x = call("broadcast_to", x, shape=shape)
    flat = reshaped(cast(mask, "i64"), (product(shape),))
    places = call("cumsum", flat, axis=0, exclusive=True)
    values = reshaped(source, (source.tensor.size,))
    places = call("minimum", places, layer.importer.scalar_of(source.tensor.size - 1, "i64"))
    found = reshaped(call("gather", values, places, axis=0), shape)
    return call("where", mask, found, x)


@converter("select_scatter")
def select_scatter(layer: Layer) -> Result:
    """One slice of an axis replaced."""
    x, axis = layer.tensor(), layer.axis()
    size = x.tensor.shape[axis]
    place = layer.dim("index")
    start = size + place if isinstance(place, int) and place < 0 else place
    source = layer.tensor("src")
    shape = source.tensor.shape
    row = reshaped(source, (*shape[:axis], 1, *shape[axis:]))
    return _replaced(x, cast(row, x.tensor.dtype), axis, start, start + 1)


@converter("diagonal_scatter")
def diagonal_scatter(layer: Layer) -> Result:
    """The elements of a diagonal replaced."""
    x, source, offset = layer.tensor(), layer.tensor("src"), layer.integer("offset", 0)
    first, second = layer.axis("dim1"), layer.axis("dim2")
    length = source.tensor.shape[-1]
    if length == 0:
        return x
    order = [first, second, *(a for a in range(x.tensor.rank) if a not in (first, second))]
    moved = call("transpose", x, axes=tuple(order))
    columns = []
    for start in (max(-offset, 0), max(offset, 0)):
        steps = call("arange", start=0, stop=length, step=1, dtype="i64")
        columns.append(reshaped(call("add", steps, scalar(start, "i64")), (length, 1)))
    last = source.tensor.rank - 1
    rows = cast(source, x.tensor.dtype)
    if last:
        rows = call("transpose", rows, axes=(last, *range(last)))
    found = call("scatter_nd", moved, joined(columns, 1), rows)
    return call("transpose", found, axes=tuple(order.index(a) for a in range(len(order))))


@converter("slice_scatter")
def slice_scatter(layer: Layer) -> Result:
    """Slices of an axis replaced."""
    x, axis = layer.tensor(), layer.axis()
    begin, end = bounds(layer, axis)
    end = dim_max(begin, end)
    step = layer.integer("step", 1)
    source = cast(layer.tensor("src"), x.tensor.dtype)
    wanted = list(x.tensor.shape)
    wanted[axis] = source.tensor.shape[axis] if source.tensor.rank else 1
    if step == 1:
        wanted[axis] = end - begin
    if source.tensor.shape != tuple(wanted):
        source = call("broadcast_to", source, shape=tuple(wanted))
    if step == 1:
        return _replaced(x, source, axis, begin, end)
    count = source.tensor.shape[axis]
    if not isinstance(begin, int):
        raise layer.unsupported("a step from a free start")
    places: Expr = call("arange", start=begin, stop=begin + count * step, step=step, dtype="i64")
    places = reshaped(places, (*(1,) * axis, count, *(1,) * (x.tensor.rank - axis - 1)))
    places = call("broadcast_to", places, shape=source.tensor.shape)
    return call("scatter_elements", x, places, source, axis=axis)


def _replaced(x: Expr, part: Expr, axis: int, begin: Dim, end: Dim) -> Expr:
    """Returns `x` with a range of an axis replaced."""
    size = x.tensor.shape[axis]
    pieces = []
    if begin != 0:
        pieces.append(sliced(x, axis, 0, begin))
    pieces.append(part)
    if end != size:
        pieces.append(sliced(x, axis, end, size))
    return joined(pieces, axis)


@converter("nonzero")
def nonzero(layer: Layer) -> Result:
    """Places of elements that are not zero, one in a row."""
    x = layer.tensor()
    found = call("nonzero", x)
    return call("transpose", found, axes=(1, 0))


@converter("nonzero_static")
def nonzero_static(layer: Layer) -> Result:
    """As many places of elements that are not zero as requested, filled up."""
    x, rows = layer.tensor(), layer.integer("size")
    value = layer.importer.as_dtype(layer.get("fill_value", -1), "i64")
    if x.tensor.rank == 0 or 0 in layer.result().shape or 0 in layer.type().shape:
        if x.tensor.rank:
            return layer.filled(layer.get("fill_value", -1))
        return layer.filled(0)
    size = product(x.tensor.shape)
    holds = call("not_equal", x, scalar(0, x.tensor.dtype)) if x.tensor.dtype != "bool" else x
    number = cast(reshaped(holds, (size,)), "i64")
    places = call("cumsum", number, axis=0, exclusive=True)
    # Elements that are zero, and those beyond the last row, go to a row that is cut off.
    wanted = call("where", reshaped(holds, (size,)), places, scalar(rows, "i64"))
    wanted = call("minimum", wanted, scalar(rows, "i64"))
    columns = []
    for axis, length in enumerate(x.tensor.shape):
        steps: Expr = call("arange", start=0, stop=length, step=1, dtype="i64")
        steps = reshaped(steps, (length, *(1,) * (x.tensor.rank - axis - 1)))
        columns.append(reshaped(call("broadcast_to", steps, shape=x.tensor.shape), (size, 1)))
    start = call("broadcast_to", value, shape=(rows + 1, x.tensor.rank))
    found = call("scatter_nd", start, reshaped(wanted, (size, 1)), joined(columns, 1))
    return sliced(found, 0, 0, rows)


@converter("put")
def put(layer: Layer) -> Result:
    """Elements written, or added, by their places in the flattened tensor."""
    x, index = layer.tensor(), layer.tensor("index")
    size = index.tensor.size
    flat = reshaped(x, (product(x.tensor.shape),))
    if size == 0:
        return x
    mode = "add" if layer.flag("accumulate") else "none"
    places, source = reshaped(index, (size, 1)), reshaped(layer.tensor("source"), (size,))
    return reshaped(call("scatter_nd", flat, places, source, reduction=mode), x.tensor.shape)


@converter("repeat_interleave.Tensor")
def repeat_interleave(layer: Layer) -> Result:
    """Each index as often as requested: for each place, the number of indices that are used up."""
    repeats = cast(layer.tensor("repeats"), "i64")
    count = repeats.tensor.shape[0]
    upto = call("cumsum", repeats, axis=0)
    if layer.has("output_size"):
        total = layer.dim("output_size")
    else:
        room = call("room", call("sum", repeats, axes=(0,), keepdims=False))
        total = room.tensor.shape[0]
        _learn_count(layer, total, room)
    places = call("arange", start=0, stop=total, step=1, dtype="i64")
    used = call("less_equal", reshaped(upto, (1, count)), reshaped(places, (total, 1)))
    found = call("sum", cast(used, "i64"), axes=(1,), keepdims=False)
    return layer.to_result(found)


@converter("embedding_renorm")
def embedding_renorm(layer: Layer) -> Result:
    """Rows that are looked up scaled down to a norm."""
    x, index = layer.tensor(), layer.tensor("indices")
    most, order = float(layer.number("max_norm")), float(layer.number("norm_type"))
    size = index.tensor.size
    dtype = x.tensor.dtype
    norms = norm_of(x, order, (1,), True)
    small = call("add", norms, scalar(1e-7, dtype))
    scaled = call("multiply", x, call("divide", scalar(most, dtype), small))
    none = call("broadcast_to", scalar(False, "bool"), shape=(x.tensor.shape[0],))
    met = call("broadcast_to", scalar(True, "bool"), shape=(size,))
    used = call("scatter_nd", none, reshaped(index, (size, 1)), met)
    large = call("greater", norms, scalar(most, dtype))
    return call(
        "where", call("logical_and", large, reshaped(used, (x.tensor.shape[0], 1))), scaled, x
    )


@converter("masked_select")
def masked_select(layer: Layer) -> Result:
    """The elements where a mask holds, in a row."""
    x, mask = layer.tensor(), layer.tensor("mask")
    shape = broadcast_shapes("masked_select", x.tensor.shape, mask.tensor.shape)
    size = product(shape)
    flat, holds = (
        reshaped(e if e.tensor.shape == shape else call("broadcast_to", e, shape=shape), (size,))
        for e in (x, mask)
    )
    found = call("compress", flat, holds, axis=0)
    _learn_count(layer, found.tensor.shape[0], found)
    return found


@converter("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(layer: Layer) -> Result:
    """Sums, means or maxima of rows of a table, a bag of rows for each offset."""
    weight, indices = layer.tensor("weight"), layer.tensor("indices")
    offsets, mode = layer.tensor("offsets"), layer.integer("mode", 0)
    wanted = layer.result()
    count, bags = indices.tensor.shape[0], wanted.shape[0]
    rows = call("gather", weight, indices, axis=0)
    if layer.has("per_sample_weights"):
        scale = layer.tensor("per_sample_weights")
        rows = call("multiply", rows, reshaped(scale, (count, 1)))
    if layer.flag("include_last_offset"):
        offsets = sliced(offsets, 0, 0, bags)
    dtype = rows.tensor.dtype
    neutral = scalar(float("-inf") if mode == 2 else 0, dtype)
    ones: Expr = call("broadcast_to", scalar(1, dtype), shape=(count, 1))
    padding = layer.integer("padding_idx", -1)
    if padding >= 0:
        differs = call("not_equal", indices, scalar(padding, indices.tensor.dtype))
        taken = reshaped(differs, (count, 1))
        rows = call("where", taken, rows, neutral)
        ones = cast(taken, dtype)
    size = _size_of_bags(offsets, count, bags)
    of_bags = _bags(offsets, count)
    places = None if size else reshaped(of_bags, (count, 1))

    def collected(values: Expr, *, largest: bool = False) -> Expr:
        """Returns the sum or maximum of the values of each bag."""
        width = values.tensor.shape[1]
        if places is None:
            apart = reshaped(values, (bags, size, width))
            return call("max" if largest else "sum", apart, axes=(1,), keepdims=False)
        neutral = scalar(float("-inf") if largest else 0, dtype)
        start = call("broadcast_to", neutral, shape=(bags, width))
        return call("scatter_nd", start, places, values, reduction="max" if largest else "add")

    found, sizes = collected(rows, largest=mode == 2), collected(ones)
    further: list[Expr] = [layer.filled(0, n) for n in (1, 2, 3)]  # what torch gives for sums
    if layer.result(1).shape == (count,):
        further[0] = layer.to_result(of_bags, 1)
    if mode and layer.result(2).shape == (bags,):
        further[1] = layer.shaped(sizes, 2)
        largest = sizes if mode == 1 else _first_largest(rows, found, of_bags, indices)
        further[2] = layer.shaped(largest, 3)
    if mode == 1:
        found = call("divide", found, call("maximum", sizes, scalar(1, dtype)))
    elif mode == 2:
        found = call("where", call("equal", sizes, scalar(0, dtype)), scalar(0, dtype), found)
    return [found, *further]


def _first_largest(rows: Expr, largest: Expr, bags: Expr, indices: Expr) -> Expr:
    """Returns, for each bag and column, the index whose row has the largest element; 0 for bags
    without indices.
    """
    count = rows.tensor.shape[0]
    # Counted from the end, the first one has the highest number.
    steps = call("arange", start=0, stop=count, step=1, dtype="i64")
    indices = call("flip", indices, axes=(0,))
    back = reshaped(call("flip", steps, axes=(0,)), (count, 1))
    none = call("broadcast_to", scalar(-1, "i64"), shape=largest.tensor.shape)
    is_largest = call("equal", rows, call("gather", largest, bags, axis=0))
    numbers = call("where", is_largest, back, scalar(-1, "i64"))
    found = call("scatter_nd", none, reshaped(bags, (count, 1)), numbers, reduction="max")
    known = call("gather", indices, call("maximum", found, scalar(0, "i64")), axis=0)
    zero = scalar(0, indices.tensor.dtype)
    return call("where", call("less", found, scalar(0, "i64")), zero, known)


def _size_of_bags(offsets: Expr, count: Dim, bags: Dim) -> int:
    """Returns how many indices each bag has; 0 if the bags are not known to have the same number,
    as those of a matrix of indices do.
    """
    if not (isinstance(offsets, Call) and offsets.op_name == "arange" and offsets.attrs.start == 0):
        return 0
    step = offsets.attrs.step
    return step if isinstance(step, int) and step > 0 and bags * step == count else 0


def _bags(offsets: Expr, count: Dim) -> Expr:
    """Returns the bag of each index, `i64[count]`: the number of bags that begin up to there."""
    begun = call("broadcast_to", scalar(0, "i64"), shape=(count + 1,))
    bags = offsets.tensor.shape[0]
    ones = call("broadcast_to", scalar(1, "i64"), shape=(bags,))
    begun = call("scatter_nd", begun, reshaped(offsets, (bags, 1)), ones, reduction="add")
    passed = sliced(call("cumsum", begun, axis=0), 0, 0, count)
    return call("subtract", passed, scalar(1, "i64"))
