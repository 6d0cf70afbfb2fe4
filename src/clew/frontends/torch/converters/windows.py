"""Pooling that needs each window's elements: places of maxima, and divisors of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.numbers import floor_quotient
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


@dataclass(frozen=True)
class Windows:
    """The windows of an axis of a size: `places[count, elements]` has the position of each element,
    which is negative outside of the axis.
    """

    size: Dim
    places: Expr

    @property
    def outside(self) -> Expr:
        """Where an element is outside."""
        return call("less", self.places, scalar(0, "i64"))


def adaptive_places(size: int, count: int) -> Places:
    """Returns the positions in each of `count` windows that divide an axis, as rows of one length,
    filled up with -1.
    """
    begins = [n * size // count for n in range(count)]
    ends = [-(-(n + 1) * size // count) for n in range(count)]
    most = max((e - b for b, e in zip(begins, ends, strict=True)), default=1)
    rows = [np.arange(b, b + most) for b in begins]
    rows = [np.where(row < e, row, -1) for row, e in zip(rows, ends, strict=True)]
    return np.array(rows, np.int64).reshape(count, most)


def adaptive_windows(size: Dim, count: Dim) -> Windows:
    """Returns `count` windows that divide an axis."""
    if isinstance(size, int) and isinstance(count, int):
        return Windows(size, constant(adaptive_places(size, count)))
    here, whole, many = _steps(count), _of(size), _of(count)
    begins = floor_quotient(call("multiply", here, whole), many)
    above = call("multiply", call("add", here, scalar(1, "i64")), whole)
    ends = call("negative", floor_quotient(call("negative", above), many))
    most = (size + count - 1) // count + 1
    rows = call("add", reshaped(begins, (count, 1)), _steps(most))
    is_in = call("less", rows, reshaped(ends, (count, 1)))
    return Windows(size, call("where", is_in, rows, scalar(-1, "i64")))


def _steps(count: Dim) -> Expr:
    return call("arange", start=0, stop=count, step=1, dtype="i64")


def _of(size: Dim) -> Expr:
    return call("arange", start=size, stop=size + 1, step=1, dtype="i64")


def largest_in_windows(x: Expr, windows: Sequence[Windows]) -> tuple[Expr, Expr]:
    """Returns the largest element of each window, and its place in the image."""
    rank = len(windows)
    first = x.tensor.rank - rank
    lead = x.tensor.shape[:first]
    for axis, rows in enumerate(windows):
        # Each gather puts an axis of windows and one of their elements in an axis's place.
        inside = call("maximum", rows.places, scalar(0, "i64"))
        x = call("gather", x, inside, axis=first + 2 * axis)
    order = (*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))
    counts = tuple(rows.places.tensor.shape[0] for rows in windows)
    elements = product(tuple(rows.places.tensor.shape[1] for rows in windows))
    x = call("transpose", x, axes=(*range(first), *(first + n for n in order)))
    x = reshaped(x, (*lead, *counts, elements))
    table, outside = (reshaped(e, (*counts, elements)) for e in _tables(windows))
    axis = x.tensor.rank - 1
    low = scalar(identity_of("max", x.tensor.dtype), x.tensor.dtype)
    x = call("where", outside, low, x)
    found = call("argmax", x, axis=axis, keepdims=True)
    values = call("max", x, axes=(axis,), keepdims=False)
    wide = call("broadcast_to", table, shape=x.tensor.shape)
    place = call("gather_elements", wide, found, axis=axis)
    return values, reshaped(place, values.tensor.shape)


def drawn_places(samples: Expr, size: Dim, count: Dim, kernel: int) -> Expr:
    """Returns the positions of the elements of `count` windows per plane that cover an axis at
    uneven distances, as `i64[..., count, kernel]`. Samples `[...]` in [0, 1) decide the distances,
    in their dtype.

    Source: B. Graham, Fractional Max-Pooling (2014), as torch computes it.
    """
    dtype, shape = samples.tensor.dtype, samples.tensor.shape
    last = call("subtract", _of(size), scalar(kernel, "i64"))
    gaps = call("maximum", call("subtract", _of(count), scalar(1, "i64")), scalar(1, "i64"))
    step = call("divide", cast(last, dtype), cast(gaps, dtype))
    start = reshaped(samples, (*shape, 1))
    here = call("add", cast(_steps(count), dtype), start)
    begins, first = (cast(call("multiply", p, step), "i64") for p in (here, start))
    begins = call("subtract", begins, first)
    at_end = call("equal", _steps(count), call("subtract", _of(count), scalar(1, "i64")))
    begins = reshaped(call("where", at_end, last, begins), (*shape, count, 1))
    return call("add", begins, constant(np.arange(kernel)))


def largest_in_planes(x: Expr, places: Sequence[Expr]) -> tuple[Expr, Expr]:
    """Returns the largest element of each window, and its place in the image. Each plane of the
    image `[planes, *sizes]` has its own windows: `i64[planes, count, kernel]` for each axis.
    """
    rank = len(places)
    planes, *sizes = x.tensor.shape
    table: Expr = scalar(0, "i64")
    counts, kernel = (tuple(e.tensor.shape[n] for e in places) for n in (1, 2))
    for axis, (rows, size) in enumerate(zip(places, sizes, strict=True)):
        own: list[Dim] = [planes, *(1,) * (2 * rank)]
        own[1 + axis], own[1 + rank + axis] = counts[axis], kernel[axis]
        table = call("multiply", table, _of(size)) if axis else table
        table = call("add", table, reshaped(rows, own))
    table = reshaped(table, (planes, product(counts), product(kernel)))
    flat = reshaped(table, (planes, product((*counts, *kernel))))
    image = reshaped(x, (planes, product(tuple(sizes))))
    found = reshaped(call("gather_elements", image, flat, axis=1), table.tensor.shape)
    place = call("argmax", found, axis=2, keepdims=True)
    place = call("gather_elements", table, place, axis=2)
    values = call("max", found, axes=(2,), keepdims=False)
    return reshaped(values, (planes, *counts)), reshaped(place, (planes, *counts))


def _tables(windows: Sequence[Windows]) -> tuple[Expr, Expr]:
    """Returns the place in the image of each element of each window, and whether it is outside, as
    `[*counts, *elements]`.
    """
    rank = len(windows)
    table: Expr = scalar(0, "i64")
    outside: Expr = scalar(False, "bool")
    for axis, rows in enumerate(windows):
        own: list[Dim] = [1] * (2 * rank)
        own[axis], own[rank + axis] = rows.places.tensor.shape
        table = call("multiply", table, _of(rows.size)) if axis else table
        table = call("add", table, reshaped(rows.places, own))
        outside = call("logical_or", outside, reshaped(rows.outside, own))
    return table, outside


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
        begins = call(
            "add", call("multiply", _steps(count), scalar(step, "i64")), scalar(-pad, "i64")
        )
        ends: Expr = call("add", begins, scalar(k, "i64"))
        most = size + pad if include_pad else size
        ends = call("minimum", ends, layer.importer.scalar_of(most, "i64"))
        if not include_pad:
            begins = call("maximum", begins, scalar(0, "i64"))
        length = reshaped(call("subtract", ends, begins), (count, *(1,) * (rank - axis - 1)))
        found = length if found is None else call("multiply", found, length)
    assert found is not None
    return found
