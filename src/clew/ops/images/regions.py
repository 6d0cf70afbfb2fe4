"""Pooling over regions of images that a tensor specifies.

A region's borders are only known at run time. Loops run over the whole image; weights of rows and
columns, or comparisons with the borders, select the elements inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.expr import Attrs
from clew.ir.types import TensorType
from clew.ops.common import accumulator, differ, f16, f32, f64, i64, need_float, need_integer
from clew.ops.math.reduce import narrowed
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.support.bounds import Places
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Index, unary

Array = np.ndarray[Any, Any]

_COORDINATES = ("half_pixel", "output_half_pixel")
_MOST_SAMPLES = 1024
# Up to this many points along an axis of a bin, the elements around each are read individually.
# More points share elements, which are summed by rows and columns.
_FEW_SAMPLES = 4
# No region that far away can affect an image; integers up to it are exact in f32.
_FAR = float(1 << 24)


def _bounded(value: Scalar, bound: float = _FAR) -> Scalar:
    """Returns a number that is not NaN and fits an index, for any value of a tensor."""
    known = te.select(te.call("isnan", value), te.as_scalar(0.0, value.dtype), value)
    return te.minimum(te.maximum(known, -bound), bound)


def _image_of(name: str, batches: Scalar, count: Dim) -> Scalar:
    """Returns the number of an image in the batch."""
    places = Places(name, 0, count, count, from_end=False, noun="image")
    return te.Checked(te.cast("i64", batches), places)


def _check(
    name: str, x: Tensor, rois: Tensor, columns: int, out: tuple[int, ...], rank: int = 4
) -> None:
    need_float(name, x, rois)
    if x.rank != rank or rois.rank != 2 or differ(rois.shape[1], columns):
        raise GraphTypeError("T108", f"{name}: {x.type} at {rois.type}, expected [n, {columns}]")
    if x.dtype != rois.dtype:
        raise GraphTypeError("T101", f"{name}: input is {x.type}, regions are {rois.type}")
    if len(out) != 2 or any(n < 1 for n in out):
        raise GraphTypeError("T107", f"{name}: output {out}")
    regions = rois.shape[0]
    if any(n == 0 for n in (x.shape[0], *x.shape[2:])) and isinstance(regions, int) and regions:
        raise GraphTypeError("T110", f"{name}: {x.type} has nothing to pool")


class _Axis:
    """The sample points of regions' bins along an axis of the image."""

    def __init__(self, rois: Tensor, size: Dim, column: int, bins: int, attrs: Any) -> None:
        self.rois, self.size, self.column, self.bins = rois, size, column, bins
        self.samples: int = attrs["samples"]
        self.scale: float = attrs["scale"]
        self.half: bool = attrs["coordinates"] == "half_pixel"
        self.wide = accumulator(rois.dtype)

    def border(self, region: Scalar, column: int) -> Scalar:
        value = te.cast(self.wide, self.rois[region, column]) * self.scale
        return _bounded(value - 0.5 if self.half else value)

    def bin_of(self, region: Scalar) -> Scalar:
        """Returns the size of a bin."""
        span = self.border(region, self.column + 2) - self.border(region, self.column)
        if not self.half:
            span = te.maximum(span, 1.0)
        return span / float(self.bins)

    def points(self, region: Scalar) -> Scalar:
        """Returns the number of points in a bin, as an index: the given one, or one per element."""
        if self.samples > 0:
            return te.as_scalar(self.samples)
        return te.maximum(te.cast("i64", te.call("ceil", self.bin_of(region))), 0)

    def step(self, region: Scalar) -> Scalar:
        """Returns the distance between points."""
        points = te.cast(self.wide, te.maximum(self.points(region), 1))
        return self.bin_of(region) / points

    def start(self, region: Scalar, number: Scalar) -> Scalar:
        """Returns the start of a bin."""
        return self.border(region, self.column) + te.cast(self.wide, number) * self.bin_of(region)

    def place(self, region: Scalar, number: Scalar, point: Scalar) -> Scalar:
        middle = te.cast(self.wide, point) + 0.5
        return self.start(region, number) + middle * self.step(region)

    def inside(self, place: Scalar) -> Scalar:
        return (place >= -1.0) & (place <= te.cast(self.wide, te.size(self.size)))

    def taps(self, place: Scalar) -> list[tuple[Scalar, Scalar]]:
        """Returns the two elements around a position inside the image, and their weights."""
        last = te.size(self.size) - 1
        held = te.minimum(te.maximum(place, 0.0), te.cast(self.wide, last))
        low = te.minimum(te.maximum(te.cast("i64", held), 0), last)
        part = held - te.cast(self.wide, low)
        return [(low, 1.0 - part), (te.minimum(low + 1, last), part)]

    def sampled(self) -> tuple[Tensor, Tensor]:
        """Returns the stages `[regions, bins, 2 * samples]`: the two elements around each point of
        a bin, and their weights, which are 0 for points outside.
        """

        def around(region: Scalar, number: Scalar, k: Scalar) -> tuple[Scalar, Scalar]:
            place = self.place(region, number, k // 2)
            (low, a), (high, b) = self.taps(place)
            second = (k % 2).equal(1)
            weight = te.select(self.inside(place), te.select(second, b, a), 0.0)
            return te.select(second, high, low), weight

        shape = (self.rois.shape[0], self.bins, 2 * self.samples)
        letter = "yx"[1 - self.column]
        at = te.compute(shape, lambda *i: around(*i)[0], f"roi_align_at_{letter}")
        of = te.compute(shape, lambda *i: around(*i)[1], f"roi_align_weights_{letter}")
        return at, of

    def weights(self, name: str) -> Tensor:
        """Returns the stage `[regions, bins, size]`: the sums of the weights that the points of a
        bin give an element.

        Many points are more than half an element apart, so few of them can be near an element; the
        number of the first is computed.
        """
        k = te.reduce_axis(self.samples if self.samples > 0 else 8, "point")

        def body(region: Scalar, number: Scalar, h: Scalar) -> Scalar:
            point: Scalar = k
            if self.samples == 0:
                ahead = te.cast(self.wide, h) - 1.0 - self.start(region, number)
                first = _bounded(ahead / te.maximum(self.step(region), 1e-6) - 0.5)
                point = k + te.maximum(te.cast("i64", te.call("floor", first)) - 1, 0)
            place = self.place(region, number, point)
            counts = (point < self.points(region)) & self.inside(place)
            weight = te.as_scalar(0.0, self.wide)
            for n, (at, part) in enumerate(self.taps(place)):
                # At the last element both taps coincide, and the second has weight 0.
                hit = at.equal(h) & (part > 0.0) if n else at.equal(h)
                weight = weight + te.select(hit, part, 0.0)
            return te.sum(te.select(counts, weight, 0.0), k)

        return te.compute((self.rois.shape[0], self.bins, self.size), body, name)


_REGIONS = np.array([[0, 0, 3, 3], [1.5, -2, 9, 4], [2, 2, 2.5, 2.25], [4, 4, 1, 1]], "f4")
_IMAGES = np.array([1, 0, 1, 0])


@register_op(
    "nn.roi_align",
    samples=(
        Sample(f32(2, 3, 5, 6), _REGIONS, _IMAGES, out=(2, 3), samples=2),
        Sample(f32(2, 3, 5, 6), _REGIONS, _IMAGES, out=(2, 2), scale=0.5),
        Sample(f32(2, 1, 5, 6), _REGIONS, _IMAGES, out=(1, 2), coordinates="output_half_pixel"),
        Sample(f32(2, 1, 5, 6), _REGIONS, _IMAGES, out=(2, 2), mode="max", samples=2),
        Sample(f32(2, 1, 5, 6), _REGIONS, _IMAGES, out=(2, 2), mode="max"),
        Sample(f16(2, 3, 5, 6), _REGIONS.astype("f2"), _IMAGES, out=(2, 3), samples=2),
        Sample(f64(2, 3, 5, 6), _REGIONS.astype("f8"), _IMAGES, out=(2, 3)),
        Sample(f32(2, 1, 5, 6), _REGIONS, _IMAGES * 2, out=(2, 2), error="I320"),
        Sample(f32(2, 1, 5, 6), _REGIONS, -_IMAGES, out=(2, 2), mode="max", error="I320"),
        Sample(f32(2, 4, 5, 6), _REGIONS, _IMAGES, out=(2, 2), samples=3),
        Sample(f32(2, 2, 5, 6, 4), _REGIONS, _IMAGES, out=(2, 3), samples=2, layout="NCHW4c"),
        Sample(f32(2, 3, 5, 6), _REGIONS, _IMAGES, out=(2, 3), samples=8),
        Sample(f32(2, 3, 5), _REGIONS, _IMAGES, out=(2, 3), error="T108"),
        Sample(f32(2, 3, 5, 6), _REGIONS, _IMAGES, out=(2, 3), layout="NHWC", error="T109"),
        Sample(f32(2, 3, 5, 6, 4), _REGIONS, _IMAGES, out=(2, 3), layout="NCHW4c", error="T109"),
        Sample(f32(2, 3, 5, 6), f32(4, 5), i64(4), out=(2, 3), error="T108"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(3), out=(2, 3), error="T108"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), f32(4), out=(2, 3), error="T105"),
        Sample(f32(2, 3, 5, 6), f64(4, 4), i64(4), out=(2, 3), error="T101"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(4), out=(2, 0), error="T107"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(4), out=(2, 2), mode="sum", error="T107"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(4), out=(2, 2), samples=-1, error="T107"),
        Sample(f32(2, 3, 0, 6), f32(4, 4), i64(4), out=(2, 2), error="T110"),
    ),
)
def roi_align(
    x: Tensor,
    rois: Tensor,
    batches: Tensor,
    *,
    out: tuple[int, ...],
    mode: str = "avg",
    samples: int = 0,
    scale: float = 1.0,
    coordinates: str = "half_pixel",
    layout: str = "NCHW",
) -> Tensor:
    """The `out` bins of regions of `x[N, C, H, W]`. Each is the mean (`avg`) of points interpolated
    in it, or the largest weighted element around them (`max`).

    `rois[n, 4]` are (x1, y1, x2, y2) in elements divided by `scale`, `batches[n]` their images. A
    bin has `samples` points along an axis; 0 means its size rounded up. `coordinates` is
    half_pixel, which shifts by half an element, or output_half_pixel, where regions have at least
    one element. `layout` may be blocked by channels for the mean of few points.

    Errors: T101, T105, T107, T108, T109, T110, I320. Source: ONNX RoiAlign-22.
    """
    name = "nn.roi_align"
    parsed, few = parse_layout(layout), _takes_blocks(mode, samples)
    if parsed.plain != "NCHW" or not (few or layout == "NCHW"):
        raise GraphTypeError(
            "T109", f"{name}: unsupported layout {layout} for mode={mode!r}, samples={samples}"
        )
    _check(name, x, rois, 4, out, rank=len(parsed.axes))
    need_integer(name, batches)
    if batches.rank != 1 or differ(batches.shape[0], rois.shape[0]):
        raise GraphTypeError("T108", f"{name}: {rois.type} does not match images {batches.type}")
    known = mode in ("avg", "max") and coordinates in _COORDINATES
    if not known or not 0 <= samples <= _MOST_SAMPLES:
        raise GraphTypeError(
            "T107",
            f"{name}: mode={mode!r}, coordinates={coordinates!r}, samples={samples}",
            hint=f"modes are avg, max; coordinates {', '.join(_COORDINATES)}; samples 0 to "
            f"{_MOST_SAMPLES}",
        )
    attrs = {"samples": samples, "scale": scale, "coordinates": coordinates}
    axes = [_Axis(rois, x.shape[2 + n], 1 - n, out[n], attrs) for n in range(2)]
    if mode == "max":
        return _largest_around(x, batches, axes)
    pooled = _mean_of_samples if few else _mean_of_points
    return pooled(x, batches, axes)


def _takes_blocks(mode: str, samples: int) -> bool:
    return mode == "avg" and 0 < samples <= _FEW_SAMPLES


@roi_align.layout
def _roi_align_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Allows blocks if elements are read individually: blocks are carried along."""
    channels, block = types[0].shape[1], parse_layout(layout).factor("C")
    whole = isinstance(channels, int) and channels % block == 0
    if not whole or not _takes_blocks(attrs.mode, attrs.samples):
        return None
    return (layout, "NCHW", "NCHW"), attrs.with_(layout=layout), layout


def _mean_of_samples(x: Tensor, batches: Tensor, axes: list[_Axis]) -> Tensor:
    """Returns the stages: the rows and columns around few points and their weights, then the mean
    of the elements there. `x` may be in blocks of channels.
    """
    (at_row, of_row), (at_column, of_column) = (a.sampled() for a in axes)
    wide, samples = axes[0].wide, axes[0].samples
    over = [te.reduce_axis(2 * samples, name) for name in ("of_y", "of_x")]

    def body(region: Scalar, channel: Scalar, ph: Scalar, pw: Scalar, *lane: Scalar) -> Scalar:
        row, column = (region, ph, over[0]), (region, pw, over[1])
        image = _image_of("nn.roi_align", batches[region], x.shape[0])
        weight = of_row[row] * of_column[column]
        element = te.cast(wide, x[image, channel, at_row[row], at_column[column], *lane])
        # An element with weight 0 may be NaN.
        return te.sum(te.select(weight > 0.0, weight * element, 0.0), over)

    shape = (axes[0].rois.shape[0], x.shape[1], axes[0].bins, axes[1].bins, *x.shape[4:])
    total = te.compute(shape, body, "roi_align_sum")
    mean = te.compute(
        shape, lambda *i: te.cast(x.dtype, total[i] * (1.0 / samples**2)), "roi_align"
    )
    mean.layout = x.layout
    return mean


def _mean_of_points(x: Tensor, batches: Tensor, axes: list[_Axis]) -> Tensor:
    """Returns the stages: weights of rows and columns, then sums over rows, then over columns."""
    rows, columns = axes[0].weights("roi_align_rows"), axes[1].weights("roi_align_columns")
    h, w = te.reduce_axis(x.shape[2], "h"), te.reduce_axis(x.shape[3], "w")
    wide = axes[0].wide
    count = rows.shape[0]

    def over_rows(region: Scalar, channel: Scalar, ph: Scalar, at: Scalar) -> Scalar:
        weight = rows[region, ph, h]
        element = x[_image_of("nn.roi_align", batches[region], x.shape[0]), channel, h, at]
        # A row with weight 0 may hold NaN.
        return te.sum(te.select(weight > 0.0, weight * te.cast(wide, element), 0.0), h)

    lines = te.compute((count, x.shape[1], axes[0].bins, x.shape[3]), over_rows, "roi_align_lines")

    def over_columns(region: Scalar, channel: Scalar, ph: Scalar, pw: Scalar) -> Scalar:
        weight = columns[region, pw, w]
        return te.sum(te.select(weight > 0.0, weight * lines[region, channel, ph, w], 0.0), w)

    shape = (count, x.shape[1], axes[0].bins, axes[1].bins)
    total = te.compute(shape, over_columns, "roi_align_sum")

    def body(*i: Scalar) -> Scalar:
        points = te.maximum(axes[0].points(i[0]) * axes[1].points(i[0]), 1)
        return te.cast(x.dtype, total[i] / te.cast(wide, points))

    return te.compute(shape, body, "roi_align")


def _largest_around(x: Tensor, batches: Tensor, axes: list[_Axis]) -> Tensor:
    """Returns the stages: the largest product of an element and its weight over all points.

    If bins determine the number of points, points before the image are skipped; the others are more
    than half an element apart, so twice the axis's size is enough.
    """
    wide = axes[0].wide
    over: list[Index] = []
    for axis, letter in zip(axes, "yx", strict=True):
        most = axis.samples if axis.samples > 0 else axis.size * 2 + 6
        over.append(te.reduce_axis(most, f"i{letter}"))

    def body(region: Scalar, channel: Scalar, ph: Scalar, pw: Scalar) -> Scalar:
        image = _image_of("nn.roi_align", batches[region], x.shape[0])
        exists, inside, around = te.as_scalar(True, "bool"), te.as_scalar(True, "bool"), []
        for axis, number, k in zip(axes, (ph, pw), over, strict=True):
            point: Scalar = k
            if axis.samples == 0:
                ahead = -1.0 - axis.start(region, number)
                first = _bounded(ahead / te.maximum(axis.step(region), 1e-6) - 0.5)
                skipped = te.maximum(te.cast("i64", te.call("floor", first)) - 1, 0)
                point = k + te.minimum(skipped, te.maximum(axis.points(region) - 1, 0))
            place = axis.place(region, number, point)
            exists = exists & (point < axis.points(region))
            inside = inside & axis.inside(place)
            around.append(axis.taps(place))
        best: Scalar | None = None
        for row, a in around[0]:
            for column, b in around[1]:
                value = te.cast(wide, x[image, channel, row, column]) * (a * b)
                best = value if best is None else te.maximum(best, value)
        assert best is not None
        lowest = te.as_scalar(float("-inf"), wide)
        return te.max(te.select(exists, te.select(inside, best, 0.0), lowest), over)

    shape = (axes[0].rois.shape[0], x.shape[1], axes[0].bins, axes[1].bins)
    top = te.compute(shape, body, "roi_align_top")

    def known(*i: Scalar) -> Scalar:
        some = (axes[0].points(i[0]) > 0) & (axes[1].points(i[0]) > 0)
        return te.cast(x.dtype, te.select(some, top[i], 0.0))

    return te.compute(shape, known, "roi_align")


_BATCHED = np.array([[0, 0, 0, 3, 3], [1, 2, -2, 9, 4], [1, 4, 4, 1, 1]], "f4")


@register_op(
    "nn.max_roi_pool",
    samples=(
        Sample(f32(2, 3, 6, 7), _BATCHED, out=(2, 3)),
        Sample(f32(2, 2, 6, 7), _BATCHED, out=(4, 1), scale=0.5),
        Sample(f16(2, 2, 6, 7), _BATCHED.astype("f2"), out=(2, 2)),
        Sample(f32(2, 3, 6, 7), _BATCHED * np.float32(2), out=(2, 3), error="I320"),
        Sample(f32(2, 3, 6, 7), _BATCHED + np.float32(np.nan), out=(2, 3), error="I320"),
        Sample(f32(2, 3, 6, 7), f32(4, 4), out=(2, 3), error="T108"),
        Sample(f32(2, 3, 6, 7), f64(4, 5), out=(2, 3), error="T101"),
        Sample(f32(2, 3, 6, 7), f32(4, 5), out=(2,), error="T107"),
        Sample(f32(2, 3, 6, 0), f32(4, 5), out=(2, 3), error="T110"),
    ),
)
def max_roi_pool(x: Tensor, rois: Tensor, *, out: tuple[int, ...], scale: float = 1.0) -> Tensor:
    """The `out` bins of regions of `x[N, C, H, W]`. Each is the largest element in it; empty bins
    are 0. `rois[n, 5]` are (image, x1, y1, x2, y2) in elements divided by `scale`, rounded.

    Errors: T101, T105, T107, T108, T110, I320. Source: ONNX MaxRoiPool-22.
    """
    name = "nn.max_roi_pool"
    _check(name, x, rois, 5, out)
    wide = accumulator(x.dtype)

    def border(region: Scalar, column: int) -> Scalar:
        """Returns a border as an index; halves are rounded away from 0."""
        value = _bounded(te.cast(wide, rois[region, column]) * scale)
        whole = te.cast("i64", te.call("floor", unary("abs", value) + 0.5))
        return te.select(value < 0.0, -whole, whole)

    def limits(region: Scalar, axis: int, number: Scalar) -> tuple[Scalar, Scalar]:
        """Returns the first element of a bin along an axis, and the one after its last."""
        start, bins, size = border(region, 2 - axis), out[axis], x.shape[2 + axis]
        span = te.maximum(border(region, 4 - axis) - start + 1, 1)
        first = number * span // bins + start
        last = -((-(number + 1) * span) // bins) + start
        return te.maximum(first, 0), te.minimum(last, te.size(size))

    lowest = te.as_scalar(float("-inf"), wide)
    h, w = te.reduce_axis(x.shape[2], "h"), te.reduce_axis(x.shape[3], "w")

    def over_rows(region: Scalar, channel: Scalar, ph: Scalar, at: Scalar) -> Scalar:
        first, last = limits(region, 0, ph)
        image = _image_of(name, te.cast(wide, rois[region, 0]), x.shape[0])
        element = te.cast(wide, x[image, channel, h, at])
        return te.max(te.select((h >= first) & (h < last), element, lowest), h)

    shape = (rois.shape[0], x.shape[1], *out)
    lines = te.compute((*shape[:3], x.shape[3]), over_rows, "max_roi_pool_rows")

    def over_columns(region: Scalar, channel: Scalar, ph: Scalar, pw: Scalar) -> Scalar:
        first, last = limits(region, 1, pw)
        element = lines[region, channel, ph, w]
        return te.max(te.select((w >= first) & (w < last), element, lowest), w)

    top = te.compute(shape, over_columns, "max_roi_pool_top")

    def body(*i: Scalar) -> Scalar:
        some = te.as_scalar(True, "bool")
        for axis in range(2):
            first, last = limits(i[0], axis, i[2 + axis])
            some = some & (first < last)
        return te.select(some, top[i], 0.0)

    return narrowed(te.compute(shape, body, "max_roi_pool"), x.dtype, "max_roi_pool_cast")
