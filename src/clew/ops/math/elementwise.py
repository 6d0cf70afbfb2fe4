"""Elementwise arithmetic of two inputs, with NumPy broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from clew import te
from clew.ir import symbolic
from clew.ir.types import is_float
from clew.ops.common import (
    at,
    boolean,
    broadcast_shapes,
    f16,
    f32,
    f64,
    i32,
    i64,
    joint_layout,
    need_number,
    same_dtype,
    u8,
)
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.budgets import check_run_bytes
from clew.support.text_arrays import TEXT
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_MISFITS = (
    Sample(f32(2, 3), f32(2, 4), error="T100"),
    Sample(f32(2, 3), i32(2, 3), error="T101"),
    Sample(f32(2), error="T010"),
)
_SHAPES = (
    Sample(f32(3, 5), f32(3, 5)),
    Sample(f32(2, 1, 5), f32(3, 1)),
    Sample(f32(7), f32()),
    Sample(f32(), f32()),
    Sample(f64(0, 3), f64(3)),
    Sample(f16(9), f16(9)),
)
_NUMBERS = (*_SHAPES, Sample(i32(3, 5), i32(5)), Sample(u8(17), u8(17), low=0, high=10), *_MISFITS)


def broadcast(name: str, a: Tensor, b: Tensor, body: Callable[[Scalar, Scalar], Scalar]) -> Tensor:
    """Applies `body` elementwise to two inputs, which have one dtype and broadcast.

    Errors: T100, T101.
    """
    same_dtype(name, a, b)
    shape = broadcast_shapes(name, a.shape, b.shape)
    layout = joint_layout(len(shape), a, b)
    return te.compute(shape, lambda *i: body(at(a, shape, i), at(b, shape, i)), name, layout=layout)


@register_op(
    "add",
    traits=Traits(symbolic=symbolic.ADD, sizes="computed", never_negative="as operands"),
    commutative=True,
    associative=True,
    samples=_NUMBERS,
)
def add(a: Tensor, b: Tensor) -> Tensor:
    """`a + b`. Source: ONNX Add-14."""
    need_number("add", a)
    return broadcast("add", a, b, lambda x, y: x + y)


@register_op(
    "subtract", traits=Traits(symbolic=symbolic.SUBTRACT, sizes="computed"), samples=_NUMBERS
)
def subtract(a: Tensor, b: Tensor) -> Tensor:
    """`a - b`. Source: ONNX Sub-14."""
    need_number("subtract", a)
    return broadcast("subtract", a, b, lambda x, y: x - y)


@register_op(
    "multiply",
    traits=Traits(symbolic=symbolic.MULTIPLY, sizes="computed", never_negative="as operands"),
    commutative=True,
    associative=True,
    samples=_NUMBERS,
)
def multiply(a: Tensor, b: Tensor) -> Tensor:
    """`a * b`. Source: ONNX Mul-14."""
    need_number("multiply", a)
    return broadcast("multiply", a, b, lambda x, y: x * y)


def _safe(dividend: Scalar, divisor: Scalar, negated: Scalar, body: Scalar) -> Scalar:
    """Returns `body`, or `negated` where the divisor is -1 (the least integer has no negative)."""
    if divisor.dtype[0] == "u":
        return body
    return te.select(divisor.equal(-1), negated, body)


def _divisor(divisor: Scalar) -> Scalar:
    """Returns an integer divisor that never traps: 1 replaces 0 and -1."""
    unsafe = divisor.equal(0)
    if divisor.dtype[0] != "u":
        unsafe = unsafe | divisor.equal(-1)
    return te.select(unsafe, 1, divisor)


def _divide(x: Scalar, y: Scalar) -> Scalar:
    if is_float(x.dtype):
        return x / y
    negated = x if x.dtype[0] == "u" else -x
    return _safe(x, y, negated, x / _divisor(y))


@register_op(
    "divide",
    traits=Traits(symbolic=symbolic.DIVIDE, sizes="computed", never_negative="as operands"),
    samples=(
        *_SHAPES,
        Sample(i32(3, 5), i32(5), low=-9, high=9),
        Sample(np.array([-7, 7, -8, 5, -(2**63)]), np.array([2, -2, 3, 1, -1])),
        *_MISFITS,
    ),
)
def divide(a: Tensor, b: Tensor) -> Tensor:
    """`a / b`; integers truncate toward zero, and a division by 0 gives `a`.

    Source: ONNX Div-14.
    """
    need_number("divide", a)
    return broadcast("divide", a, b, _divide)


def _remainder(x: Scalar, y: Scalar) -> Scalar:
    """Returns the remainder of truncating division: it has the sign of `x`."""
    if not is_float(x.dtype):
        zero = te.as_scalar(0, x.dtype)
        divisor = _divisor(y)
        return _safe(x, y, zero, x - (x / divisor) * divisor)
    return te.call("fmod", x, y)


def _floor_remainder(x: Scalar, y: Scalar) -> Scalar:
    if not is_float(x.dtype):
        return x % y
    rest = te.call("fmod", x, y)
    wrong = rest.not_equal(0) & ((rest < 0) ^ (y < 0))
    return te.select(wrong, rest + y, rest)


_REMAINDERS = (
    Sample(f32(3, 5), f32(3, 5)),
    Sample(np.array([-7, 7, -8, 5, 6]), np.array([3, -3, 3, -5, -1])),
    Sample(np.array([5.5, -5.5, 7, -7], "f4"), np.array([2, 2, -2.5, -3.5], "f4")),
    Sample(np.array([3, -3, np.inf, 3, np.nan, 0], "f4"), np.array([np.inf] * 3 + [0, 1, 2], "f4")),
    Sample(
        np.array([1e15, -3e38, 1e30, 7e-45, 6], "f4"), np.array([0.27, 1e-40, 3, 3e-45, -3], "f4")
    ),
    Sample(np.array([1e300, -1e18, 5e-324, 9e15]), np.array([3e-300, 0.7, 1, 0.1])),
    *_MISFITS,
)


@register_op(
    "mod", traits=Traits(symbolic=symbolic.REMAINDER, sizes="computed"), samples=_REMAINDERS
)
def mod(a: Tensor, b: Tensor) -> Tensor:
    """Remainder of truncating division, with the sign of `a` (C's `fmod`). Source: ONNX Mod-13."""
    need_number("mod", a)
    return broadcast("mod", a, b, _remainder)


@mod.reference
def _mod_reference(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):  # by zero: NaN, as intended
        return np.asarray(np.fmod(a, b))


@register_op(
    "floor_mod", traits=Traits(symbolic=symbolic.REMAINDER, sizes="computed"), samples=_REMAINDERS
)
def floor_mod(a: Tensor, b: Tensor) -> Tensor:
    """Remainder of flooring division, with the sign of `b` (Python's `%`); a zero has the sign of
    `a`, as in PyTorch. Source: ONNX Mod-13.
    """
    need_number("floor_mod", a)
    return broadcast("floor_mod", a, b, _floor_remainder)


@floor_mod.reference
def _floor_mod_reference(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        rest = np.mod(a, b)
        return np.where(rest == 0, np.fmod(a, b), rest)


def _integer_power(base: Scalar, exponent: Scalar) -> Scalar:
    """Returns an integer power by squaring. From exponent 64 up, only powers of 0, 1 and -1 fit."""
    left = te.select(exponent > 63, (exponent & 1) + 62, te.maximum(exponent, 0))
    one = te.as_scalar(1, base.dtype)
    result, square = one, base
    for _ in range(6):
        odd = (left & 1).equal(1)
        result = te.select(odd, result * square, result)
        square, left = square * square, left // 2
    if base.dtype[0] == "u":
        return result
    sign = te.select((exponent & 1).equal(1), base, one)
    inverse = te.select(base.equal(1), one, te.select(base.equal(-1), sign, 0))
    return te.select(exponent < 0, inverse, result)


@register_op(
    "power",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(3, 5), f32(3, 5), low=0.1, high=3),
        Sample(f32(2, 1, 5), f32(3, 1), low=0.1, high=3),
        Sample(np.array([-2.0, 3.0, -1.5], "f4"), np.array([2.0], "f4")),
        Sample(np.array([-2, 3, -1, 2, 1, 0]), np.array([3, 4, -3, -1, -5, 0])),
        *_MISFITS,
    ),
)
def power(a: Tensor, b: Tensor) -> Tensor:
    """`a` to the power of `b`, of one dtype; integer powers are exact. Source: ONNX Pow-15."""
    need_number("power", a)
    return broadcast("power", a, b, te.power if is_float(a.dtype) else _integer_power)


_ORDERED = (*_NUMBERS, Sample(i64(2, 3), i64(2, 3)))


@register_op(
    "maximum",
    traits=Traits(
        symbolic=symbolic.MAXIMUM, sizes="computed", second_zero=True, never_negative="as operands"
    ),
    commutative=True,
    associative=True,
    samples=_ORDERED,
)
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger of the two. Source: ONNX Max-13."""
    need_number("maximum", a)
    return broadcast("maximum", a, b, te.maximum)


@register_op(
    "minimum",
    traits=Traits(symbolic=symbolic.MINIMUM, sizes="computed", second_zero=True),
    commutative=True,
    associative=True,
    samples=_ORDERED,
)
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of the two. Source: ONNX Min-13."""
    need_number("minimum", a)
    return broadcast("minimum", a, b, te.minimum)


_COMPARED = (*_SHAPES[:4], Sample(i64(3, 5), i64(5), low=-2, high=3), *_MISFITS)


@register_op(
    "equal",
    traits=Traits(symbolic=symbolic.EQUAL, sizes="computed", collects=True),
    commutative=True,
    samples=(*_COMPARED, Sample(boolean(4), boolean(4))),
)
def equal(a: Tensor, b: Tensor) -> Tensor:
    """Whether the elements are equal, `bool[...]`. Source: ONNX Equal-19."""
    return broadcast("equal", a, b, lambda x, y: x.equal(y))


@equal.reference
def _equal_reference(a: Array, b: Array) -> Array:
    if a.shape != b.shape and a.dtype == TEXT:  # kernels compare numbers
        size = math.prod(np.broadcast_shapes(a.shape, b.shape))
        check_run_bytes("the result of equal", size)
    return np.equal(a, b)


@register_op(
    "not_equal",
    traits=Traits(symbolic=symbolic.NOT_EQUAL, sizes="computed"),
    commutative=True,
    samples=(*_COMPARED, Sample(boolean(4), boolean(4))),
)
def not_equal(a: Tensor, b: Tensor) -> Tensor:
    """Whether the elements differ, `bool[...]`."""
    return broadcast("not_equal", a, b, lambda x, y: x.not_equal(y))


@register_op("less", traits=Traits(symbolic=symbolic.LESS, sizes="computed"), samples=_COMPARED)
def less(a: Tensor, b: Tensor) -> Tensor:
    """`a < b`, `bool[...]`. Source: ONNX Less-13."""
    return broadcast("less", a, b, lambda x, y: x < y)


@register_op(
    "less_equal", traits=Traits(symbolic=symbolic.LESS_EQUAL, sizes="computed"), samples=_COMPARED
)
def less_equal(a: Tensor, b: Tensor) -> Tensor:
    """`a <= b`, `bool[...]`. Source: ONNX LessOrEqual-16."""
    return broadcast("less_equal", a, b, lambda x, y: x <= y)


@register_op(
    "greater", traits=Traits(symbolic=symbolic.GREATER, sizes="computed"), samples=_COMPARED
)
def greater(a: Tensor, b: Tensor) -> Tensor:
    """`a > b`, `bool[...]`. Source: ONNX Greater-13."""
    return broadcast("greater", a, b, lambda x, y: x > y)


@register_op(
    "greater_equal",
    traits=Traits(symbolic=symbolic.GREATER_EQUAL, sizes="computed"),
    samples=_COMPARED,
)
def greater_equal(a: Tensor, b: Tensor) -> Tensor:
    """`a >= b`, `bool[...]`. Source: ONNX GreaterOrEqual-16."""
    return broadcast("greater_equal", a, b, lambda x, y: x >= y)
