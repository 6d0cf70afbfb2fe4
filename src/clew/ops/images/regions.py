"""Pooling over regions of images that a tensor specifies.

A region's borders are only known at run time. Tables of each region's bins hold the rows and
columns to read, their number and their weights; loops stop at that number (`roles.SELECTED`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clew import te
from clew.cost.policy.layouts import READS_OF_MAXIMA
from clew.ir.dims import Dim, typical
from clew.ir.expr import Attrs
from clew.ir.types import TensorType
from clew.ops.common import accumulator, differ, f16, f32, f64, i64, need_float, need_integer
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.bounds import Places
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import unary

Array = np.ndarray[Any, Any]

_COORDINATES = ("half_pixel", "output_half_pixel")
_MOST_SAMPLES = 1024
_REGIONS_A_SIDE = 4  # of an image, where only a region's size says how many points it has
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
    name: str,
    x: Tensor,
    rois: Tensor,
    columns: int,
    out: tuple[int, ...],
    rank: int = 4,
    image: int = 2,
) -> None:
    need_float(name, x, rois)
    if x.rank != rank or rois.rank != 2 or differ(rois.shape[1], columns):
        raise GraphTypeError("T108", f"{name}: {x.type} at {rois.type}, expected [n, {columns}]")
    if x.dtype != rois.dtype:
        raise GraphTypeError("T101", f"{name}: input is {x.type}, regions are {rois.type}")
    if len(out) != 2 or any(n < 1 for n in out):
        raise GraphTypeError("T107", f"{name}: output {out}")
    regions = rois.shape[0]
    if (
        any(n == 0 for n in (x.shape[0], *x.shape[image : image + 2]))
        and isinstance(regions, int)
        and regions
    ):
        raise GraphTypeError("T110", f"{name}: {x.type} has nothing to pool")


def _check_layout(name: str, layout: str) -> None:
    if layout != "NHWC" and parse_layout(layout).plain != "NCHW":
        raise GraphTypeError("T109", f"{name}: unsupported layout {layout}")


def _keeps_channels(attrs: Attrs, image: TensorType, layout: str) -> bool:
    """Whether a plain image can be read in a layout: in whole blocks, or channels last."""
    channels, block = image.shape[1], parse_layout(layout).factor("C")
    if attrs.layout != "NCHW":
        return False
    return layout == "NHWC" or (isinstance(channels, int) and channels % block == 0)


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

    def around(self, averages: bool) -> _Around:
        """Returns the stages for the two elements around each point of a bin, with weights
        divided by their number if it `averages`.

        If bins determine the number of points, points before the image are skipped; the others are
        more than half an element apart, so twice the axis's size is enough.
        """
        given = self.samples > 0
        most = self.samples if given else self.size * 2 + 6
        skipped = None if given else self._table(self._skipped, "skipped")
        one = te.reduce_axis(1, "one")

        def count(region: Scalar, number: Scalar) -> Scalar:
            assert skipped is not None
            left = self.points(region) - skipped[region, number]
            return te.minimum(te.maximum(left, 0), te.size(most)) * 2

        counts = None if given else self._table(count, "count")

        def element(region: Scalar, number: Scalar, k: Scalar) -> tuple[Scalar, Scalar]:
            point = k // 2 if skipped is None else k // 2 + skipped[region, number]
            place = self.place(region, number, point)
            (low, a), (high, b) = self.taps(place)
            second, inside = (k % 2).equal(1), self.inside(place)
            weight = te.select(second, b, a)
            if averages:
                weight = weight / te.cast(self.wide, te.maximum(self.points(region), 1))
            return te.select(inside, te.select(second, high, low), -1), weight

        def known(which: int) -> Callable[..., Scalar]:
            def body(*i: Scalar) -> Scalar:
                value = element(*i)[which]
                if counts is None:
                    return value
                exists = i[2] < counts[i[:2]]
                return te.sum(te.select(exists, value, te.as_scalar(0, value.dtype)), one)

            return body

        at, weights = (
            self._table(known(n), name, (most * 2,)) for n, name in enumerate(("at", "weights"))
        )
        return _Around(at, weights, counts)

    def _skipped(self, region: Scalar, number: Scalar) -> Scalar:
        """Returns how many points of a bin lie before the image. The last one is never skipped."""
        ahead = -1.0 - self.start(region, number)
        first = _bounded(ahead / te.maximum(self.step(region), 1e-6) - 0.5)
        found = te.maximum(te.cast("i64", te.call("floor", first)) - 1, 0)
        return te.minimum(found, te.maximum(self.points(region) - 1, 0))

    def _table(self, body: Callable[..., Scalar], name: str, inner: tuple[Dim, ...] = ()) -> Tensor:
        """Returns a stage over regions, bins and `inner`."""
        shape = (self.rois.shape[0], self.bins, *inner)
        role = roles.ROW_TABLE if inner else roles.TABLE
        return te.compute(shape, body, f"roi_align_{name}_{'yx'[1 - self.column]}", role=role)


@dataclass(frozen=True)
class _Around:
    """The elements along an axis around the points of each bin.

    `at[regions, bins, elements]` are their positions, -1 for none, and `weights` theirs. `count`
    is how many of these each bin has, if not all.
    """

    at: Tensor
    weights: Tensor
    count: Tensor | None

    def exists(self, region: Scalar, number: Scalar, k: Scalar) -> Scalar:
        """Whether the bin has an element of that number."""
        return te.as_scalar(True, "bool") if self.count is None else k < self.count[region, number]


_REGIONS = np.array([[0, 0, 3, 3], [1.5, -2, 9, 4], [2, 2, 2.5, 2.25], [4, 4, 1, 1]], "f4")
_IMAGES = np.array([1, 0, 1, 0])


def _positions(attrs: Attrs, types: Sequence[TensorType]) -> int:
    """Returns about how many positions of images are read: two along each axis for every point.
    Those of maxima count for several.
    """
    found = typical(types[1].shape[0]) * (READS_OF_MAXIMA if attrs.mode == "max" else 1)
    for size, bins in zip(types[0].shape[2:4], attrs.out, strict=True):
        points = attrs.samples or -(-typical(size) // (_REGIONS_A_SIDE * bins))
        found *= 2 * bins * points
    return found


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
        Sample(f32(2, 5, 6, 3), _REGIONS, _IMAGES, out=(2, 3), layout="NHWC"),
        Sample(f32(2, 5, 6, 20), _REGIONS, _IMAGES, out=(2, 3), layout="NHWC", mode="max"),
        Sample(f32(2, 3, 5, 6, 4), _REGIONS, _IMAGES, out=(2, 3), layout="NCHW4c"),
        Sample(f32(2, 5, 3, 6), _REGIONS, _IMAGES, out=(2, 3), layout="NHCW", error="T109"),
        Sample(f32(2, 3, 5, 6), f32(4, 5), i64(4), out=(2, 3), error="T108"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(3), out=(2, 3), error="T108"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), f32(4), out=(2, 3), error="T105"),
        Sample(f32(2, 3, 5, 6), f64(4, 4), i64(4), out=(2, 3), error="T101"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(4), out=(2, 0), error="T107"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(4), out=(2, 2), mode="sum", error="T107"),
        Sample(f32(2, 3, 5, 6), f32(4, 4), i64(4), out=(2, 2), samples=-1, error="T107"),
        Sample(f32(2, 3, 0, 6), f32(4, 4), i64(4), out=(2, 2), error="T110"),
    ),
    traits=Traits(channels_last=_positions),
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
    one element. `layout` is NCHW, also blocked by channels, or NHWC.

    Errors: T101, T105, T107, T108, T109, T110, I320. Source: ONNX RoiAlign-22.
    """
    name = "nn.roi_align"
    _check_layout(name, layout)
    _check(name, x, rois, 4, out, rank=len(parse_layout(layout).axes), image=_spatial(layout))
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
    first = _spatial(layout)
    axes = [_Axis(rois, x.shape[first + n], 1 - n, out[n], attrs) for n in range(2)]
    return _pooled(x, batches, axes, mode, layout)


def _spatial(layout: str) -> int:
    """Returns the number of the first spatial axis."""
    return 1 if layout == "NHWC" else 2


@roi_align.layout
def _roi_align_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Takes whole blocks of channels, which are carried along, and channels last."""
    if not _keeps_channels(attrs, types[0], layout):
        return None
    return (layout, "NCHW", "NCHW"), attrs.with_(layout=layout), layout


def _pooled(x: Tensor, batches: Tensor, axes: list[_Axis], mode: str, layout: str) -> Tensor:
    """Returns the stages: the rows and columns around the points of each bin and their weights,
    then the sum or the largest of the weighted elements there.
    """
    rows, columns = (axis.around(mode == "avg") for axis in axes)
    wide, last = axes[0].wide, layout == "NHWC"
    count = axes[0].rois.shape[0]
    images = te.compute(
        (count,),
        lambda n: _image_of("nn.roi_align", batches[n], x.shape[0]),
        "roi_align_image",
        role=roles.TABLE,
    )
    over = [
        te.reduce_axis(found.at.shape[2], name)
        for found, name in ((rows, "of_y"), (columns, "of_x"))
    ]

    def bins(i: Sequence[Scalar]) -> Sequence[Scalar]:
        return i[:3] if last else (i[0], i[2], i[3])

    def body(*i: Scalar) -> Scalar:
        region, ph, pw = bins(i)
        down, across = (region, ph, over[0]), (region, pw, over[1])
        row, column = rows.at[down], columns.at[across]
        place = (te.maximum(row, 0), te.maximum(column, 0))
        image = images[region]
        index = (image, *place, i[3]) if last else (image, i[1], *place, *i[4:])
        weight = rows.weights[down] * columns.weights[across]
        value = weight * te.cast(wide, x[index])
        exists = rows.exists(region, ph, over[0]) & columns.exists(region, pw, over[1])
        inside = (row >= 0) & (column >= 0)
        if mode == "avg":  # elsewhere may be NaN
            return te.sum(te.select(inside & exists, value, 0.0), over)
        lowest = te.as_scalar(float("-inf"), wide)
        return te.max(te.select(exists, te.select(inside, value, 0.0), lowest), over)

    shape = list(x.shape)
    shape[0] = count
    shape[_spatial(layout) : _spatial(layout) + 2] = [axis.bins for axis in axes]
    role = roles.SELECTED
    if mode == "avg" and wide == x.dtype:
        return te.compute(shape, body, "roi_align", layout=x.layout, role=role)
    found = te.compute(shape, body, "roi_align_found", role=role)

    def known(*i: Scalar) -> Scalar:
        region, ph, pw = bins(i)
        value = found[i]
        if mode == "max" and axes[0].samples == 0:  # a bin without points has no largest element
            none = te.as_scalar(0)
            some = rows.exists(region, ph, none) & columns.exists(region, pw, none)
            value = te.select(some, value, 0.0)
        return te.cast(x.dtype, value)

    return te.compute(shape, known, "roi_align", layout=x.layout)


def _elements(attrs: Attrs, types: Sequence[TensorType]) -> int:
    """Returns an estimate of the number of elements that are read of a channel."""
    found = typical(types[1].shape[0])
    for size, bins in zip(types[0].shape[2:4], attrs.out, strict=True):
        found *= bins * -(-typical(size) // (_REGIONS_A_SIDE * bins))
    return found


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
        Sample(f32(2, 2, 6, 7, 4), _BATCHED, out=(2, 3), layout="NCHW4c"),
        Sample(f32(2, 6, 7, 20), _BATCHED, out=(4, 2), scale=0.5, layout="NHWC"),
        Sample(f32(2, 3, 6, 7), f32(4, 5), out=(2, 3), layout="NHCW", error="T109"),
    ),
    traits=Traits(channels_last=_elements),
)
def max_roi_pool(
    x: Tensor, rois: Tensor, *, out: tuple[int, ...], scale: float = 1.0, layout: str = "NCHW"
) -> Tensor:
    """The `out` bins of regions of `x[N, C, H, W]`. Each is the largest element in it; empty bins
    are 0. `rois[n, 5]` are (image, x1, y1, x2, y2) in elements divided by `scale`, rounded.
    `layout` is NCHW, also blocked by channels, or NHWC.

    Errors: T101, T105, T107, T108, T109, T110, I320. Source: ONNX MaxRoiPool-22.
    """
    name = "nn.max_roi_pool"
    _check_layout(name, layout)
    first = _spatial(layout)
    _check(name, x, rois, 5, out, rank=len(parse_layout(layout).axes), image=first)
    wide, last = accumulator(x.dtype), layout == "NHWC"

    def border(region: Scalar, column: int) -> Scalar:
        """Returns a border as an index; halves are rounded away from 0."""
        value = _bounded(te.cast(wide, rois[region, column]) * scale)
        whole = te.cast("i64", te.call("floor", unary("abs", value) + 0.5))
        return te.select(value < 0.0, -whole, whole)

    def limits(region: Scalar, axis: int, number: Scalar) -> tuple[Scalar, Scalar]:
        """Returns the first element of a bin along an axis, and the one after its last."""
        start, bins, size = border(region, 2 - axis), out[axis], x.shape[first + axis]
        span = te.maximum(border(region, 4 - axis) - start + 1, 1)
        begin = number * span // bins + start
        end = -((-(number + 1) * span) // bins) + start
        return te.minimum(te.maximum(begin, 0), te.size(size)), te.minimum(end, te.size(size))

    def table(axis: int, which: str) -> Tensor:
        """Returns the first element of each bin along an axis, or its number of elements."""

        def value(region: Scalar, number: Scalar) -> Scalar:
            begin, end = limits(region, axis, number)
            return begin if which == "at" else te.maximum(end - begin, 0)

        shape = (rois.shape[0], out[axis])
        return te.compute(shape, value, f"max_roi_pool_{which}_{'yx'[axis]}", role=roles.TABLE)

    at, counts = ([table(axis, which) for axis in range(2)] for which in ("at", "count"))
    images = te.compute(
        (rois.shape[0],),
        lambda n: _image_of(name, te.cast(wide, rois[n, 0]), x.shape[0]),
        "max_roi_pool_image",
        role=roles.TABLE,
    )
    over = [te.reduce_axis(x.shape[first + n], "hw"[n]) for n in range(2)]
    lowest = te.as_scalar(float("-inf"), wide)

    def bins(i: Sequence[Scalar]) -> tuple[Scalar, Sequence[Scalar]]:
        return i[0], i[first : first + 2]

    def largest(*i: Scalar) -> Scalar:
        region, numbers = bins(i)
        exists, place = te.as_scalar(True, "bool"), []
        for axis, (number, step) in enumerate(zip(numbers, over, strict=True)):
            exists = exists & (step < counts[axis][region, number])
            end = te.size(x.shape[first + axis]) - 1
            place.append(te.minimum(at[axis][region, number] + step, end))
        image = images[region]
        index = (image, *place, i[3]) if last else (image, i[1], *place, *i[4:])
        return te.max(te.select(exists, te.cast(wide, x[index]), lowest), over)

    shape = list(x.shape)
    shape[0] = rois.shape[0]
    shape[first : first + 2] = out
    top = te.compute(shape, largest, "max_roi_pool_top", role=roles.SELECTED)

    def body(*i: Scalar) -> Scalar:
        region, numbers = bins(i)
        some = te.as_scalar(True, "bool")
        for axis, number in enumerate(numbers):
            some = some & (counts[axis][region, number] > 0)
        return te.cast(x.dtype, te.select(some, top[i], 0.0))

    return te.compute(shape, body, "max_roi_pool", layout=x.layout)


@max_roi_pool.layout
def _max_roi_pool_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Takes whole blocks of channels, and channels last."""
    if not _keeps_channels(attrs, types[0], layout):
        return None
    return (layout, "NCHW"), attrs.with_(layout=layout), layout
