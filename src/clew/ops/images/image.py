"""Resampling of images and other grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from clew import te
from clew.cost.policy.elementwise import MOST_PATTERN_VECTORS
from clew.ir.dims import Dim, dim_max, dim_min
from clew.ir.expr import ArgRef, Attrs
from clew.ir.types import TensorType, Type, is_integer
from clew.ops.common import (
    accumulator,
    assume_at_least,
    differ,
    f32,
    i32,
    tensor_type,
    text,
    u8,
    unknown_tensor,
)
from clew.ops.images.sample import clamped, cubic_taps, limited, linear_taps
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Imm, unary
from clew.te.roles import SELECTED, TABLE

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners",
    "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_MOST_PART: Final = 1 << 20
_MOST_LANES: Final = 16  # of f32, in the longest vectors
# The least rank of images whose first axis is a batch.
_BATCHED: Final = 4


def origin(
    i: Scalar, size: Dim, out: Dim, scale: Fraction | None, rule: str
) -> tuple[Scalar, Scalar]:
    """Returns the source position of a result element as a quotient of integers.

    Exact: the scale is `out / size`, or the given rational number.
    """
    if scale is None and isinstance(size, int) and isinstance(out, int):
        scale = Fraction(out, size)
    up = te.as_scalar(scale.numerator) if scale is not None else te.size(out)
    down = te.as_scalar(scale.denominator) if scale is not None else te.size(size)
    if rule == "asymmetric":
        return i * down, up
    if rule == "align_corners":
        return i * te.size(size - 1), te.size(dim_max(out - 1, 1))
    place, over = (i * 2 + 1) * down - up, up * 2
    if rule == "half_pixel_symmetric":
        place = place + te.size(size) * up - te.size(out) * down
    if rule == "pytorch_half_pixel":
        place = te.select(te.size(out).equal(1), 0, place)
    return place, over


def scaled_size(size: int, scale: float) -> int:
    """Returns a size times a scale of ONNX, rounded down: a product of f32, in which 10 times 0.7
    is 7. In f64, 0.7 as an f32 is less than 0.7.
    """
    most = float(np.finfo(np.float32).max)
    return math.floor(np.float32(min(size * scale, most)))


def ratio_of(scale: float) -> Fraction:
    """Returns a rational number close to a scale, with numerator and denominator so small that
    their products with positions fit an index.
    """
    if scale < 1 / _MOST_PART:
        return 1 / Fraction(1 / scale).limit_denominator(_MOST_PART)
    return Fraction(scale).limit_denominator(_MOST_PART)


def _nearest(place: Scalar, over: Scalar, rounding: str) -> Scalar:
    if rounding == "floor":
        return place // over
    if rounding == "ceil":
        return -((-place) // over)
    if rounding == "round_prefer_ceil":
        return (place * 2 + over) // (over * 2)
    return -((over - place * 2) // (over * 2))


def _in_single(i: Scalar, size: Dim, out: Dim, scale: Fraction | None, rule: str) -> Scalar:
    """Returns the element below a position that is computed in f32, as torch does: where an exact
    position is an integer, the rounded one may lie below it.
    """
    if scale is None:
        step = te.cast("f32", te.size(size)) / te.cast("f32", te.size(out))
    else:
        step = te.as_scalar(float(np.float32(1 / scale)), "f32")
    place = te.cast("f32", i) + (0.5 if rule == "half_pixel" else 0.0)
    return te.cast("i64", te.call("floor", place * step))


def _cropped(i: Scalar, size: Dim, out: Dim, roi: Tensor, axis: int, rank: int) -> Scalar:
    """Returns the source position of a result element if `roi` selects the part of the source that
    the result covers, in the order of operations of the standard's formula.
    """
    wide = accumulator(roi.dtype)
    start, end = (te.cast(wide, roi[n]) for n in (axis, rank + axis))
    last = te.cast(wide, te.size(size - 1))
    if out == 1:
        return (start + end) * 0.5 * last
    step = te.cast(wide, i) * (end - start) * last / te.cast(wide, te.maximum(te.size(out - 1), 1))
    return start * last + step


def _nearest_of_real(place: Scalar, rounding: str) -> Scalar:
    match rounding:
        case "floor":
            whole = te.call("floor", place)
        case "ceil":
            whole = te.call("ceil", place)
        case "round_prefer_ceil":
            whole = te.call("floor", place + 0.5)
        case _:
            whole = te.call("ceil", place - 0.5)
    return te.cast("i64", whole)


def _taps(fraction: Scalar, attrs: dict[str, Any]) -> list[tuple[int, Scalar]]:
    """Returns the taps around a position, as offsets from the element below it, and their
    weights.
    """
    if attrs["mode"] == "linear":
        return linear_taps(fraction)
    return cubic_taps(fraction, attrs["cubic_a"])


def filter_weight(distance: Scalar, attrs: dict[str, Any]) -> Scalar:
    """Returns the weight of an element by its distance; it is nonzero up to 1 (linear) or 2
    (cubic).
    """
    t, a = unary("abs", distance), attrs["cubic_a"]
    if attrs["mode"] == "linear":
        return te.maximum(1.0 - t, 0.0)
    near = ((t * (a + 2) - (a + 3)) * t) * t + 1.0
    far = ((t * a - 5 * a) * t + 8 * a) * t - 4 * a
    return te.select(t <= 1.0, near, te.select(t < 2.0, far, 0.0))


def _wide(dtype: str) -> str:
    """Returns the dtype of weights and sums."""
    return "f64" if dtype in ("f64", "i32", "u32", "i64", "u64") else "f32"


def _resampled(
    x: Tensor,
    axis: int,
    out: Dim,
    scale: Fraction | None,
    attrs: dict[str, Any],
    name: str,
    roi: Tensor | None,
) -> Tensor:
    """Returns the stage that resamples one axis, in the dtype of the weights if it uses weights."""
    size = x.shape[axis]
    wide = _wide(x.dtype)
    crops = attrs["coordinates"] == "tf_crop_and_resize"

    def read(i: Sequence[Scalar], position: Scalar) -> Scalar:
        held = te.minimum(te.maximum(position, 0), te.size(size - 1))
        return x[(*i[:axis], held, *i[axis + 1 :])]

    def place_of(i: Sequence[Scalar]) -> tuple[Scalar, Scalar]:
        """Returns the element below a position, and the distance of the position from it."""
        if crops:
            assert roi is not None
            place = limited(_cropped(i[axis], size, out, roi, axis, x.rank), size, 2)
            low = te.call("floor", place)
            return te.cast("i64", low), te.cast(wide, place - low)
        if tables is not None:
            below, fraction = tables
            return below[i[axis]], fraction[i[axis]]
        return _place(i[axis], size, out, scale, attrs, wide)

    tables = None
    free = not (crops or scale is not None or (isinstance(size, int) and isinstance(out, int)))
    weighs = attrs["mode"] != "nearest" and not crops
    if weighs and _takes_division(size, out, scale, attrs["coordinates"]):
        tables = _places(size, out, scale, attrs, wide, name)
    elif free and not attrs["single"]:
        return _selected(x, axis, out, attrs, name)

    def body(*i: Scalar) -> Scalar:
        if attrs["mode"] == "nearest":
            if crops:
                assert roi is not None
                place = limited(_cropped(i[axis], size, out, roi, axis, x.rank), size, 2)
                return read(i, _nearest_of_real(place, attrs["rounding"]))
            if attrs["single"]:
                return read(i, _in_single(i[axis], size, out, scale, attrs["coordinates"]))
            place, over = origin(i[axis], size, out, scale, attrs["coordinates"])
            return read(i, _nearest(place, over, attrs["rounding"]))
        below, fraction = place_of(i)
        if attrs["truncates"]:
            low, high = (te.cast(wide, read(i, below + n)) for n in range(2))
            return low + (high - low) * fraction  # exactly `low` between equal elements
        taps = _taps(fraction, attrs)
        if attrs["exclude_outside"]:
            taps = [(n, inside(below + n, size, w)) for n, w in taps]
        total = _sum([te.cast(wide, read(i, below + n)) * w for n, w in taps])
        if attrs["exclude_outside"]:
            whole = _sum([w for _, w in taps])
            total = total / te.select(whole.equal(0.0), 1.0, whole)
        return total

    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    if attrs["antialias"] and attrs["mode"] != "nearest":
        factor = shrinks(size, out, scale)
        if factor is not None:
            return _smoothed(x, axis, shape, factor, place_of, read, attrs, name)
    summed = tables is not None and (free or not attrs["truncates"])
    if weighs and (attrs["mode"] == "cubic" or summed):
        return _smoothed(x, axis, shape, Fraction(1), place_of, read, attrs, name)
    return te.compute(shape, body, name)


def _place(
    o: Scalar, size: Dim, out: Dim, scale: Fraction | None, attrs: dict[str, Any], wide: str
) -> tuple[Scalar, Scalar]:
    """Returns the element below a position, and the distance of the position from it."""
    place, over = origin(o, size, out, scale, attrs["coordinates"])
    below = place // over
    return below, te.cast(wide, place - below * over) / te.cast(wide, over)


def _takes_division(size: Dim, out: Dim, scale: Fraction | None, rule: str) -> bool:
    """Whether each position takes a division: by a free size, or because the pattern of remainders
    is too long to unroll.
    """
    over = origin(te.as_scalar(1), size, out, scale, rule)[1]
    if not (isinstance(size, int) and isinstance(out, int)):
        return scale is None or not isinstance(over, Imm)
    step = Fraction(out, max(size, 1)) if scale is None else scale
    if rule == "align_corners":
        step = Fraction(max(out - 1, 1), max(size - 1, 1))
    period = step.numerator // math.gcd(step.numerator, _MOST_LANES)  # in vectors
    return min(period, -(-out // _MOST_LANES)) > MOST_PATTERN_VECTORS


def _places(
    size: Dim, out: Dim, scale: Fraction | None, attrs: dict[str, Any], wide: str, name: str
) -> tuple[Tensor, Tensor]:
    """Returns tables of the elements below the positions along an axis, and of the distances."""

    def part(n: int, label: str) -> Tensor:
        def body(o: Scalar) -> Scalar:
            return _place(o, size, out, scale, attrs, wide)[n]

        return te.compute((out,), body, f"{name}_{label}", role=TABLE)

    return part(0, "below"), part(1, "fraction")


def _selected(x: Tensor, axis: int, out: Dim, attrs: dict[str, Any], name: str) -> Tensor:
    """Returns the stage that reads the nearest elements along an axis, from a table."""
    size = x.shape[axis]

    def nearest(o: Scalar) -> Scalar:
        place, over = origin(o, size, out, None, attrs["coordinates"])
        found = _nearest(place, over, attrs["rounding"])
        return te.minimum(te.maximum(found, 0), te.size(size - 1))

    at = te.compute((out,), nearest, f"{name}_at", role=TABLE)
    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    return te.compute(shape, lambda *i: x[(*i[:axis], at[i[axis]], *i[axis + 1 :])], name)


def shrinks(size: Dim, out: Dim, scale: Fraction | None) -> Fraction | None:
    """Returns the factor of an axis that shrinks, else None. A kernel of symbolic sizes is valid
    for those at which the axis does not shrink.
    """
    if scale is None and isinstance(size, int) and isinstance(out, int):
        scale = Fraction(out, max(size, 1))
    elif scale is None:
        assume_at_least(out, size)
    return scale if scale is not None and 0 < scale < 1 else None


def _smoothed(
    x: Tensor,
    axis: int,
    shape: Sequence[Dim],
    scale: Fraction,
    place_of: Callable[[Sequence[Scalar]], tuple[Scalar, Scalar]],
    read: Callable[[Sequence[Scalar], Scalar], Scalar],
    attrs: dict[str, Any],
    name: str,
) -> Tensor:
    """Returns the stages for an axis that shrinks: the filter is stretched by the inverse factor,
    so that all elements in between count. Weights of an output element add up to 1.

    With a factor of 1, these are also the stages for an axis whose size only a run knows. There, a
    linear filter has a single tap if the axis keeps its size, as those of batches and channels do.
    """
    wide = _wide(x.dtype)
    reach = 1 if attrs["mode"] == "linear" else 2
    first = math.floor(-reach / scale) + 1
    size, out = x.shape[axis], shape[axis]
    count: Dim = 2 - 2 * first
    if reach == scale == 1:
        count = 1 + dim_min(dim_max(size - out, out - size), 1)

    def tap(n: Scalar, o: Scalar) -> Scalar:
        place = [te.as_scalar(0)] * len(shape)
        place[axis] = o
        below, fraction = place_of(place)
        weight = filter_weight((te.cast(wide, n + first) - fraction) * float(scale), attrs)
        return inside(below + n + first, size, weight) if attrs["exclude_outside"] else weight

    taps = te.compute((count, out), tap, f"{name}_taps", role=TABLE)
    k = te.reduce_axis(count, "k")
    whole = te.compute((out,), lambda o: te.sum(taps[k, o], k), f"{name}_whole", role=TABLE)

    def share(n: Scalar, o: Scalar) -> Scalar:
        weight = whole[o]
        return taps[n, o] / te.select(weight.equal(0.0), 1.0, weight)

    weights = te.compute((count, out), share, f"{name}_weights", role=TABLE)
    n = te.reduce_axis(count, "k")

    def body(*i: Scalar) -> Scalar:
        below, _ = place_of(i)
        return te.sum(te.cast(wide, read(i, below + n + first)) * weights[n, i[axis]], n)

    return te.compute(shape, body, name, role=SELECTED)


def _narrowed(value: Scalar, dtype: str, rounds: bool) -> Scalar:
    """Returns a weighted sum in a dtype. Rounded sums of integers are clamped, because they may
    exceed the dtype's range.
    """
    if value.dtype == dtype or not is_integer(dtype):
        return te.cast(dtype, value)
    if rounds:
        value = clamped(te.call("round", value), dtype)
    return te.cast(dtype, value)


def _outside(i: Sequence[Scalar], x: Tensor, shape: Sequence[Dim], roi: Tensor) -> Scalar:
    """Whether an element of the result lies outside the source."""
    beyond = te.as_scalar(False, "bool")
    for axis, (size, out) in enumerate(zip(x.shape, shape, strict=True)):
        place = _cropped(i[axis], size, out, roi, axis, x.rank)
        beyond = beyond | (place < 0.0) | (place > te.cast(place.dtype, te.size(size - 1)))
    return beyond


def inside(position: Scalar, size: Dim, weight: Scalar) -> Scalar:
    """Returns the weight of an element that exists, else 0."""
    return te.select((position >= 0) & (position < te.size(size)), weight, 0.0)


def _sum(values: Sequence[Scalar]) -> Scalar:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


@register_op(
    "resize",
    samples=(
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8)),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), mode="linear"),
        Sample(f32(1, 2, 5, 4), shape=(1, 2, 3, 9), mode="linear", coordinates="align_corners"),
        Sample(f32(1, 1, 5, 4), shape=(1, 1, 8, 3), mode="cubic"),
        Sample(f32(1, 1, 4, 4), shape=(1, 1, 2, 2), scales=(1.0, 1.0, 0.6, 0.6), mode="linear"),
        Sample(u8(1, 1, 3, 3), shape=(1, 1, 5, 7), coordinates="asymmetric", rounding="floor",
               low=0, high=200),
        Sample(f32(1, 2, 9, 8), shape=(1, 2, 4, 3), mode="linear", antialias=True),
        Sample(f32(1, 1, 9, 4), shape=(1, 1, 4, 7), mode="cubic", antialias=True),
        Sample(f32(1, 1, 9, 7), shape=(1, 1, 4, 3), mode="cubic", antialias=True,
               exclude_outside=True),
        Sample(f32(2, 32), shape=(1, 16), mode="cubic", antialias=True),
        Sample(f32(2, 3, 5, 4), f32(8), shape=(2, 3, 4, 6), mode="linear", low=-0.5, high=1.5,
               coordinates="tf_crop_and_resize", outside=7.5),
        Sample(f32(2, 2, 5, 4), f32(8), shape=(2, 2, 1, 6), coordinates="tf_crop_and_resize",
               low=0, high=1),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 0, 8), mode="linear"),
        Sample(f32(1, 1, 5, 4), shape=(1, 1, 4, 6), coordinates="tf_crop_and_resize", error="T107"),
        Sample(f32(1, 1, 5, 4), f32(6), shape=(1, 1, 4, 6), coordinates="tf_crop_and_resize",
               error="T108"),
        Sample(f32(1, 1, 4, 4), shape=(1, 1, 3, 3), mode="cubic", exclude_outside=True),
        Sample(f32(1, 2, 3, 4), shape=(6, 8), error="T107"),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), mode="area", error="T107"),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), coordinates="tf", error="T107"),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), scales=(1.0, 1.0, 0.0, 2.0), error="T107"),
        Sample(f32(1, 2, 0, 4), shape=(1, 2, 6, 8), error="T110"),
        Sample(i32(1, 2, 3, 4), shape=(1, 2, -6, 8), error="T107"),
        Sample(f32(1, 1, 20, 3), shape=(1, 1, 46, 5), single=True),
        Sample(f32(1, 1, 7, 3), shape=(1, 1, 16, 6), scales=(1.0, 1.0, 2.3, 2.0), single=True,
               coordinates="asymmetric"),
    ),
)  # fmt: skip
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    *,
    shape: tuple[int, ...],
    scales: tuple[float, ...] = (),
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    outside: float = 0.0,
    axes: tuple[int, ...] = (),
    single: bool = False,
) -> Tensor:
    """Resamples `x` to `shape`, one axis after another.

    `coordinates` defines how positions correspond: half_pixel, pytorch_half_pixel,
    half_pixel_symmetric, asymmetric, align_corners (by the result's size, as in the standard's text
    and ONNX Runtime; its reference uses the size before rounding), or tf_crop_and_resize. The
    latter takes a `roi` with the first and then the last position, in [0, 1], of each axis that the
    result covers; `outside` is the value of elements beyond the source. `scales` are the factors
    between positions; if empty, the ratios of the sizes. `axes` are those of a shape or scales
    known only at run time. `mode` is nearest (with its `rounding`), linear or cubic; `single`
    computes positions of nearest in f32, rounded down, as torch does. `antialias` widens the latter
    two where axes shrink. Beyond the edge, the edge element counts. Integers of 32 bits or more are
    summed in f64, all others in f32. Integer results are truncated, as in ONNX Runtime; for cubic
    and `antialias` they are rounded and clamped to the dtype, as in the standard's reference.

    Errors: T107, T108, T110. Source: ONNX Resize-19.
    """
    attrs = {
        "mode": mode, "coordinates": coordinates, "rounding": rounding, "cubic_a": cubic_a,
        "exclude_outside": exclude_outside, "antialias": antialias, "single": single,
        "truncates": mode == "linear" and is_integer(x.dtype) and not exclude_outside,
    }  # fmt: skip
    crops = coordinates == "tf_crop_and_resize"
    known = not axes and mode in MODES and coordinates in COORDINATES and rounding in ROUNDINGS
    if not known or len(shape) != x.rank or len(scales) not in (0, x.rank):
        raise GraphTypeError(
            "T107",
            f"resize: {x.type} to {text(shape)} by {scales}, mode={mode!r}, "
            f"coordinates={coordinates!r}, rounding={rounding!r}",
            hint=f"modes are {', '.join(MODES)}; coordinates {', '.join(COORDINATES)}; "
            f"roundings {', '.join(ROUNDINGS)}; shape and scales have an entry for each axis",
        )
    if any(isinstance(n, int) and n < 0 for n in shape) or any(not s > 0 for s in scales):
        raise GraphTypeError("T107", f"resize: sizes {text(shape)} or scales {scales} are negative")
    if crops and (roi is None or roi.rank != 1 or differ(roi.shape[0], 2 * x.rank)):
        code = "T107" if roi is None else "T108"
        raise GraphTypeError(code, f"resize: roi {roi and roi.type} does not fit {x.type}")
    if x.size == 0 and all(isinstance(n, int) and n for n in shape):
        raise GraphTypeError("T110", f"resize: {x.type} has no elements to resample")
    if x.size == 0 or any(n == 0 for n in shape):
        return te.compute(shape, lambda *i: te.as_scalar(0, x.dtype), "resize", layout=x.layout)
    ratios = [ratio_of(s) for s in scales]
    changed = [
        n for n in range(x.rank) if x.shape[n] != shape[n] or (scales and scales[n] != 1.0) or crops
    ]
    if mode == "cubic" and not crops:
        # Neighbors along the last axis are read at uneven places: of as few lines as possible.
        changed.sort(key=lambda n: _enlarges(x.shape[n], shape[n]) if n < x.rank - 1 else 0)
    if mode == "linear" and x.rank >= _BATCHED and not scales and not crops:
        changed = [n for n in changed if n or not _keeps(x.shape[n], shape[n])]
    result = x
    for step, axis in enumerate(changed):
        last = step == len(changed) - 1 and not crops
        whole = mode == "nearest" or _wide(x.dtype) == x.dtype
        name = "resize" if last and whole else f"resize_{axis}"
        scale = ratios[axis] if scales else None
        result = _resampled(result, axis, shape[axis], scale, attrs, name, roi)
    if result is x:
        return te.compute(x.shape, lambda *i: x[i], "resize", layout=x.layout)
    if result.dtype != x.dtype or crops:
        source = result

        def body(*i: Scalar) -> Scalar:
            value = _narrowed(source[i], x.dtype, mode == "cubic" or antialias)
            if not crops:
                return value
            assert roi is not None
            return te.select(_outside(i, x, shape, roi), te.as_scalar(outside, x.dtype), value)

        result = te.compute(shape, body, "resize")
    result.layout = x.layout
    return result


def _keeps(size: Dim, out: Dim) -> bool:
    """Whether an axis whose size only a run knows keeps it, which the kernel then assumes."""
    if isinstance(size, int) and isinstance(out, int):
        return False
    assume_at_least(out, size)
    assume_at_least(size, out)
    return True


def _enlarges(size: Dim, out: Dim) -> int:
    """Returns 1 if an axis grows, or may do so, else -1."""
    return -1 if isinstance(size, int) and isinstance(out, int) and out < size else 1


@resize.dynamic
def _resize_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("resize", types[0])
    if isinstance(attrs.shape, ArgRef) or not attrs.shape:
        return unknown_tensor("resize", source, source.rank)
    return TensorType(attrs.shape, source.dtype)


@resize.resolver
def _resize_resolver(types: Sequence[TensorType], attrs: dict[str, Any]) -> dict[str, Any]:
    """Computes an empty shape from the input's shape and the scales, rounded down. Shape and scales
    may cover only some `axes`.
    """
    sizes, axes = types[0].shape, attrs["axes"] or tuple(range(types[0].rank))
    shape, scales = list(attrs["shape"]), list(attrs["scales"])
    if scales and len(scales) == len(axes):
        told = dict(zip(axes, scales, strict=True))
        scales = [told.get(n, 1.0) for n in range(len(sizes))]
    if shape and len(shape) == len(axes):
        told = dict(zip(axes, shape, strict=True))
        shape = [told.get(n, size) for n, size in enumerate(sizes)]
    if scales and not shape:
        if any(not 0 < s < math.inf for s in scales):
            raise GraphTypeError("T107", f"resize: scales {tuple(scales)}")
        known = types[0].concrete
        shape = [scaled_size(n, scale) for n, scale in zip(known, scales, strict=False)]
    return {"shape": tuple(shape), "scales": tuple(scales), "axes": ()}


@resize.layout
def _resize_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Allows blocks if only plain axes are resampled: blocks are carried along."""
    parsed = parse_layout(layout)
    source = types[0]
    block = parsed.factor("C")
    plain = attrs.coordinates != "tf_crop_and_resize"
    if source.rank != 4 or block == 1 or attrs.shape[:2] != source.shape[:2] or not plain:
        return None
    channels = source.shape[1]
    if not isinstance(channels, int) or channels % block or any(s != 1 for s in attrs.scales[:2]):
        return None
    shape = (source.shape[0], channels // block, *attrs.shape[2:], block)
    scales = (*attrs.scales, 1.0) if attrs.scales else ()
    return (layout,), attrs.with_(shape=shape, scales=scales), layout
