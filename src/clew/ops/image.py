"""Resampling of images and other grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from clew import te
from clew.ir.dims import Dim
from clew.ir.expr import ArgRef, Attrs
from clew.ir.types import TensorType, Type, is_float
from clew.ops.common import f32, i32, tensor_type, text, u8, unknown_tensor
from clew.ops.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

MODES = ("nearest", "linear", "cubic")
COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _origin(
    i: Scalar, size: Dim, out: Dim, scale: Fraction | None, rule: str
) -> tuple[Scalar, Scalar]:
    """Returns the place in the source that a result's element comes from, as a quotient of
    integers.

    Exact: the scale is `out / size`, or the rational number that was given.
    """
    if scale is None and isinstance(size, int) and isinstance(out, int):
        scale = Fraction(out, size)
    up = te.as_scalar(scale.numerator) if scale is not None else te.size(out)
    down = te.as_scalar(scale.denominator) if scale is not None else te.size(size)
    if rule == "asymmetric":
        return i * down, up
    if rule == "align_corners":
        return i * te.size(size - 1), te.maximum(te.size(out - 1), 1)
    place, over = (i * 2 + 1) * down - up, up * 2
    if rule == "half_pixel_symmetric":
        place = place + te.size(size) * up - te.size(out) * down
    if rule == "pytorch_half_pixel":
        place = te.select(te.size(out).equal(1), 0, place)
    return place, over


def _nearest(place: Scalar, over: Scalar, rounding: str) -> Scalar:
    if rounding == "floor":
        return place // over
    if rounding == "ceil":
        return -((-place) // over)
    if rounding == "round_prefer_ceil":
        return (place * 2 + over) // (over * 2)
    return -((over - place * 2) // (over * 2))


def _weights(fraction: Scalar, mode: str, a: float) -> list[tuple[int, Scalar]]:
    """Returns the taps around a place, as distances from the one below it, and their weights."""
    if mode == "linear":
        return [(0, 1.0 - fraction), (1, fraction)]

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


def _resampled(
    x: Tensor, axis: int, out: Dim, scale: Fraction | None, attrs: dict[str, Any], name: str
) -> Tensor:
    """Returns the stage that resamples one axis."""
    size = x.shape[axis]
    wide = x.dtype if is_float(x.dtype) and x.dtype not in ("f16", "bf16") else "f32"

    def read(i: Sequence[Scalar], position: Scalar) -> Scalar:
        held = te.minimum(te.maximum(position, 0), te.size(size - 1))
        return x[(*i[:axis], held, *i[axis + 1 :])]

    def body(*i: Scalar) -> Scalar:
        place, over = _origin(i[axis], size, out, scale, attrs["coordinates"])
        if attrs["mode"] == "nearest":
            return read(i, _nearest(place, over, attrs["rounding"]))
        below = place // over
        fraction = te.cast(wide, place - below * over) / te.cast(wide, over)
        taps = _weights(fraction, attrs["mode"], attrs["cubic_a"])
        if attrs["exclude_outside"]:
            taps = [(n, _inside(below + n, size, w)) for n, w in taps]
        total = _sum([te.cast(wide, read(i, below + n)) * w for n, w in taps])
        if attrs["exclude_outside"]:
            total = total / _sum([w for _, w in taps])
        return te.cast(x.dtype, total)

    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    return te.compute(shape, body, name)


def _inside(position: Scalar, size: Dim, weight: Scalar) -> Scalar:
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
        Sample(f32(1, 1, 4, 4), shape=(1, 1, 3, 3), mode="cubic", exclude_outside=True),
        Sample(f32(1, 2, 3, 4), shape=(6, 8), error="T107"),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), mode="area", error="T107"),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), coordinates="tf", error="T107"),
        Sample(f32(1, 2, 3, 4), shape=(1, 2, 6, 8), scales=(1.0, 1.0, 0.0, 2.0), error="T107"),
        Sample(f32(1, 2, 0, 4), shape=(1, 2, 6, 8), error="T110"),
        Sample(i32(1, 2, 3, 4), shape=(1, 2, -6, 8), error="T107"),
    ),
)  # fmt: skip
def resize(
    x: Tensor,
    *,
    shape: tuple[int, ...],
    scales: tuple[float, ...] = (),
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
) -> Tensor:
    """`x` resampled to `shape`, one axis after another, without antialiasing.

    `coordinates` says how places correspond: half_pixel, pytorch_half_pixel, half_pixel_symmetric,
    asymmetric, align_corners. `scales` are the factors by which they do; empty, the ratios of the
    sizes. `mode` is nearest (with its `rounding`), linear or cubic. Beyond the edge, the edge's
    element counts.

    Errors: T107, T110. Source: ONNX Resize-19.
    """
    attrs = {"mode": mode, "coordinates": coordinates, "rounding": rounding, "cubic_a": cubic_a,
             "exclude_outside": exclude_outside}  # fmt: skip
    known = mode in MODES and coordinates in COORDINATES and rounding in ROUNDINGS
    if not known or len(shape) != x.rank or len(scales) not in (0, x.rank):
        raise GraphTypeError(
            "T107",
            f"resize: {x.type} to {text(shape)} by {scales}, mode={mode!r}, "
            f"coordinates={coordinates!r}, rounding={rounding!r}",
            hint=f"modes are {', '.join(MODES)}; coordinates {', '.join(COORDINATES)}; "
            f"roundings {', '.join(ROUNDINGS)}; shape and scales have an entry for each axis",
        )
    if any(isinstance(n, int) and n < 0 for n in shape) or any(not s > 0 for s in scales):
        raise GraphTypeError("T107", f"resize: sizes {text(shape)} and scales {scales} go below 0")
    if x.size == 0:
        raise GraphTypeError("T110", f"resize: {x.type} has no elements to resample")
    ratios = [Fraction(s).limit_denominator(1 << 20) for s in scales]
    changed = [n for n in range(x.rank) if x.shape[n] != shape[n] or (scales and scales[n] != 1.0)]
    result = x
    for step, axis in enumerate(changed):
        name = "resize" if step == len(changed) - 1 else f"resize_{axis}"
        scale = ratios[axis] if scales else None
        result = _resampled(result, axis, shape[axis], scale, attrs, name)
    if result is x:
        return te.compute(x.shape, lambda *i: x[i], "resize", layout=x.layout)
    result.layout = x.layout
    return result


@resize.dynamic
def _resize_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = tensor_type("resize", types[0])
    if isinstance(attrs.shape, ArgRef) or not attrs.shape:
        return unknown_tensor("resize", source, source.rank)
    return TensorType(attrs.shape, source.dtype)


@resize.resolver
def _resize_resolver(types: Sequence[TensorType], attrs: dict[str, Any]) -> dict[str, Any]:
    """An empty shape is that of the input by the scales, rounded down."""
    if attrs["shape"] or not attrs["scales"]:
        return {}
    sizes = zip(types[0].concrete, attrs["scales"], strict=False)
    return {"shape": tuple(math.floor(n * scale) for n, scale in sizes)}


@resize.layout
def _resize_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Blocked where only plain axes are resampled: the blocks just come along."""
    parsed = parse_layout(layout)
    source = types[0]
    block = parsed.factor("C")
    if source.rank != 4 or block == 1 or attrs.shape[:2] != source.shape[:2]:
        return None
    channels = source.shape[1]
    if not isinstance(channels, int) or channels % block or any(s != 1 for s in attrs.scales[:2]):
        return None
    shape = (source.shape[0], channels // block, *attrs.shape[2:], block)
    scales = (*attrs.scales, 1.0) if attrs.scales else ()
    return (layout,), attrs.with_(shape=shape, scales=scales), layout
