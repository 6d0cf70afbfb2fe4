"""Shape, order and repetition of elements."""

from __future__ import annotations

import numpy as np

from clew.exporters.onnx.registry import Writing, writes
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import get_op


@writes("reshape")
def reshape(w: Writing) -> str:
    """`Reshape`."""
    return w.emit("Reshape", *w.inputs, w.integers(*w.attrs.shape))


@writes("transpose")
def transpose(w: Writing) -> str:
    """`Transpose`."""
    rank = w.types[0].rank
    if not rank:
        return w.emit("Identity", *w.inputs)
    return w.emit("Transpose", *w.inputs, perm=[a % rank for a in w.attrs.axes])


@writes("broadcast_to")
def broadcast_to(w: Writing) -> str:
    """`Expand`."""
    return w.emit("Expand", *w.inputs, w.integers(*w.type.concrete))


@writes("tile")
def tile(w: Writing) -> str:
    """`Tile`."""
    return w.emit("Tile", *w.inputs, w.integers(*w.attrs.repeats))


@writes("repeat")
def repeat(w: Writing) -> str:
    """Each element expanded along a new axis, flattened, and cropped."""
    (x,), shape, repeats = w.inputs, w.shape(), w.attrs.repeats
    n = w.attrs.axis % len(shape)
    lead, rest = shape[: n + 1], shape[n + 1 :]
    apart = w.emit("Reshape", x, w.integers(*lead, 1, *rest))
    wide = w.emit("Expand", apart, w.integers(*lead, repeats, *rest))
    flat = w.emit("Reshape", wide, w.integers(*shape[:n], shape[n] * repeats, *rest))
    if w.attrs.size == shape[n] * repeats:
        return flat
    return w.emit("Slice", flat, w.integers(0), w.integers(w.attrs.size), w.integers(n))


@writes("flip")
def flip(w: Writing) -> str:
    """A slice with steps of -1."""
    axes = w.attrs.axes
    if not axes:
        return w.emit("Identity", *w.inputs)
    ends = [-(2**63)] * len(axes)
    steps = [-1] * len(axes)
    return w.emit(
        "Slice",
        *w.inputs,
        w.integers(*(-1 for _ in axes)),
        w.integers(*ends),
        w.integers(*axes),
        w.integers(*steps),
    )


@writes("trilu")
def trilu(w: Writing) -> str:
    """`Trilu`."""
    return w.emit("Trilu", *w.inputs, w.constant(np.int64(w.attrs.k)), upper=w.attrs.upper)


@writes("diagonal")
def diagonal(w: Writing) -> str:
    """Every (n + 1)-th element of the n by n matrices of the two axes."""
    (x,), rank, shape = w.inputs, w.types[0].rank, w.shape()
    first, second = w.attrs.first % rank, w.attrs.second % rank
    rest = [n for n in range(rank) if n not in (first, second)]
    size = shape[first]
    moved = w.transposed(x, [*rest, first, second])
    flat = w.emit("Reshape", moved, w.integers(*(shape[n] for n in rest), size * size))
    last = len(rest)
    bounds = (w.integers(0), w.integers(size * size), w.integers(last), w.integers(size + 1))
    found = w.emit("Slice", flat, *bounds)
    order = [*rest, first]
    kept = [n for n in range(rank) if n != second]
    return w.transposed(found, [order.index(n) for n in kept])


@writes("layout_transform")
def layout_transform(w: Writing) -> str:
    """`Transpose` between layouts without blocks."""
    source, target = parse_layout(w.attrs.src_layout), parse_layout(w.attrs.dst_layout)
    if source.factors or target.factors:
        w.refuse("a layout has blocks")
    return w.emit("Transpose", *w.inputs, perm=[source.axes.index(a) for a in target.axes])


@writes("full", "arange", "mel_weight_matrix", "window")
def constant(w: Writing) -> str:
    """The value of the reference."""
    return w.constant(get_op(w.call.op_name).run_reference([], w.attrs))


@writes("shape_of")
def shape_of(w: Writing) -> str:
    """The sizes, which are known."""
    return w.integers(*w.shape())
