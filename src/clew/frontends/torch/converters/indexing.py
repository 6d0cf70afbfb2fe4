"""Operators that read or write at given places."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.torch.converters.movement import bound, joined, sliced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, SymDim, product
from clew.ir.expr import Expr


@converter("embedding")
def embedding(layer: Layer) -> Result:
    """Rows of a table."""
    return call("gather", layer.tensor("weight"), layer.tensor("indices"), axis=0)


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
    layer.importer.sizes.carriers.setdefault(str(count), carrier)
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


@converter("index_put", "_unsafe_index_put")
def index_put(layer: Layer) -> Result:
    """Values written, or added, at places of advanced indexing."""
    x = layer.tensor()
    axes, _ = _advanced(layer, x)
    values = cast(layer.tensor("values"), x.tensor.dtype)
    mode = "add" if layer.flag("accumulate") else "none"
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


_REDUCTIONS = {
    "sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul",
}  # fmt: skip


@converter("scatter", "scatter_add", "scatter_reduce")
def scatter(layer: Layer) -> Result:
    """Updates written, or combined, at places of one axis."""
    x, places = layer.tensor(), layer.tensor("index")
    mode = "add" if layer.op.startswith("scatter_add") else "none"
    if layer.has("reduce"):
        wanted = str(layer["reduce"])
        if wanted not in _REDUCTIONS or not layer.flag("include_self", True):
            raise layer.unsupported(f"reduce={wanted!r}, include_self={layer.get('include_self')}")
        mode = _REDUCTIONS[wanted]
    name = "src" if "src" in layer.arguments else "value"
    value = layer.importer.as_dtype(layer[name], x.tensor.dtype)
    shape = places.tensor.shape
    rank = len(shape)
    if x.tensor.rank == 0:
        flat = call(
            "scatter_elements", reshaped(x, (1,)), reshaped(places, (1,)), reshaped(value, (1,)),
            axis=0, reduction=mode,
        )  # fmt: skip
        return reshaped(flat, ())
    if value.tensor.rank == 0:
        value = call("broadcast_to", value, shape=shape)
    for axis in range(rank):
        value = sliced(value, axis, 0, shape[axis])
    return call("scatter_elements", x, places, value, axis=layer.axis(), reduction=mode)


@converter("masked_scatter")
def masked_scatter(layer: Layer) -> Result:
    """Elements of `source`, in order, where a mask holds."""
    x, source = layer.tensor(), layer.tensor("source")
    mask = layer.tensor("mask")
    shape = x.tensor.shape
    if mask.tensor.shape != shape:
        mask = call("broadcast_to", mask, shape=shape)
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


@converter("slice_scatter")
def slice_scatter(layer: Layer) -> Result:
    """Slices of an axis replaced."""
    x, axis = layer.tensor(), layer.axis()
    size = x.tensor.shape[axis]
    begin = bound(layer.dim("start", 0), size)
    end = bound(layer.dim("end", 1 << 62), size)
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


@converter("topk")
def top_k(layer: Layer) -> Result:
    """The largest or smallest elements, sorted, and their places."""
    x, k = layer.tensor(), layer.dim("k")
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    if not isinstance(k, int):
        raise layer.unsupported("a free k")
    found = call("top_k", x, k=k, axis=layer.axis(), largest=layer.flag("largest", True))
    return fields(found, 2)


@converter("sort")
def sort(layer: Layer) -> Result:
    """All elements of an axis in order, and their places."""
    x = layer.tensor()
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    axis = layer.axis()
    size = x.tensor.shape[axis]
    if not isinstance(size, int):
        raise layer.unsupported("an axis of free size")
    dtype = x.tensor.dtype
    wide = cast(x, "i8") if dtype == "bool" else x
    found = call("top_k", wide, k=size, axis=axis, largest=layer.flag("descending"))
    values, places = fields(found, 2)
    return [cast(values, dtype), places]


@converter("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(layer: Layer) -> Result:
    """Sums, means or maxima of rows of a table, a bag of rows for each offset."""
    weight, indices = layer.tensor("weight"), layer.tensor("indices")
    offsets, mode = layer.tensor("offsets"), layer.integer("mode", 0)
    if any(layer.is_used(n) for n in (1, 2, 3)):
        raise layer.unsupported("results other than the first")
    if layer.integer("padding_idx", -1) >= 0:
        raise layer.unsupported("padding_idx")
    wanted = layer.result()
    count, bags = indices.tensor.shape[0], wanted.shape[0]
    rows = call("gather", weight, indices, axis=0)
    if layer.has("per_sample_weights"):
        scale = layer.tensor("per_sample_weights")
        rows = call("multiply", rows, reshaped(scale, (count, 1)))
    if layer.flag("include_last_offset"):
        offsets = sliced(offsets, 0, 0, bags)
    place = call("arange", start=0, stop=count, step=1, dtype="i64")
    begun = call("less_equal", reshaped(cast(offsets, "i64"), (bags, 1)), place)
    bag: Expr = call(
        "subtract", call("sum", cast(begun, "i64"), axes=(0,), keepdims=False), scalar(1, "i64")
    )
    dtype = rows.tensor.dtype
    places = reshaped(bag, (count, 1))
    if mode == 2:
        start = layer.importer.as_dtype(float("-inf"), dtype)
        start = call("broadcast_to", start, shape=wanted.shape)
        best = call("scatter_nd", start, places, rows, reduction="max")
        empty = call("isinf", best, positive=False)
        found: Expr = call("where", empty, scalar(0, dtype), best)
    else:
        zeros = layer.filled(0)
        found = call("scatter_nd", zeros, places, rows, reduction="add")
        if mode == 1:
            sizes = call(
                "sum",
                cast(
                    call(
                        "equal",
                        reshaped(bag, (1, count)),
                        reshaped(
                            call("arange", start=0, stop=bags, step=1, dtype="i64"), (bags, 1)
                        ),
                    ),
                    dtype,
                ),
                axes=(1,),
            )
            found = call("divide", found, call("maximum", sizes, scalar(1, dtype)))
    none = scalar(0, "i64")
    return [found, none, none, none]
