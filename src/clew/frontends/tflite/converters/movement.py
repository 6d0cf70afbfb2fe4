"""Shapes, data movement, constants and indexing."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast, fields, filled, reshaped, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ops.math.create import arange_size

# --- shapes ---------------------------------------------------------------------------------------


@converter("RESHAPE", codes=True)
def reshape(layer: TfliteLayer) -> Result:
    """Reshapes to an operand or an option, which may contain one -1."""
    if layer.optional(1) is not None:
        wanted: list[Dim] = list(layer.dims(1, "the shape"))
    else:
        wanted = list(layer.integers("new_shape", ()))
    free = [axis for axis, size in enumerate(wanted) if isinstance(size, int) and size == -1]
    if len(free) > 1:
        raise layer.wrong(f"has {len(free)} free sizes in its shape {list(map(str, wanted))}")
    if free:
        rest = product(tuple(size for axis, size in enumerate(wanted) if axis not in free))
        total = product(layer.type(0).shape)
        if isinstance(rest, int) and not rest:
            raise layer.wrong(f"has a free size in a shape without elements: {wanted}")
        if isinstance(total, int) and isinstance(rest, int) and total % rest:
            raise layer.wrong(f"cannot reshape {layer.type(0)} to {wanted}")
        wanted[free[0]] = total // rest
    return reshaped(layer.input(0), wanted)


@converter("SQUEEZE", codes=True)
def squeeze(layer: TfliteLayer) -> Result:
    """Drops the given axes of size 1, or all of them if none are given."""
    shape, rank = layer.type(0).shape, layer.rank()
    given = {layer.positive(axis, rank) for axis in layer.integers("squeeze_dims", ())}
    dropped = given or {axis for axis, size in enumerate(shape) if size == 1}
    return reshaped(layer.input(0), [d for axis, d in enumerate(shape) if axis not in dropped])


@converter("EXPAND_DIMS", codes=True)
def expand_dims(layer: TfliteLayer) -> Result:
    """Adds an axis of size 1."""
    axis = layer.positive(layer.one_int(1, "the axis"), layer.rank() + 1)
    shape = list(layer.type(0).shape)
    return reshaped(layer.input(0), [*shape[:axis], 1, *shape[axis:]])


@converter("SHAPE", codes=True)
def shape_of(layer: TfliteLayer) -> Result:
    """The sizes of all axes."""
    return cast(call("shape_of", layer.input(0)), layer.result_dtype())


@converter("RANK", codes=True)
def rank_of(layer: TfliteLayer) -> Result:
    """The number of axes."""
    return scalar(layer.rank(), "i32")


# --- movement -------------------------------------------------------------------------------------


@converter("TRANSPOSE", codes=True)
def transpose(layer: TfliteLayer) -> Result:
    """Permutes the axes."""
    axes = tuple(layer.positive(a, layer.rank()) for a in layer.numbers(1, "the axes"))
    return call("transpose", layer.input(0), axes=axes)


@converter("PAD", "PADV2")
def pad(layer: TfliteLayer) -> Result:
    """Pads with a constant."""
    value = layer.known_one(2) if layer.optional(2) is not None else 0
    if value is None:
        raise layer.unknown("the value of the padding")
    return call("pad", layer.input(0), pads=_pads(layer), mode="constant", value=value)


@converter("MIRROR_PAD", codes=True)
def mirror_pad(layer: TfliteLayer) -> Result:
    """Pads by reflection; mode 1 repeats the outermost elements."""
    pads, x = _pads(layer), layer.input(0)
    if not layer.integer("mode", 0):
        return call("pad", x, pads=pads, mode="reflect")
    rank = layer.rank()
    for axis, (before, after) in enumerate(zip(pads[:rank], pads[rank:], strict=True)):
        size = x.tensor.shape[axis]
        ends = [(before, 0, before), (after, size - after, size)]
        first, last = (
            [call("flip", _along(x, axis, begin, end), axes=(axis,))] if count != 0 else []
            for count, begin, end in ends
        )
        parts = [*first, x, *last]
        x = call("concatenate", *parts, axis=axis) if len(parts) > 1 else x
    return x


def _along(x: Expr, axis: int, begin: Dim, end: Dim) -> Expr:
    return call("slice", x, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))


def _pads(layer: TfliteLayer) -> tuple[Dim, ...]:
    """Returns the padding (before..., after...)."""
    given = layer.dims(1, "the padding")
    return (*given[::2], *given[1::2])


@converter("CONCATENATION")
def concatenation(layer: TfliteLayer) -> Result:
    """Concatenates along an axis."""
    inputs = layer.present()
    if len(inputs) == 1:
        return layer.activated(inputs[0])
    return layer.activated(call("concatenate", *inputs, axis=layer.axis()))


@converter("PACK", codes=True)
def pack(layer: TfliteLayer) -> Result:
    """Stacks along a new axis."""
    axis = layer.positive(layer.integer("axis", 0), layer.rank() + 1)
    parts = []
    for value in layer.present():
        shape = list(value.tensor.shape)
        parts.append(reshaped(value, [*shape[:axis], 1, *shape[axis:]]))
    return parts[0] if len(parts) == 1 else call("concatenate", *parts, axis=axis)


@converter("UNPACK", codes=True)
def unpack(layer: TfliteLayer) -> Result:
    """Splits along an axis, which is dropped."""
    axis, x = layer.axis(), layer.input(0)
    count = layer.integer("num", 0)
    if count != len(layer.results):
        raise layer.wrong(f"has {count} parts for {len(layer.results)} results")
    shape = [size for n, size in enumerate(x.tensor.shape) if n != axis]
    if count == 1:
        return [reshaped(x, shape)]
    parts = fields(call("split", x, sizes=(1,) * count, axis=axis), count)
    return [reshaped(part, shape) for part in parts]


@converter("SPLIT", codes=True)
def split(layer: TfliteLayer) -> Result:
    """Splits into equal parts; the axis is the first operand."""
    x = layer.input(1)
    axis = layer.positive(layer.one_int(0, "the axis"), x.tensor.rank)
    count = layer.integer("num_splits", 0)
    if not 0 < count == len(layer.results):
        raise layer.wrong(f"has {count} parts for {len(layer.results)} results")
    return _split(x, (x.tensor.shape[axis] // count,) * count, axis)


@converter("SPLIT_V", codes=True)
def split_v(layer: TfliteLayer) -> Result:
    """Splits into parts of given sizes, one of which may be -1."""
    x = layer.input(0)
    axis = layer.positive(layer.one_int(2, "the axis"), x.tensor.rank)
    sizes: list[Dim] = list(layer.dims(1, "the sizes"))
    rest = x.tensor.shape[axis]
    for size in sizes:
        rest = rest if isinstance(size, int) and size == -1 else rest - size
    return _split(x, [rest if isinstance(s, int) and s == -1 else s for s in sizes], axis)


def _split(x: Expr, sizes: Sequence[Dim], axis: int) -> list[Expr]:
    if len(sizes) == 1:
        return [x]
    return fields(call("split", x, sizes=tuple(sizes), axis=axis), len(sizes))


@converter("SLICE", codes=True)
def slice_by_sizes(layer: TfliteLayer) -> Result:
    """A slice by start and sizes; -1 takes the rest of an axis."""
    begin, sizes = layer.dims(1, "where it begins"), layer.dims(2, "the sizes")
    shape = layer.type(0).shape
    if not len(begin) == len(sizes) == len(shape):
        raise layer.wrong(f"has {len(begin)} starts and {len(sizes)} sizes for {layer.type(0)}")
    end = tuple(
        whole if isinstance(size, int) and size == -1 else first + size
        for first, size, whole in zip(begin, sizes, shape, strict=True)
    )
    axes = tuple(range(len(shape)))
    return call("slice", layer.input(0), begin=begin, end=end, strides=(1,) * len(axes), axes=axes)


@converter("STRIDED_SLICE", codes=True)
def strided_slice(layer: TfliteLayer) -> Result:
    """NumPy slicing. Masks say which bounds are open, and which axes are new or dropped."""
    begin, end = layer.dims(1, "the starts"), layer.dims(2, "the ends")
    steps = layer.numbers(3, "the steps")
    masks = {
        name: layer.integer(f"{name}_mask", 0)
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if layer.flag("offset", False):
        raise layer.unsupported("ends that are counted from the starts")
    x, shape = layer.input(0), layer.type(0).shape
    given = len(begin)
    if not given == len(end) == len(steps) <= 32:  # masks have 32 bits
        raise layer.wrong(f"has {given} starts, {len(end)} ends and {len(steps)} steps")
    real = sum(not (masks["new_axis"] | masks["ellipsis"]) >> n & 1 for n in range(given))
    axis, chosen, kept = 0, [], []
    for n in range(given):
        bit = 1 << n
        if masks["ellipsis"] & bit:
            more = len(shape) - real
            kept += list(range(axis, axis + more))
            axis += more
        elif masks["new_axis"] & bit:
            kept.append(-1)
        else:
            if axis >= len(shape):
                raise layer.wrong(f"slices {given} axes of {layer.type(0)}")
            chosen.append((axis, n))
            if not masks["shrink_axis"] & bit:
                kept.append(axis)
            axis += 1
    kept += list(range(axis, len(shape)))
    starts, ends, strides, axes = [], [], [], []
    for axis, n in chosen:
        step, size = steps[n], shape[axis]
        if step == 0:
            raise layer.wrong("has a step of 0")
        first: Dim = begin[n]
        last: Dim = end[n]
        if masks["shrink_axis"] >> n & 1:
            first = 0 if masks["begin"] >> n & 1 else first
            step, last = 1, first + 1 if not _is(first, -1) else size
        else:
            if masks["begin"] >> n & 1:
                first = 0 if step > 0 else size - 1
            if masks["end"] >> n & 1:
                last = size if step > 0 else -(1 << 31)
        starts.append(first)
        ends.append(last)
        strides.append(step)
        axes.append(axis)
    if axes:
        x = call(
            "slice",
            x,
            begin=tuple(starts),
            end=tuple(ends),
            strides=tuple(strides),
            axes=tuple(axes),
        )
    sizes = x.tensor.shape
    return reshaped(x, [1 if n < 0 else sizes[n] for n in kept])


def _is(size: Dim, number: int) -> bool:
    return isinstance(size, int) and size == number


@converter("TILE", codes=True)
def tile(layer: TfliteLayer) -> Result:
    """Repeats the tensor along each axis."""
    return call("tile", layer.input(0), repeats=layer.dims(1, "the repeats"))


@converter("BROADCAST_TO", codes=True)
def broadcast_to(layer: TfliteLayer) -> Result:
    """Broadcasts to a shape."""
    return call("broadcast_to", layer.input(0), shape=layer.dims(1, "the shape"))


@converter("REVERSE_V2", codes=True)
def reverse(layer: TfliteLayer) -> Result:
    """Reverses some axes."""
    axes = tuple(layer.positive(a, layer.rank()) for a in layer.numbers(1, "the axes"))
    return call("flip", layer.input(0), axes=axes) if axes else layer.input(0)


# --- constants ------------------------------------------------------------------------------------


@converter("FILL", codes=True)
def fill(layer: TfliteLayer) -> Result:
    """A tensor of a shape, filled with one value."""
    shape, value = layer.dims(0, "the shape"), layer.input(1)
    known = layer.known(1)
    if known is not None and known.size == 1:
        return filled(known.reshape(-1)[0], value.tensor.dtype, shape)
    return call("broadcast_to", value, shape=shape)


@converter("RANGE")
def numbers_between(layer: TfliteLayer) -> Result:
    """Numbers from a start to below a limit, in equal steps."""
    start, limit, delta = (layer.one(n, ("start", "limit", "delta")[n]) for n in range(3))
    if not delta:
        raise layer.wrong("has a step of 0")
    arange_size(start, limit, delta)
    dtype = layer.type(0).dtype
    return call("arange", start=start, stop=limit, step=delta, dtype=dtype)


# --- selection ------------------------------------------------------------------------------------


@converter("GATHER", codes=True)
def gather(layer: TfliteLayer) -> Result:
    """Elements along an axis, by index."""
    x, places = layer.input(0), layer.input(1)
    batch = layer.positive(layer.integer("batch_dims", 0), layer.rank(1) + 1)
    if not batch:
        return call("gather", x, places, axis=layer.axis())
    return _gathered_in_batches(layer, x, places, batch, layer.axis())


def _gathered_in_batches(layer: TfliteLayer, x: Expr, places: Expr, batch: int, axis: int) -> Expr:
    """Gathers along an axis with separate indices for each batch, as one gather over flattened
    rows.
    """
    if axis < batch:
        raise layer.wrong(f"gathers along axis {axis} of batches of {batch} axes")
    shape, own = x.tensor.shape, places.tensor.shape
    before, inner = shape[:axis], own[batch:]
    count, size = product(shape[:axis]), shape[axis]
    # One row of indices for each element of the axes before.
    places = reshaped(places, (*own[:batch], *(1,) * (axis - batch), product(inner)))
    places = call("broadcast_to", places, shape=(*before, product(inner)))
    places = cast(reshaped(places, (count, product(inner))), "i64")
    rows = reshaped(call("arange", start=0, stop=count, step=1, dtype="i64"), (count, 1))
    one = reshaped(_size_along(x, axis), (1, 1))
    flat = reshaped(x, (count * size, *shape[axis + 1 :]))
    found = call("gather", flat, call("add", call("multiply", rows, one), places), axis=0)
    return reshaped(found, (*before, *inner, *shape[axis + 1 :]))


def _size_along(x: Expr, axis: int) -> Expr:
    return call("gather", call("shape_of", x), scalar(axis, "i64"), axis=0)


@converter("GATHER_ND", codes=True)
def gather_nd(layer: TfliteLayer) -> Result:
    """Elements or slices, by index rows."""
    return call("gather_nd", layer.input(0), layer.input(1), batch_dims=0)


@converter("ONE_HOT", codes=True)
def one_hot(layer: TfliteLayer) -> Result:
    """`on` at the index along a new axis, `off` elsewhere."""
    indices, depth = layer.input(0), layer.one_int(1, "the depth")
    axis = layer.positive(layer.integer("axis", -1), layer.rank() + 1)
    values = call("concatenate", *(reshaped(layer.input(n), (1,)) for n in (3, 2)), axis=0)
    places = call("arange", start=0, stop=depth, step=1, dtype=indices.tensor.dtype)
    shape = [1] * (layer.rank() + 1)
    shape[axis] = depth
    own = list(indices.tensor.shape)
    found = call("equal", reshaped(indices, [*own[:axis], 1, *own[axis:]]), reshaped(places, shape))
    return call("gather", values, cast(found, "i64"), axis=0)


@converter("TOPK_V2", codes=True)
def top_k(layer: TfliteLayer) -> Result:
    """The largest elements of each row and their indices, largest first."""
    count = layer.one_int(1, "the number of elements")
    values, places = fields(call("top_k", layer.input(0), k=count, axis=-1), 2)
    return [values, cast(places, layer.result_dtype(1))]


@converter("WHERE", codes=True)
def where(layer: TfliteLayer) -> Result:
    """The indices of the nonzero elements, one row for each."""
    places = call("nonzero", layer.input(0))
    return call("transpose", places, axes=(1, 0))


@converter("UNIQUE", codes=True)
def unique(layer: TfliteLayer) -> Result:
    """The distinct elements in order of appearance, and for each element its index among them."""
    values, _, places, _ = fields(call("unique", layer.input(0), axis=None, sort=False), 4)
    return [values, cast(places, layer.result_dtype(1))]


@converter("REVERSE_SEQUENCE", codes=True)
def reverse_sequence(layer: TfliteLayer) -> Result:
    """Reverses the first elements of each sequence."""
    batch, time = layer.axis("batch_dim"), layer.axis("seq_dim")
    return call(
        "reverse_sequence", layer.input(0), layer.input(1), batch_axis=batch, time_axis=time
    )


@converter("BROADCAST_ARGS")
def broadcast_args(layer: TfliteLayer) -> Result:
    """The shape to which two shapes broadcast."""
    a, b = layer.input(0), layer.input(1)
    one = scalar(1, a.tensor.dtype)
    rank = max(x.tensor.size for x in (a, b) if isinstance(x.tensor.size, int))
    a, b = (_led(x, rank) for x in (a, b))
    return call("where", call("equal", a, one), b, a)


def _led(shape: Expr, rank: int) -> Expr:
    """Returns a shape with leading axes of size 1."""
    count = shape.tensor.size
    if not isinstance(count, int) or count == rank:
        return shape
    return call("pad", shape, pads=(rank - count, 0), mode="constant", value=1)
