"""Resampling of images of `u8` in fixed-point arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any, Final

from clew import te
from clew.ir.dims import Dim
from clew.ops.common import axis_of, f32, u8
from clew.ops.images.image import filter_weight, inside, origin, ratio_of, shrinks
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Index, binary
from clew.te.roles import SELECTED, TABLE

_REACH: Final = {"linear": 1, "cubic": 2}
_MOST_BITS: Final = 22
"""The most fraction bits of a weight."""


@register_op(
    "resize_u8",
    samples=(
        Sample(u8(1, 2, 5, 7), axis=3, size=16, low=0, high=255),
        Sample(u8(2, 9, 3), axis=1, size=4, low=0, high=255),
        Sample(u8(1, 2, 9, 7), axis=2, size=20, mode="cubic", low=0, high=255),
        Sample(u8(11, 5), axis=0, size=7, mode="cubic", align_corners=True, low=0, high=255),
        Sample(u8(2, 3), axis=1, size=1, mode="cubic", align_corners=True, low=0, high=255),
        Sample(u8(2, 10), axis=1, size=12, scale=1.25, low=0, high=255),
        Sample(u8(2, 30), axis=1, size=7, antialias=True, low=0, high=255),
        Sample(u8(3, 30), axis=1, size=7, mode="cubic", antialias=True, low=0, high=255),
        Sample(u8(3, 7), axis=1, size=30, mode="cubic", antialias=True, low=0, high=255),
        Sample(u8(3, 7), axis=1, size=0),
        Sample(u8(3, 7), axis=2, size=5, error="T104"),
        Sample(f32(3, 7), axis=1, size=5, error="T105"),
        Sample(u8(3, 7), axis=1, size=5, mode="nearest", error="T107"),
        Sample(u8(3, 0), axis=1, size=5, error="T110"),
    ),
)
def resize_u8(
    x: Tensor,
    *,
    axis: int,
    size: int,
    scale: float = 0.0,
    mode: str = "linear",
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resamples one axis to `size` in fixed-point arithmetic, as PyTorch does for `u8` on CPUs.

    Weights are integers of 16 bits with as many fraction bits as the largest weight of the axis
    allows. Sums are rounded half up and clamped; an image is therefore rounded after each axis.
    `mode` is linear or cubic; `antialias` widens the filter where the axis shrinks. `scale` is the
    factor between positions; if 0, the ratio of the sizes.

    Errors: T104, T105, T107, T110. Source: `torch.nn.functional.interpolate`.
    """
    if x.dtype != "u8":
        raise GraphTypeError("T105", f"resize_u8: expects u8, got {x.type}")
    n = axis_of("resize_u8", axis, x.rank)
    if mode not in _REACH or scale < 0 or (isinstance(size, int) and size < 0):
        raise GraphTypeError(
            "T107",
            f"resize_u8: mode={mode!r}, size={size}, scale={scale}",
            hint="modes are linear, cubic; size and scale are at least 0",
        )
    shape = (*x.shape[:n], size, *x.shape[n + 1 :])
    if 0 in shape:
        return te.compute(shape, lambda *i: te.as_scalar(0, "u8"), "resize_u8")
    if x.shape[n] == 0:
        raise GraphTypeError("T110", f"resize_u8: {x.type} has no elements to resample")
    ratio = ratio_of(scale) if scale else None
    rule = "align_corners" if align_corners else "half_pixel"

    def place_of(o: Scalar) -> tuple[Scalar, Scalar]:
        """Returns the element below a position, and the distance of the position from it."""
        place, over = origin(o, x.shape[n], size, ratio, rule)
        below = place // over
        return below, te.cast("f64", place - below * over) / te.cast("f64", over)

    factor = shrinks(x.shape[n], size, ratio) if antialias else None
    attrs = {"mode": mode, "cubic_a": -0.5 if antialias else -0.75}
    first = floor(-_REACH[mode] / (factor or Fraction(1))) + 1
    real = _weights(x.shape[n], size, first, float(factor or 1), place_of, attrs, antialias)
    weights, precision = _in_fixed_point(real)
    k = te.reduce_axis(real.shape[0], "k")

    def total(*i: Index) -> Scalar:
        below, _ = place_of(i[n])
        at = te.minimum(te.maximum(below + k + first, 0), te.size(x.shape[n] - 1))
        value = te.cast("i32", x[(*i[:n], at, *i[n + 1 :])])
        return te.sum(value * weights[k, i[n]], k)

    totals = te.compute(shape, total, "resize_u8_sum", role=SELECTED)

    def rounded(*i: Index) -> Scalar:
        half = binary("shl", te.as_scalar(1, "i32"), precision[0] - 1)
        value = binary("shr", totals[i] + half, precision[0])
        return te.cast("u8", te.minimum(te.maximum(value, 0), 255))

    return te.compute(shape, rounded, "resize_u8")


def _weights(
    size: Dim,
    out: Dim,
    first: int,
    step: float,
    place_of: Any,
    attrs: dict[str, Any],
    antialias: bool,
) -> Tensor:
    """Returns the weights `f64[taps, out]` of the elements around each position; 0 beyond the edge.

    With `antialias`, weights of the elements that exist add up to 1. Without, the edge element
    counts for those beyond it, and its weight is the sum of theirs.
    """
    count = 2 - 2 * first

    def own(n: Scalar, o: Scalar) -> Scalar:
        _, fraction = place_of(o)
        return filter_weight((te.cast("f64", n + first) - fraction) * step, attrs)

    if not antialias:
        k = te.reduce_axis(count, "k")

        def gathered(n: Scalar, o: Scalar) -> Scalar:
            below, _ = place_of(o)
            position, source = below + n + first, below + k + first
            held = te.minimum(te.maximum(source, 0), te.size(size - 1))
            return te.sum(te.select(held.equal(position), own(k, o), 0.0), k)

        return te.compute((count, out), gathered, "resize_u8_taps", role=TABLE)

    def tap(n: Scalar, o: Scalar) -> Scalar:
        return inside(place_of(o)[0] + n + first, size, own(n, o))

    taps = te.compute((count, out), tap, "resize_u8_taps", role=TABLE)
    k = te.reduce_axis(count, "k")
    whole = te.compute((out,), lambda o: te.sum(taps[k, o], k), "resize_u8_whole", role=TABLE)

    def share(n: Scalar, o: Scalar) -> Scalar:
        weight = whole[o]
        return taps[n, o] / te.select(weight.equal(0.0), 1.0, weight)

    return te.compute((count, out), share, "resize_u8_shares", role=TABLE)


def _in_fixed_point(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weights as integers, and the number of their fraction bits: the most for which the
    largest weight fits 16 bits.
    """
    k, o = (te.reduce_axis(n, name) for n, name in zip(weights.shape, "ko", strict=True))

    def largest(_: Scalar) -> Scalar:
        return te.max(weights[k, o], (k, o))

    peak = te.compute((1,), largest, "resize_u8_peak", role=TABLE)
    bit = te.reduce_axis(_MOST_BITS, "bit")

    def fitting(_: Scalar) -> Scalar:
        power = te.cast("f64", binary("shl", te.as_scalar(2, "i64"), te.cast("i64", bit)))
        fits = peak[0] * power + 0.5 < float(1 << 15)
        return te.sum(te.cast("i32", fits), bit)

    precision = te.compute((1,), fitting, "resize_u8_precision", role=TABLE)

    def fixed(n: Scalar, o: Scalar) -> Scalar:
        one = binary("shl", te.as_scalar(1, "i32"), precision[0])
        value = weights[n, o] * te.cast("f64", one)
        return te.cast("i32", te.select(value < 0.0, value - 0.5, value + 0.5))

    return te.compute(weights.shape, fixed, "resize_u8_weights", role=TABLE), precision
