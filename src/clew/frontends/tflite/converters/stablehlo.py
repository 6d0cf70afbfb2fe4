"""StableHLO operators that LiteRT runs itself.

Source: the StableHLO specification, and LiteRT's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.tflite.converters.blocks import spread
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import CONVERTERS, Result, converter
from clew.ir.dims import product
from clew.ir.expr import Expr

_BINARY: Final = {
    "STABLEHLO_ADD": "add", "STABLEHLO_MULTIPLY": "multiply", "STABLEHLO_MAXIMUM": "maximum",
    "STABLEHLO_MINIMUM": "minimum", "STABLEHLO_SHIFT_LEFT": "left_shift",
}  # fmt: skip


def _binary(op: str) -> Any:
    return lambda layer: call(op, layer.input(0), layer.input(1))


for _name, _op in _BINARY.items():
    CONVERTERS.register(_name)(_binary(_op))


@converter("STABLEHLO_AND")
def both(layer: TfliteLayer) -> Result:
    """Logical or bitwise AND."""
    op = "logical_and" if layer.type(0).dtype == "bool" else "bitwise_and"
    return call(op, layer.input(0), layer.input(1))


@converter("STABLEHLO_PAD")
def pad(layer: TfliteLayer) -> Result:
    """Pads around the tensor and between its elements; negative padding crops."""
    value = layer.known_one(1)
    before, after, between = (
        layer.integers(name)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    if value is None:
        raise layer.unknown("the value of the padding")
    return padded(layer, before, after, between, value)


def padded(
    layer: TfliteLayer,
    before: Sequence[int],
    after: Sequence[int],
    between: Sequence[int],
    value: float,
) -> Expr:
    """Returns input 0 padded with a value along each axis: before it, after it, and between its
    elements.
    """
    x = layer.input(0)
    same = len(before) == len(after) == len(between) == x.tensor.rank
    if not same or min(between, default=0) < 0:
        raise layer.wrong(f"pads {layer.type(0)} by {[*before, *after, *between]}")
    for axis, count in enumerate(between):
        if count:
            x = spread(x, axis, count + 1, value)
    ends = tuple(max(count, 0) for count in (*before, *after))
    x = call("pad", x, pads=ends, mode="constant", value=value)
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low < 0 or high < 0:
            size = x.tensor.shape[axis]
            begin, end = -min(low, 0), size + min(high, 0)
            x = call("slice", x, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))
    return x


@converter("STABLEHLO_GATHER")
def gather(layer: TfliteLayer) -> Result:
    """Slices of one size that start at index vectors, which are clamped so that the slices lie
    inside.
    """
    x, starts = layer.input(0), cast(layer.input(1), "i64")
    shape = x.tensor.shape
    sizes, mapped, offsets, dropped = (
        layer.integers(name)
        for name in ("slice_sizes", "start_index_map", "offset_dims", "collapsed_slice_dims")
    )
    vector, rank = layer.integer("index_vector_dim", 0), len(shape)
    if len(sizes) != rank or not {*mapped, *dropped} <= set(range(rank)):
        raise layer.wrong(f"has boxes of {list(sizes)} in {layer.type(0)}")
    if not all(isinstance(size, int) for size in shape):
        raise layer.open_size("the size of an axis", *shape)
    known = [size for size in shape if isinstance(size, int)]
    if vector == starts.tensor.rank:
        starts = reshaped(starts, (*starts.tensor.shape, 1))
    batch = [n for n in range(starts.tensor.rank) if n != vector]
    if not 0 <= vector < starts.tensor.rank or starts.tensor.shape[vector] != len(mapped):
        raise layer.wrong(f"has indices {layer.type(1)} of {len(mapped)} axes")
    starts = call("transpose", starts, axes=(*batch, vector))
    outer = starts.tensor.shape[:-1]
    steps = [int(np.prod(known[axis + 1 :])) for axis in range(rank)]
    room = constant(np.array([known[axis] - sizes[axis] for axis in mapped], np.int64))
    inside = call("maximum", call("minimum", starts, room), scalar(0, "i64"))
    unit = constant(np.array([steps[axis] for axis in mapped], np.int64))
    first = call("sum", call("multiply", inside, unit), axes=(len(outer),), keepdims=False)
    within: Any = np.zeros((), np.int64)
    for axis, size in enumerate(sizes):
        if axis not in dropped:
            within = within[..., None] + np.arange(size) * steps[axis]
    places = call(
        "add", reshaped(first, (*outer, *(1,) * within.ndim)), constant(within.astype(np.int64))
    )
    found: Expr = call("gather", reshaped(x, (product(shape),)), places, axis=0)
    total = found.tensor.rank
    if sorted(offsets) != list(offsets) or len(offsets) != within.ndim:
        raise layer.wrong(f"has boxes of {within.ndim} axes at {list(offsets)}")
    order = iter(range(len(outer)))
    inner = {axis: len(outer) + n for n, axis in enumerate(offsets)}
    axes = tuple(inner[n] if n in inner else next(order) for n in range(total))
    return call("transpose", found, axes=axes)
