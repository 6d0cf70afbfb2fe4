"""Operators that move elements: views, slices, joins, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, cast, fields, reshaped
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, SymDim, at_least, dim_max, product
from clew.ir.expr import Expr
from clew.ops.movement.slicing import from_front

_MOST: Final = 64  # operands of one kernel that joins


@converter(
    "view.default",
    "reshape",
    "_unsafe_view",
    "unsqueeze",
    "flatten",
    "unflatten",
    "_reshape_alias",
    "view_copy.default",
    "unsqueeze_copy",
)
def view(layer: Layer) -> Result:
    """The same elements in the shape that torch gives."""
    x, wanted = layer.tensor(), layer.result().shape
    layer.require(product(x.tensor.shape), "==", product(wanted))
    return reshaped(x, wanted)


@converter("squeeze", "squeeze_copy")
def squeeze(layer: Layer) -> Result:
    """Without axes of size 1; in a call, free sizes must be others, for which torch keeps axes."""
    x = layer.tensor()
    for axis in layer.axes() if x.tensor.rank else ():
        size = x.tensor.shape[axis]
        if isinstance(size, SymDim) and not at_least(size, 2):
            layer.require(size, "!=", 1)
    return reshaped(x, layer.result().shape)


@converter("permute", "permute_copy")
def permute(layer: Layer) -> Result:
    """Axes in another order."""
    x = layer.tensor()
    rank = max(x.tensor.rank, 1)
    axes = tuple(a % rank for a in layer.integers("dims"))
    return x if axes == tuple(range(len(axes))) else call("transpose", x, axes=axes)


@converter("transpose.int", "t", "t_copy")
def transpose(layer: Layer) -> Result:
    """Two axes exchanged."""
    x = layer.tensor()
    rank = x.tensor.rank
    if rank < 2:
        return x
    first = layer.axis("dim0") if layer.has("dim0") else 0
    second = layer.axis("dim1") if layer.has("dim1") else 1
    axes = list(range(rank))
    axes[first], axes[second] = axes[second], axes[first]
    return call("transpose", x, axes=tuple(axes))


@converter("expand", "expand_copy")
def expand(layer: Layer) -> Result:
    """Axes of size 1 repeated."""
    x, wanted = layer.tensor(), layer.result()
    if x.tensor.shape == wanted.shape:
        return x
    return call("broadcast_to", x, shape=wanted.shape)


@converter("repeat", "tile")
def repeat(layer: Layer) -> Result:
    """The whole repeated along axes, with new axes in front."""
    x = layer.tensor()
    counts = layer.dims("repeats" if "repeats" in layer.arguments else "dims")
    rank = max(len(counts), x.tensor.rank)
    counts = (*(1,) * (rank - len(counts)), *counts)
    x = reshaped(x, (*(1,) * (rank - x.tensor.rank), *x.tensor.shape))
    if all(c == 1 for c in counts):
        return x
    if all(isinstance(c, int) for c in counts):
        return call("tile", x, repeats=counts)
    shape = x.tensor.shape
    pairs: list[Dim] = [d for size in shape for d in (1, size)]
    wide: list[Dim] = [d for c, size in zip(counts, shape, strict=True) for d in (c, size)]
    return layer.shaped(call("broadcast_to", reshaped(x, pairs), shape=tuple(wide)))


def sliced(x: Expr, axis: int, begin: Dim, end: Dim, step: int = 1) -> Expr:
    """Returns a part of an axis; bounds are in range."""
    if begin == 0 and end == x.tensor.shape[axis] and step == 1:
        return x
    return call("slice", x, begin=(begin,), end=(end,), strides=(step,), axes=(axis,))


def bounds(layer: Layer, axis: int) -> tuple[Dim, Dim]:
    """Returns `start` and `end` of a slice, counted from the front and clamped to the axis."""
    size = layer.type().shape[axis]
    start = _bound(layer, "start", 0, size)
    end = _bound(layer, "end", 1 << 62, size)
    return start, end


def _bound(layer: Layer, name: str, default: int, size: Dim) -> Dim:
    value = layer.dim(name, default)
    if isinstance(value, int) and isinstance(size, int):
        return min(max(value + size if value < 0 else value, 0), size)
    if isinstance(value, int) and value >= (1 << 62):
        return size
    hint = layer.hint(name)
    if hint is not None and hint < 0 and size + value != 0 and dim_max(-value, 1) != -value:
        layer.require(-value, ">", 0)
        return dim_max(size + value, 0)
    return from_front(value, size, 0, size)


@converter("slice", "slice_copy")
def slice_(layer: Layer) -> Result:
    """Every `step`-th slice from `start` to before `end`."""
    x, axis = layer.tensor(), layer.axis()
    size = x.tensor.shape[axis]
    begin, end = bounds(layer, axis)
    step = layer.integer("step", 1)
    if isinstance(begin, int) and isinstance(end, int):
        end = max(begin, end)
    count = layer.known_size(axis)
    if step == 1 and count is not None and end - begin != count:
        # torch has proven that so many elements exist, so no bound lies outside.
        begin, end = (end - count, end) if end == size else (begin, begin + count)
    return sliced(x, axis, begin, end, step)


@converter("select.int", "select_copy")
def select(layer: Layer) -> Result:
    """One slice of an axis, without it."""
    x, axis = layer.tensor(), layer.axis()
    index = layer["index"]
    shape = x.tensor.shape
    rest = (*shape[:axis], *shape[axis + 1 :])
    if isinstance(index, int):
        size = shape[axis]
        if index < 0 and isinstance(size, SymDim):
            return reshaped(sliced(x, axis, size + index, size + index + 1), rest)
        index = index + size if index < 0 else index
        return reshaped(sliced(x, axis, index, index + 1), rest)
    place = index if isinstance(index, Expr) else layer.importer.scalar_of(index, "i64")
    return call("gather", x, place, axis=axis)


@converter("cat", "concat")
def cat(layer: Layer) -> Result:
    """Tensors one after another; empty vectors are left out."""
    wanted = layer.result()
    parts = layer.tensors("tensors")
    kept = [p for p in parts if p.tensor.shape != (0,) or wanted.rank == 1]
    kept = [cast(p, wanted.dtype) for p in kept]
    if len(kept) == 1:
        return reshaped(kept[0], wanted.shape)
    return joined(kept, layer.axis("dim", wanted.rank))


def joined(parts: Sequence[Expr], axis: int) -> Expr:
    """Returns tensors one after another, many of them in groups."""
    parts = list(parts)
    while len(parts) > _MOST:
        groups = [parts[n : n + _MOST] for n in range(0, len(parts), _MOST)]
        parts = [call("concatenate", *g, axis=axis) if len(g) > 1 else g[0] for g in groups]
    return parts[0] if len(parts) == 1 else call("concatenate", *parts, axis=axis)


@converter("stack")
def stack(layer: Layer) -> Result:
    """Tensors along a new axis."""
    wanted = layer.result()
    axis = layer.axis("dim", wanted.rank)
    rows = []
    for part in layer.tensors("tensors"):
        shape = part.tensor.shape
        rows.append(cast(reshaped(part, (*shape[:axis], 1, *shape[axis:])), wanted.dtype))
    return joined(rows, axis)


@converter("split_with_sizes", "split", "chunk", "split_with_sizes_copy")
def split(layer: Layer) -> Result:
    """Pieces of an axis, in the sizes that torch gives."""
    x, axis = layer.tensor(), layer.axis()
    sizes = tuple(layer.result(n).shape[axis] for n in range(len(layer.fakes)))
    if len(sizes) == 1:
        return [x]
    return fields(call("split", x, sizes=sizes, axis=axis), len(sizes))


@converter("unbind", "unbind_copy")
def unbind(layer: Layer) -> Result:
    """All slices of an axis, without it."""
    x, axis = layer.tensor(), layer.axis()
    count = len(layer.fakes)
    if count <= 1:
        return [reshaped(x, layer.result(n).shape) for n in range(count)]
    parts = fields(call("split", x, sizes=(1,) * count, axis=axis), count)
    return [reshaped(part, layer.result(n).shape) for n, part in enumerate(parts)]


@converter("flip")
def flip(layer: Layer) -> Result:
    """Axes backwards."""
    axes = layer.axes("dims") if layer.integers("dims") else ()
    x = layer.tensor()
    return call("flip", x, axes=axes) if axes and x.tensor.rank else x


@converter("roll")
def roll(layer: Layer) -> Result:
    """Elements moved along axes, those that leave entering at the other end."""
    x = layer.tensor()
    shifts, axes = layer.dims("shifts"), layer.integers("dims") if layer.has("dims") else ()
    if not axes:
        flat = reshaped(x, (product(x.tensor.shape),))
        return reshaped(_rolled(flat, shifts[0], 0), x.tensor.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        x = _rolled(x, shift, axis % max(x.tensor.rank, 1))
    return x


def _rolled(x: Expr, shift: Dim, axis: int) -> Expr:
    size = x.tensor.shape[axis] if x.tensor.rank else 1
    if size in (0, 1):
        return x
    places = call("arange", start=-shift, stop=size - shift, step=1, dtype="i64")
    # The size as a value: a remainder of sizes would not be defined for an empty axis.
    count = call("arange", start=size, stop=size + 1, step=1, dtype="i64")
    return call("gather", x, call("floor_mod", places, count), axis=axis)


@converter("constant_pad_nd")
def constant_pad(layer: Layer) -> Result:
    """Padding from the last axis on, as (before, after); negative ones crop."""
    x = layer.tensor()
    before, after = pads_of(layer, x.tensor.rank)
    value = layer.get("value", 0)
    if isinstance(value, Expr):
        raise layer.unsupported("a value known only during the run")
    if not any(before) and not any(after):
        return x
    return call("pad", x, pads=(*before, *after), mode="constant", value=float(value))


def pads_of(layer: Layer, rank: int) -> tuple[list[Dim], list[Dim]]:
    """Returns what is padded before and after each axis."""
    given = layer.dims("pad" if "pad" in layer.arguments else "padding")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for n in range(len(given) // 2):
        before[rank - 1 - n], after[rank - 1 - n] = given[2 * n], given[2 * n + 1]
    return before, after


PAD_MODES: Final = {"reflection": "reflect", "replication": "edge"}
OTHER_PADS: Final = tuple(f"{mode}_pad{rank}d" for mode in PAD_MODES for rank in (1, 2, 3))


@converter(*OTHER_PADS)
def other_pad(layer: Layer) -> Result:
    """Padding mirrored at the edges, or with the elements there."""
    x = layer.tensor()
    before, after = pads_of(layer, x.tensor.rank)
    return call("pad", x, pads=(*before, *after), mode=PAD_MODES[layer.op.partition("_")[0]])


@converter("pixel_shuffle")
def pixel_shuffle(layer: Layer) -> Result:
    """Channels to blocks of pixels."""
    x, factor = layer.tensor(), layer.integer("upscale_factor")
    *lead, channels, height, width = x.tensor.shape
    split_ = (*lead, channels // (factor * factor), factor, factor, height, width)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return layer.shaped(call("transpose", reshaped(x, split_), axes=order))


@converter("pixel_unshuffle")
def pixel_unshuffle(layer: Layer) -> Result:
    """Blocks of pixels to channels."""
    x, factor = layer.tensor(), layer.integer("downscale_factor")
    *lead, channels, height, width = x.tensor.shape
    parts = (*lead, channels, height // factor, factor, width // factor, factor)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return layer.shaped(call("transpose", reshaped(x, parts), axes=order))


@converter("diagonal", "diagonal_copy")
def diagonal(layer: Layer) -> Result:
    """The elements of a diagonal, as a new last axis."""
    x, offset = layer.tensor(), layer.integer("offset", 0)
    first, second = layer.axis("dim1"), layer.axis("dim2")
    length = layer.result().shape[-1]
    if length == 0:
        return layer.filled(0)
    x = sliced(x, first, max(-offset, 0), length + max(-offset, 0))
    x = sliced(x, second, max(offset, 0), length + max(offset, 0))
    found = call("diagonal", x, first=first, second=second)
    place = first - (1 if second < first else 0)
    order = [n for n in range(found.tensor.rank) if n != place] + [place]
    return found if order == sorted(order) else call("transpose", found, axes=tuple(order))


@converter("triu", "tril")
def triangle(layer: Layer) -> Result:
    """The part above or below a diagonal."""
    upper = layer.op.startswith("triu")
    return call("trilu", layer.tensor(), k=layer.dim("diagonal", 0), upper=upper)


@converter("unfold")
def unfold(layer: Layer) -> Result:
    """Windows of an axis, each as a new last axis."""
    x, axis = layer.tensor(), layer.axis("dimension")
    size, step = layer.dim("size"), layer.dim("step")
    count = layer.result().shape[axis]
    if x.tensor.rank == 0:
        return sliced(reshaped(x, (1,)), 0, 0, size)
    starts = call("arange", start=0, stop=count, step=1, dtype="i64")
    starts = call("multiply", starts, layer.importer.scalar_of(step, "i64"))
    inner = call("arange", start=0, stop=size, step=1, dtype="i64")
    places = call("add", reshaped(starts, (count, 1)), inner)
    found = call("gather", x, places, axis=axis)
    order = [n for n in range(found.tensor.rank) if n != axis + 1] + [axis + 1]
    return found if order == sorted(order) else call("transpose", found, axes=tuple(order))
