"""Pooling that needs each window's elements: places of maxima, and divisors of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, constant, reshaped, scalar
from clew.frontends.torch.layer import Layer
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ir.types import TensorType
from clew.te.interpret import identity_of

Places = NDArray[np.int64]


def sizes_of(layer: Layer, x: Expr, y: TensorType, rank: int) -> list[tuple[int, ...]]:
    """Returns the sizes of the spatial axes of an image, and of its windows' results `y`.

    Errors: U063 if they are free.
    """
    found = [tuple(d for d in t.shape[-rank:] if isinstance(d, int)) for t in (x.tensor, y)]
    if any(len(sizes) < rank for sizes in found):
        free = ", ".join(map(str, x.tensor.shape[-rank:]))
        raise layer.unsupported(f"an image of the free sizes [{free}]")
    return found


def adaptive_windows(size: int, count: int) -> Places:
    """Returns the positions in each of `count` windows that divide an axis, as rows of one length:
    shorter ones repeat their last position.
    """
    begins = [n * size // count for n in range(count)]
    ends = [-(-(n + 1) * size // count) for n in range(count)]
    most = max((e - b for b, e in zip(begins, ends, strict=True)), default=1)
    rows = [np.minimum(np.arange(b, b + most), e - 1) for b, e in zip(begins, ends, strict=True)]
    return np.array(rows, np.int64).reshape(count, most)


def largest_in_windows(x: Expr, places: Sequence[Places]) -> tuple[Expr, Expr]:
    """Returns the largest element of each window, and its place in the image. A negative position
    is outside of the image.
    """
    rank = len(places)
    first = x.tensor.rank - rank
    lead, sizes = x.tensor.shape[:first], x.tensor.shape[first:]
    for axis, rows in enumerate(places):
        # Each gather puts an axis of windows and one of their elements in an axis's place.
        flat = np.maximum(rows, 0).reshape(-1)
        x = call("gather", x, constant(flat), axis=first + axis)
    shape = [n for rows in places for n in rows.shape]
    x = reshaped(x, (*lead, *shape))
    outer = tuple(range(first))
    order = (
        *outer,
        *(first + 2 * n for n in range(rank)),
        *(first + 2 * n + 1 for n in range(rank)),
    )
    counts = [len(rows) for rows in places]
    elements = product(tuple(rows.shape[1] for rows in places))
    x = reshaped(call("transpose", x, axes=order), (*lead, *counts, elements))
    table, outside = _tables(places, sizes)
    axis = x.tensor.rank - 1
    if outside.any():
        low = scalar(identity_of("max", x.tensor.dtype), x.tensor.dtype)
        x = call("where", constant(outside), low, x)
    found = call("argmax", x, axis=axis, keepdims=True)
    values = call("max", x, axes=(axis,), keepdims=False)
    wide = call("broadcast_to", constant(table), shape=x.tensor.shape)
    place = call("gather_elements", wide, found, axis=axis)
    return values, reshaped(place, values.tensor.shape)


def _tables(places: Sequence[Places], sizes: Sequence[Any]) -> tuple[Places, NDArray[np.bool_]]:
    """Returns the place in the image of each element of each window, and whether it is outside."""
    rank = len(places)
    shape = [len(rows) for rows in places] + [rows.shape[1] for rows in places]
    table, outside = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for axis, (rows, size) in enumerate(zip(places, sizes, strict=True)):
        own = [1] * (2 * rank)
        own[axis], own[rank + axis] = rows.shape
        spread = rows.reshape(own)
        table, outside = table * size + spread, outside | (spread < 0)
    return table.reshape(*shape[:rank], -1), outside.reshape(*shape[:rank], -1)


def strided_windows(
    size: int, count: int, kernel: int, stride: int, padding: int, dilation: int
) -> Places:
    """Returns the positions in each window of an axis, -1 outside of the image."""
    begins = np.arange(count)[:, None] * stride - padding
    rows = begins + np.arange(kernel)[None, :] * dilation
    return np.where((rows < 0) | (rows >= size), -1, rows).astype(np.int64)


def divisors(
    layer: Layer,
    sizes: Sequence[Dim],
    counts: Sequence[Dim],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
) -> Expr:
    """Returns the divisors of the sums of windows, as torch counts elements: `i64`, a scalar or one
    number per window. Sizes may be free.
    """
    override = layer.get("divisor_override")
    if override is not None:
        return layer.importer.scalar_of(override, "i64")
    include_pad = layer.flag("count_include_pad", True)
    found: Expr | None = None
    rank = len(counts)
    every = zip(sizes, counts, kernel, strides, padding, strict=True)
    for axis, (size, count, k, step, pad) in enumerate(every):
        steps = call("arange", start=0, stop=count, step=1, dtype="i64")
        begins = call("add", call("multiply", steps, scalar(step, "i64")), scalar(-pad, "i64"))
        ends: Expr = call("add", begins, scalar(k, "i64"))
        most = size + pad if include_pad else size
        ends = call("minimum", ends, layer.importer.scalar_of(most, "i64"))
        if not include_pad:
            begins = call("maximum", begins, scalar(0, "i64"))
        length = reshaped(call("subtract", ends, begins), (count, *(1,) * (rank - axis - 1)))
        found = length if found is None else call("multiply", found, length)
    assert found is not None
    return found
