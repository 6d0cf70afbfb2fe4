"""Fixed-point products: integers times factors that are integers times powers of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ops.common import at, broadcast_shapes, differ, f32, i32, i64
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import binary

Array = np.ndarray[Any, Any]

_FRACTION = 31  # bits of a factor's fraction
_PART = 16


@register_op(
    "scale_fixed",
    traits=Traits(keeps_finite=True, parameters=(1, 2)),
    samples=(
        Sample(i32(3, 5), np.array(1518500250, "i4"), np.array(9, "i4"), low=-99999, high=99999),
        Sample(
            np.array([[-5, -3, -1, 0, 1, 3, 5]], "i4"),
            np.array([1 << 30] * 7, "i4"),
            np.array([0, 1, 1, 2, 0, 0, 31], "i4"),
        ),
        Sample(
            np.array([[-11, -3, -1, 0, 1, 3, 1 - (1 << 30)]], "i4"),
            np.array([1 << 30, 1518500250, 1 << 30, 0, 1 << 30, 1 << 30, 2**31 - 1], "i4"),
            np.array([0, 1, 1, 2, 0, 0, 31], "i4"), bounded=True,
        ),
        Sample(
            i64(3, 2), np.array([1 << 30, 2**31 - 1], "i4"), np.array([7, 0], "i4"),
            low=-9999999, high=9999999,
        ),
        Sample(
            i64(3, 2), np.array([1 << 30, 2**31 - 1], "i4"), np.array([7, 0], "i4"), halved=True,
            low=-9999999, high=9999999,
        ),
        Sample(
            i32(3, 5), np.array(1518500250, "i4"), np.array(3, "i4"), once=True,
            low=-99999, high=99999,
        ),
        Sample(i32(3), i32(2), i32(), error="T100"),
        Sample(i32(3), i64(), i32(), error="T101"),
        Sample(f32(3), i32(), i32(), error="T105"),
    ),
)  # fmt: skip
def scale_fixed(
    x: Tensor,
    factor: Tensor,
    shift: Tensor,
    *,
    halved: bool = False,
    once: bool = False,
    bounded: bool = False,
) -> Tensor:
    """`x * factor / 2**(31 + shift)` in `i32`, with TFLite's rounding; `shift` is from 0 to 31 and
    `factor` not negative.

    An `i32` product is rounded twice: after the shift by 31 with ties up, and after that by `shift`
    with ties away from zero. `bounded` states that `abs(x)` is less than 2**30, which takes fewer
    instructions. With `once`, it is rounded only at the end, ties up. An `i64` product is rounded
    once, ties up; `x` must be less than 2**46. With `halved`, its factor is first rounded to the
    upper 16 bits.

    Errors: T100, T101, T105. Source: TFLite's MultiplyByQuantizedMultiplier.
    """
    name = "scale_fixed"
    if x.dtype not in ("i32", "i64"):
        raise GraphTypeError("T105", f"{name}: takes i32 or i64, got {x.dtype}")
    _check(name, x, factor, shift)
    of_sum = _scaled_once if once else _scaled_bounded if bounded else _scaled_sum
    body = of_sum if x.dtype == "i32" else _scaled_half if halved else _scaled_long

    def element(*i: Scalar) -> Scalar:
        return body(x[i], at(factor, x.shape, i), at(shift, x.shape, i))

    return te.compute(x.shape, element, name, layout=x.layout)


def _check(name: str, x: Tensor, *parameters: Tensor, dtype: str = "i32") -> None:
    for parameter in parameters:
        if parameter.dtype != dtype:
            raise GraphTypeError("T101", f"{name}: takes {dtype}, got {parameter.type}")
        joint = broadcast_shapes(name, x.shape, parameter.shape)
        if len(joint) != x.rank or any(map(differ, joint, x.shape)):
            raise GraphTypeError("T100", f"{name}: {parameter.type} does not fit {x.type}")


def _wide(x: Scalar) -> Scalar:
    return te.cast("i64", x)


def _high(x: Scalar, factor: Scalar) -> Scalar:
    product = _wide(x) * _wide(factor) + (1 << (_FRACTION - 1))
    return te.cast("i32", binary("shr", product, te.as_scalar(_FRACTION, "i64")))


def _scaled_bounded(x: Scalar, factor: Scalar, shift: Scalar) -> Scalar:
    # Adds a half and shifts. The half of negative numbers is 1 less: ties go away from zero.
    one, right = te.as_scalar(1, "i32"), shift & _FRACTION
    mask = binary("shl", one, right) - 1
    tie = mask & 1
    half = binary("shr", mask, one) + tie
    less = binary("shr", x, te.as_scalar(_FRACTION, "i32")) & tie
    return binary("shr", _high(x, factor) + (half - less), right)


def _scaled_sum(x: Scalar, factor: Scalar, shift: Scalar) -> Scalar:
    high = _high(x, factor)
    one = te.as_scalar(1, "i32")
    mask = binary("shl", one, shift) - 1
    # Ties go away from zero, so negative numbers round up only above a tie.
    most = binary("shr", mask, one) + te.cast("i32", high < 0)
    up = te.cast("i32", binary("and", high, mask) > most)
    return binary("shr", high, shift) + up


def _scaled_once(x: Scalar, factor: Scalar, shift: Scalar) -> Scalar:
    right = _wide(shift) + _FRACTION
    half = binary("shl", te.as_scalar(1, "i64"), right - 1)
    return te.cast("i32", binary("shr", _wide(x) * _wide(factor) + half, right))


def _scaled_long(x: Scalar, factor: Scalar, shift: Scalar) -> Scalar:
    # The factor is split in two, because the product would overflow 64 bits.
    high = _wide(binary("shr", factor, te.as_scalar(_PART, "i32")))
    low = _wide(factor) & ((1 << _PART) - 1)
    half = binary("shl", te.as_scalar(1, "i64"), _wide(shift) + (_FRACTION - 1))
    carried = binary("shr", x * low + half, te.as_scalar(_PART, "i64"))
    return te.cast("i32", binary("shr", x * high + carried, _wide(shift) + (_FRACTION - _PART)))


def _scaled_half(x: Scalar, factor: Scalar, shift: Scalar) -> Scalar:
    most = te.as_scalar(0x7FFF, "i32")
    rounded = binary("shr", factor + (1 << (_PART - 1)), te.as_scalar(_PART, "i32"))
    short = te.select(factor < 0x7FFF0000, rounded, most)
    right = _wide(shift) + (_FRACTION - _PART)
    half = binary("shl", te.as_scalar(1, "i64"), right - 1)
    return te.cast("i32", binary("shr", x * _wide(short) + half, right))


@scale_fixed.reference
def _(x: Array, factor: Array, shift: Array, *, halved: bool, once: bool, bounded: bool) -> Array:
    wide, right = factor.astype(np.int64), shift.astype(np.int64)
    if x.dtype == np.int64 and halved:
        short = np.where(wide < 0x7FFF0000, (wide + (1 << (_PART - 1))) >> _PART, 0x7FFF)
        right += _FRACTION - _PART
        return np.asarray((x * short + (1 << (right - 1))) >> right, np.int32)
    if x.dtype == np.int64:
        high, low = wide >> _PART, wide & ((1 << _PART) - 1)
        carried = (x * low + (1 << (_FRACTION - 1 + right))) >> _PART
        found: Array = (x * high + carried) >> (_FRACTION - _PART + right)
        return found.astype(np.int32)
    if once:
        return np.asarray((x * wide + (1 << (_FRACTION - 1 + right))) >> (_FRACTION + right), "i4")
    high = (x * wide + (1 << (_FRACTION - 1))) >> _FRACTION
    mask = (1 << right) - 1
    up = (high & mask) > (mask >> 1) + (high < 0)
    return np.asarray((high >> right) + up, np.int32)


@register_op(
    "rescale",
    traits=Traits(keeps_finite=True, parameters=(1, 2, 3)),
    samples=(
        Sample(
            i32(3, 5), np.array(1518500250, "i4"), np.array(-5 << 40, "i8"), np.array(7, "i4"),
            low=-99999, high=99999,
        ),
        Sample(
            i32(3, 4), np.array([1 << 30, 2**31 - 1, 1518500250, 0], "i4"),
            np.array([1 << 33, -(1 << 61), 3 << 30, -1], "i8"), np.array([0, 19, 5, 31], "i4"),
            low=-(1 << 30), high=1 << 30,
        ),
        Sample(i32(3), i32(), i64(2), i32(), error="T100"),
        Sample(i32(3), i32(), i32(), i32(), error="T101"),
        Sample(i64(3), i32(), i64(), i32(), error="T105"),
    ),
)  # fmt: skip
def rescale(x: Tensor, factor: Tensor, offset: Tensor, shift: Tensor) -> Tensor:
    """`(x * factor + offset) / 2**(32 + shift)` in `i32`, rounded down; `shift` is from 0 to 31.
    `offset` (`i64`) holds the term that rounds, and may hold a bias and a zero point.

    Errors: T100, T101, T105. Source: the RESCALE operator of TOSA.
    """
    name = "rescale"
    if x.dtype != "i32":
        raise GraphTypeError("T105", f"{name}: takes i32, got {x.dtype}")
    _check(name, x, factor, shift)
    _check(name, x, offset, dtype="i64")

    def element(*i: Scalar) -> Scalar:
        factors, offsets, shifts = (at(each, x.shape, i) for each in (factor, offset, shift))
        product = _wide(x[i]) * _wide(factors) + offsets
        high = te.cast("i32", binary("shr", product, te.as_scalar(32, "i64")))
        return binary("shr", high, shifts)

    return te.compute(x.shape, element, name, layout=x.layout)


@rescale.reference
def _(x: Array, factor: Array, offset: Array, shift: Array) -> Array:
    product = x.astype(np.int64) * factor + offset
    return np.asarray((product >> 32).astype(np.int32) >> shift, np.int32)


@register_op(
    "rescale_away",
    traits=Traits(keeps_finite=True, parameters=(1, 2, 3, 4)),
    samples=(
        Sample(
            i32(3, 5), np.array(-1518500250, "i4"), np.array(-5 << 40, "i8"), np.array(9, "i4"),
            np.array(7, "i4"), low=-99999, high=99999,
        ),
        Sample(
            i32(3, 4), np.array([-(1 << 31), -1, -1518500250, -2], "i4"),
            np.array([1 << 33, -(1 << 61), 3 << 30, -1], "i8"),
            np.array([0, 99, -5, -(1 << 31)], "i4"), np.array([0, 19, 5, 31], "i4"),
            low=-(1 << 29), high=1 << 29,
        ),
        Sample(i32(3), i32(), i64(2), i32(), i32(), error="T100"),
        Sample(i32(3), i32(), i32(), i32(), i32(), error="T101"),
        Sample(i64(3), i32(), i64(), i32(), i32(), error="T105"),
    ),
)  # fmt: skip
def rescale_away(x: Tensor, factor: Tensor, offset: Tensor, limit: Tensor, shift: Tensor) -> Tensor:
    """`((x * (2**32 + factor) + offset) / 2**32 - (x < limit)) / 2**shift` in `i32`, each quotient
    rounded down; `factor` is negative, and `shift` is from 0 to 31. The first quotient must fit in
    `i32`.

    `rescale` with ties away from zero: numbers below `limit` (`i32`) are those whose results are
    negative, and their ties round down.

    Errors: T100, T101, T105. Source: TFLite's MultiplyByQuantizedMultiplier.
    """
    name = "rescale_away"
    if x.dtype != "i32":
        raise GraphTypeError("T105", f"{name}: takes i32, got {x.dtype}")
    _check(name, x, factor, limit, shift)
    _check(name, x, offset, dtype="i64")

    def element(*i: Scalar) -> Scalar:
        parameters = (at(each, x.shape, i) for each in (factor, offset, limit, shift))
        factors, offsets, limits, shifts = parameters
        product = _wide(x[i]) * _wide(factors) + offsets
        high = te.cast("i32", binary("shr", product, te.as_scalar(32, "i64"))) + x[i]
        return binary("shr", high - te.cast("i32", x[i] < limits), shifts)

    return te.compute(x.shape, element, name, layout=x.layout)


@rescale_away.reference
def _(x: Array, factor: Array, offset: Array, limit: Array, shift: Array) -> Array:
    product = x.astype(np.int64) * factor + offset
    high = (product >> 32).astype(np.int32) + x - (x < limit)
    return np.asarray(high >> shift, np.int32)
