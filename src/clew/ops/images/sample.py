"""Sampling of a grid at positions given by a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from clew import te
from clew.cost.policy.layouts import CHANNELS_TO_SAMPLE
from clew.ir.dims import Dim, typical
from clew.ir.expr import Attrs
from clew.ir.types import TensorType, Type, integer_limits, is_integer
from clew.ops.common import (
    accumulator,
    differ,
    f16,
    f32,
    f64,
    held_length,
    i32,
    need_float,
    tensor_type,
    unknown_tensor,
)
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import unary
from clew.te.roles import SELECTED, TABLE

_PADDINGS = ("zeros", "border", "reflection")
_MODES = ("linear", "nearest", "cubic")
_CUBIC = -0.75


def _unnormalized(place: Scalar, size: Dim, align_corners: bool) -> Scalar:
    """Returns the index for a coordinate in [-1, 1]."""
    n = te.cast(place.dtype, te.size(size))
    if align_corners:
        return (place + 1.0) * 0.5 * (n - 1.0)
    return ((place + 1.0) * n - 1.0) * 0.5


def _reflected(place: Scalar, size: Dim, align_corners: bool) -> Scalar:
    """Returns an index reflected at the edges as often as needed."""
    n = te.cast(place.dtype, te.size(size))
    low = te.as_scalar(0.0 if align_corners else -0.5, place.dtype)
    span = te.maximum(n - 1.0 if align_corners else n, 1.0)
    away = unary("abs", place - low)
    turns = te.call("floor", away / span)
    rest = away - turns * span
    odd = (turns - te.call("floor", turns * 0.5) * 2.0).equal(1.0)
    return te.select(odd, span - rest, rest) + low


def limited(place: Scalar, size: Dim, beside: int = 1) -> Scalar:
    """Returns an index clamped to the axis plus `beside` elements, so that its integer part
    exists.
    """
    n = te.cast(place.dtype, te.size(size))
    known = te.select(te.call("isnan", place), te.as_scalar(-1.0 - beside, place.dtype), place)
    return te.minimum(te.maximum(known, -1.0 - beside), n + float(beside))


def clamped(value: Scalar, dtype: str) -> Scalar:
    """Returns a float clamped to the range of an integer dtype."""
    lowest, highest = integer_limits(dtype)
    digits = 24 if value.dtype == "f32" else 53
    rest = max(highest.bit_length() - digits, 0)  # digits that a float cannot hold
    return te.minimum(te.maximum(value, float(lowest)), float(highest >> rest << rest))


def linear_taps(fraction: Scalar) -> list[tuple[int, Scalar]]:
    """Returns the taps around a position, as offsets from the element below it, and their
    weights.
    """
    return [(0, 1.0 - fraction), (1, fraction)]


def cubic_taps(fraction: Scalar, a: float) -> list[tuple[int, Scalar]]:
    """`linear_taps` for cubic convolution. Source: Keys, 1981, with its coefficient `a`."""

    def near(t: Scalar) -> Scalar:
        return ((t * (a + 2) - (a + 3)) * t) * t + 1.0

    def far(t: Scalar) -> Scalar:
        return ((t * a - 5 * a) * t + 8 * a) * t - 4 * a

    return [
        (-1, far(fraction + 1.0)),
        (0, near(fraction)),
        (1, near(1.0 - fraction)),
        (2, far(2.0 - fraction)),
    ]


def interpolated(
    places: Sequence[Scalar],
    taps: Callable[[Scalar], list[tuple[int, Scalar]]],
    read: Callable[[list[Scalar]], Scalar],
) -> Scalar:
    """Returns the sum of the elements around a position, weighted by the product of axis weights.

    `read` returns the element at integer positions, which may lie outside.
    """
    axes = []
    for place in places:
        low = te.call("floor", place)
        first = te.cast("i64", low)
        axes.append([(first + n, weight) for n, weight in taps(place - low)])

    def along(axis: int, at: list[Scalar]) -> Scalar:
        if axis == len(axes):
            return read(at)
        total: Scalar | None = None
        for index, weight in axes[axis]:
            value = along(axis + 1, [*at, index]) * weight
            total = value if total is None else total + value
        assert total is not None
        return total

    return along(0, [])


def element_or_zero(
    x: Tensor, lead: Sequence[Scalar], indices: Sequence[Scalar], dtype: str
) -> Scalar:
    """Returns an element by the indices of the last axes, in a dtype; 0 outside."""
    inside = te.as_scalar(True, "bool")
    for index, size in zip(indices, x.shape[len(lead) :], strict=True):
        inside = inside & (index >= 0) & (index < te.size(size))
    return te.select(inside, te.cast(dtype, x[(*lead, *indices)]), te.as_scalar(0, dtype))


def _reflected_index(index: Scalar, size: Dim, align_corners: bool) -> Scalar:
    """Returns an integer index reflected at the edges. These are at the outer elements with
    `align_corners`, else half an element beyond.
    """
    n = te.size(size)
    period = te.maximum(n * 2 - 2, 1) if align_corners else n * 2
    rest = index % period
    return te.minimum(rest, period - rest if align_corners else period - 1 - rest)


def _positions(attrs: Attrs, types: Sequence[TensorType]) -> int:
    """Returns how many positions of images are read; 0 if too few channels would be neighbors."""
    if typical(types[0].shape[1]) < CHANNELS_TO_SAMPLE:
        return 0
    taps = {"nearest": 1, "linear": 4, "cubic": 16}[attrs.mode]
    return taps * math.prod(map(typical, types[1].shape[:-1]))


@register_op(
    "grid_sample",
    samples=(
        Sample(f32(2, 3, 5, 4), f32(2, 3, 6, 2), low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), mode="nearest", low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), padding="border", align_corners=True),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), padding="reflection", low=-3, high=3),
        Sample(f32(1, 2, 3, 4, 5), f32(1, 2, 3, 4, 3), low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), mode="cubic", low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), mode="cubic", padding="border"),
        Sample(f32(1, 1, 5, 4), f32(1, 3, 3, 2), mode="cubic", padding="reflection",
               align_corners=True, low=-3, high=3),
        Sample(f32(1, 1, 3, 3, 4), f32(1, 1, 2, 2, 3), mode="cubic", low=-1.3, high=1.3),
        Sample(f32(1, 2, 7), f32(1, 3, 1), low=-1.3, high=1.3),
        Sample(f16(1, 2, 5, 4), f32(1, 3, 6, 2), low=-1.3, high=1.3),
        Sample(f64(1, 2, 5, 4), f64(1, 3, 6, 2), low=-1.3, high=1.3),
        Sample(i32(1, 2, 5, 4), f32(1, 3, 6, 2), mode="nearest", low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 6, 2), mode="nearest", padding="reflection",
               reflect_first=True, low=-3, high=3),
        Sample(f32(2, 5, 4, 20), f32(2, 3, 6, 2), layout="NHWC", low=-1.3, high=1.3),
        Sample(f32(1, 5, 4, 3), f32(1, 3, 3, 2), mode="nearest", layout="NHWC", low=-1.3,
               high=1.3),
        Sample(f16(1, 5, 4, 9), f32(1, 3, 3, 2), mode="cubic", padding="border", layout="NHWC"),
        Sample(f32(2, 2, 5, 4, 4), f32(2, 3, 3, 2), padding="reflection", layout="NCHW4c", low=-3,
               high=3),
        Sample(f32(1, 2, 5, 4), f32(2, 3, 6, 2), error="T108"),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 6, 3), error="T108"),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 6, 2), layout="NHCW", error="T109"),
        Sample(f32(1, 2, 5, 4), i32(1, 3, 6, 2), error="T105"),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 6, 2), mode="area", error="T107"),
        Sample(f32(1, 2, 0, 4), f32(1, 3, 6, 2), error="T110"),
    ),
    traits=Traits(channels_last=_positions),
)  # fmt: skip
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    reflect_first: bool = False,
    layout: str = "NCHW",
) -> Tensor:
    """Samples `x[N, C, (D,) H, W]` at the positions in `grid[N, ..., axes]`, innermost axis first,
    in [-1, 1].

    `mode` is linear, nearest or cubic. `padding` beyond the edge is zeros, the border's elements,
    or the reflection. A position beyond the edge is moved inside before interpolation, except for
    cubic with a border, where the standard is silent: there each element around it is clamped, as
    in ONNX Runtime and PyTorch. The nearest element is chosen before that, or after it with
    `reflect_first`, as in PyTorch; this makes a difference halfway between two elements. Weights
    are in the wider of the two dtypes, at least f32. Integer results are truncated, and clamped to
    the dtype for cubic, whose sums may exceed it. The `layout` of images is NCHW, also blocked by
    channels, or NHWC; `NCHW` also stands for other numbers of spatial axes.

    Errors: T105, T107, T108, T109, T110. Source: ONNX GridSample-22.
    """
    need_float("grid_sample", grid)
    if mode not in _MODES or padding not in _PADDINGS:
        raise GraphTypeError(
            "T107",
            f"grid_sample: mode={mode!r}, padding={padding!r}",
            hint=f"modes are {', '.join(_MODES)}; paddings {', '.join(_PADDINGS)}",
        )
    plain = layout == "NCHW"
    if layout != "NHWC" and parse_layout(layout).plain != "NCHW":
        raise GraphTypeError("T109", f"grid_sample: unsupported layout {layout}")
    first = 1 if layout == "NHWC" else 2  # of the spatial axes
    spatial = x.rank - 2 if plain else 2
    rank = x.rank if plain else 4
    fits = spatial > 0 and grid.rank == rank and not differ(grid.shape[0], x.shape[0])
    fits = fits and x.rank == (rank if plain else len(parse_layout(layout).axes))
    if not fits or differ(grid.shape[-1], spatial):
        raise GraphTypeError("T108", f"grid_sample: grid {grid.type} does not fit {x.type}")
    sizes = x.shape[first : first + spatial]
    places = (*x.shape[:first], *grid.shape[1:-1], *x.shape[first + spatial :])
    if 0 in sizes and all(isinstance(n, int) and n for n in places):
        raise GraphTypeError("T110", f"grid_sample: {x.type} has no elements to sample")
    wide = "f64" if "f64" in (x.dtype, grid.dtype) else "f32"

    def place(point: Sequence[Scalar], axis: int) -> Scalar:
        size = sizes[axis]
        value = te.cast(wide, grid[(*point, spatial - 1 - axis)])
        value = _unnormalized(value, size, align_corners)
        if mode == "nearest" and not reflect_first:
            value = te.call("round", value)
        if padding == "reflection" or (padding == "border" and mode != "cubic"):
            n = te.cast(wide, te.size(size))
            low, high = (te.as_scalar(0.0, wide), n - 1.0) if align_corners else (-0.5, n - 0.5)
            back = te.minimum(te.maximum(value, 0.0), n - 1.0)
            if padding == "reflection":
                back = _reflected(value, size, align_corners)
            value = te.select((value < low) | (value > high), back, value)
        if mode == "nearest" and reflect_first:
            value = te.call("round", value)
        return limited(value, size, 2)

    def held(index: Scalar, size: Dim) -> Scalar:
        """Returns the element that replaces one beyond the edge."""
        if padding == "reflection":
            index = _reflected_index(index, size, align_corners)
        return te.minimum(te.maximum(index, 0), te.size(size - 1))

    def read(i: tuple[Scalar, ...], indices: Sequence[Scalar], dtype: str) -> Scalar:
        if padding == "zeros":
            return element_or_zero(x, i[:2], indices, dtype)
        at = [held(n, size) for n, size in zip(indices, sizes, strict=True)]
        return te.cast(dtype, x[(*i[:2], *at)])

    def taps(fraction: Scalar) -> list[tuple[int, Scalar]]:
        return linear_taps(fraction) if mode == "linear" else cubic_taps(fraction, _CUBIC)

    def around(axis: int) -> tuple[Tensor, Tensor | None]:
        """Returns tables of the elements around each point along an axis, -1 for those outside,
        and of their weights.
        """

        def at(*i: Scalar) -> Scalar:
            low = te.call("floor", place(i[:-1], axis))
            index = te.cast("i64", low) + i[-1] + (-1 if mode == "cubic" else 0)
            if mode == "nearest":
                index = te.cast("i64", place(i[:-1], axis))
            if padding != "zeros":
                return held(index, sizes[axis])
            return te.select((index >= 0) & (index < te.size(sizes[axis])), index, -1)

        def weight(*i: Scalar) -> Scalar:
            value = place(i[:-1], axis)
            found = taps(value - te.call("floor", value))
            total = found[-1][1]
            for n, (_, tap) in enumerate(found[:-1]):
                total = te.select(i[-1].equal(n), tap, total)
            return total

        count = {"nearest": 1, "linear": 2, "cubic": 4}[mode]
        shape, letter = (*grid.shape[:-1], count), "yx"[axis]
        found = te.compute(shape, at, f"grid_sample_at_{letter}", role=TABLE)
        if mode == "nearest":
            return found, None
        return found, te.compute(shape, weight, f"grid_sample_weights_{letter}", role=TABLE)

    if not plain:
        return _sampled_by_channels(x, [around(n) for n in range(2)], places, first, wide)

    def body(*i: Scalar) -> Scalar:
        places = [place((i[0], *i[2:]), axis) for axis in range(spatial)]
        if mode == "nearest":
            return read(i, [te.cast("i64", p) for p in places], x.dtype)
        value = interpolated(places, taps, lambda indices: read(i, indices, wide))
        if mode == "cubic" and is_integer(x.dtype):
            value = clamped(value, x.dtype)
        return te.cast(x.dtype, value)

    return te.compute(places, body, "grid_sample")


@grid_sample.layout
def _grid_sample_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Takes whole blocks of channels, which are carried along, and channels last."""
    channels, block = types[0].shape[1], parse_layout(layout).factor("C")
    whole = isinstance(channels, int) and channels % block == 0
    if len(types[0].shape) != 4 or is_integer(types[0].dtype) or (layout != "NHWC" and not whole):
        return None
    return (layout, "NCHW"), attrs.with_(layout=layout), layout


def _sampled_by_channels(
    x: Tensor,
    around: Sequence[tuple[Tensor, Tensor | None]],
    shape: Sequence[Dim],
    first: int,
    wide: str,
) -> Tensor:
    """Returns the sum of the weighted elements around each point, for vectors of channels."""
    (rows, down), (columns, across) = around
    over = [te.reduce_axis(at.shape[-1], n) for (at, _), n in zip(around, ("y", "x"), strict=True)]

    def body(*i: Scalar) -> Scalar:
        point = (i[0], *i[first : first + 2])
        row, column = rows[(*point, over[0])], columns[(*point, over[1])]
        place = (te.maximum(row, 0), te.maximum(column, 0))
        value = te.cast(wide, x[(*i[:first], *place, *i[first + 2 :])])
        if down is not None and across is not None:
            value = value * (down[(*point, over[0])] * across[(*point, over[1])])
        inside = (row >= 0) & (column >= 0)
        return te.sum(te.select(inside, value, te.as_scalar(0, wide)), over)

    if wide == x.dtype:
        return te.compute(shape, body, "grid_sample", layout=x.layout, role=SELECTED)
    found = te.compute(shape, body, "grid_sample_sum", role=SELECTED)
    return te.compute(shape, lambda *i: te.cast(x.dtype, found[i]), "grid_sample", layout=x.layout)


@register_op(
    "affine_grid",
    samples=(
        Sample(f32(2, 2, 3), size=(2, 3, 5, 4)),
        Sample(f32(1, 2, 3), size=(1, 3, 5, 4), align_corners=True),
        Sample(f32(2, 3, 4), size=(2, 1, 2, 3, 4)),
        Sample(f16(1, 2, 3), size=(1, 1, 2, 1), align_corners=True),
        Sample(f32(2, 2, 3), size=(2, 3, 5), error="T108"),
        Sample(f32(2, 2, 3), size=(3, 3, 5, 4), error="T108"),
        Sample(f32(2, 3), size=(2, 3, 5, 4), error="T108"),
        Sample(f32(2, 2, 3), size=(2, 3, -5, 4), error="T107"),
        Sample(i32(2, 2, 3), size=(2, 3, 5, 4), error="T105"),
    ),
)
def affine_grid(theta: Tensor, *, size: tuple[int, ...], align_corners: bool = False) -> Tensor:
    """Applies affine maps `theta[N, axes, axes + 1]` to the positions of the elements of images of
    a `size` (N, C, (D,) H, W): `[N, (D,) H, W, axes]` in [-1, 1], innermost axis first.

    With `align_corners`, the outer elements are at -1 and 1, else half an element inside. A single
    element is at 0, as in PyTorch.

    Errors: T105, T107, T108. Source: ONNX AffineGrid-20.
    """
    need_float("affine_grid", theta)
    axes = len(size) - 2
    wanted = (size[0] if size else 0, axes, axes + 1)
    if theta.rank != 3 or axes < 1 or any(map(differ, theta.shape, wanted)):
        raise GraphTypeError("T108", f"affine_grid: theta {theta.type} does not fit {size}")
    if any(isinstance(n, int) and n < 0 for n in size):
        raise GraphTypeError("T107", f"affine_grid: invalid size {size}")
    wide = accumulator(theta.dtype)

    def coordinate(index: Scalar, n: Dim) -> Scalar:
        """Returns the position of an element as a quotient of integers."""
        over = te.maximum(te.size(n) - 1, 1) if align_corners else te.size(n)
        place = index * 2 + 1 - te.size(n)
        return te.cast(wide, place) / te.cast(wide, over)

    def body(*i: Scalar) -> Scalar:
        batch, space, axis = i[0], i[1:-1], i[-1]
        total = te.cast(wide, theta[batch, axis, axes])
        for k in range(axes):
            part = coordinate(space[axes - 1 - k], size[-1 - k])
            total = total + te.cast(wide, theta[batch, axis, k]) * part
        return te.cast(theta.dtype, total)

    return te.compute((theta.shape[0], *size[2:], axes), body, "affine_grid")


@affine_grid.dynamic
def _affine_grid_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("affine_grid", types[0])
    return unknown_tensor("affine_grid", source, held_length("affine_grid", types, attrs.size))
