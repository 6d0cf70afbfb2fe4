"""Elementwise functions of one input."""

from __future__ import annotations

import math

import numpy as np

from clew import te
from clew.ir import symbolic
from clew.ir.types import DTYPES, TensorType, integer_limits, is_float
from clew.ops.common import (
    boolean,
    computable,
    f16,
    f32,
    f64,
    i32,
    i64,
    need_float,
    need_number,
    u8,
)
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Tensor
from clew.te.expr import Scalar, unary

_WRONG = Sample(i32(3), error="T105")
_ANY = (Sample(f32(3, 5)), Sample(f32()), Sample(f16(9)), Sample(f64(0, 2)), _WRONG)
_UNIT = (Sample(f32(3, 5), low=-0.99, high=0.99), Sample(f64(7), low=-0.99, high=0.99), _WRONG)
_POSITIVE = (Sample(f32(3, 5), low=0.1, high=9), Sample(f64(7), low=0.1, high=9), _WRONG)
_OVER_ONE = (Sample(f32(3, 5), low=1, high=9), Sample(f64(7), low=1, high=9), _WRONG)
_ROUNDED = (*_ANY, Sample(np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.0], "f4")))
_SIGNED = (Sample(f32(3, 5)), Sample(f32()), Sample(i64(3, 5), low=-9, high=9))


def _intrinsic(name: str, x: Tensor) -> Tensor:
    """Applies a function to float elements.

    Errors: T105.
    """
    need_float(name, x)
    return te.compute(x.shape, lambda *i: te.call(name, x[i]), name, layout=x.layout)


@register_op("exp", traits=Traits(never_negative="always"), samples=_ANY)
def exp(x: Tensor) -> Tensor:
    """E to the power of `x`. Source: ONNX Exp-13."""
    return _intrinsic("exp", x)


@register_op("log", samples=_POSITIVE)
def log(x: Tensor) -> Tensor:
    """Natural logarithm. Source: ONNX Log-13."""
    return _intrinsic("log", x)


@register_op(
    "sqrt", traits=Traits(sizes="computed", never_negative="as operands"), samples=_POSITIVE
)
def sqrt(x: Tensor) -> Tensor:
    """Square root. Source: ONNX Sqrt-13."""
    return _intrinsic("sqrt", x)


@register_op("rsqrt", samples=_POSITIVE)
def rsqrt(x: Tensor) -> Tensor:
    """`1 / sqrt(x)`."""
    return _intrinsic("rsqrt", x)


@register_op("sigmoid", traits=Traits(never_negative="always"), samples=_ANY)
def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(-x))`. Source: ONNX Sigmoid-13."""
    return _intrinsic("sigmoid", x)


@register_op("tanh", samples=_ANY)
def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent. Source: ONNX Tanh-13."""
    return _intrinsic("tanh", x)


@register_op("erf", samples=_ANY)
def erf(x: Tensor) -> Tensor:
    """Error function. Source: ONNX Erf-13."""
    return _intrinsic("erf", x)


@register_op("sin", samples=_ANY)
def sin(x: Tensor) -> Tensor:
    """Sine of radians. Source: ONNX Sin-22."""
    return _intrinsic("sin", x)


@register_op("cos", samples=_ANY)
def cos(x: Tensor) -> Tensor:
    """Cosine of radians. Source: ONNX Cos-22."""
    return _intrinsic("cos", x)


@register_op("tan", samples=_UNIT)
def tan(x: Tensor) -> Tensor:
    """Tangent of radians. Source: ONNX Tan-22."""
    return _intrinsic("tan", x)


@register_op("asin", samples=_UNIT)
def asin(x: Tensor) -> Tensor:
    """Inverse sine in radians. Source: ONNX Asin-22."""
    return _intrinsic("asin", x)


@register_op("acos", samples=_UNIT)
def acos(x: Tensor) -> Tensor:
    """Inverse cosine in radians. Source: ONNX Acos-22."""
    return _intrinsic("acos", x)


@register_op("atan", samples=_ANY)
def atan(x: Tensor) -> Tensor:
    """Inverse tangent in radians. Source: ONNX Atan-22."""
    return _intrinsic("atan", x)


@register_op("sinh", samples=_ANY)
def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine. Source: ONNX Sinh-22."""
    return _intrinsic("sinh", x)


@register_op("cosh", samples=_ANY)
def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine. Source: ONNX Cosh-22."""
    return _intrinsic("cosh", x)


@register_op("asinh", samples=_ANY)
def asinh(x: Tensor) -> Tensor:
    """Inverse hyperbolic sine. Source: ONNX Asinh-22."""
    return _intrinsic("asinh", x)


@register_op("acosh", samples=_OVER_ONE)
def acosh(x: Tensor) -> Tensor:
    """Inverse hyperbolic cosine. Source: ONNX Acosh-22."""
    return _intrinsic("acosh", x)


@register_op("atanh", samples=_UNIT)
def atanh(x: Tensor) -> Tensor:
    """Inverse hyperbolic tangent. Source: ONNX Atanh-22."""
    return _intrinsic("atanh", x)


@register_op("floor", traits=Traits(symbolic=symbolic.ROUND, sizes="computed"), samples=_ROUNDED)
def floor(x: Tensor) -> Tensor:
    """The largest integer that is not greater. Source: ONNX Floor-13."""
    return _intrinsic("floor", x)


@register_op("ceil", traits=Traits(symbolic=symbolic.ROUND, sizes="computed"), samples=_ROUNDED)
def ceil(x: Tensor) -> Tensor:
    """The smallest integer that is not less. Source: ONNX Ceil-13."""
    return _intrinsic("ceil", x)


@register_op("round", traits=Traits(symbolic=symbolic.ROUND, sizes="computed"), samples=_ROUNDED)
def round_(x: Tensor) -> Tensor:
    """The nearest integer; ties round to even. Source: ONNX Round-22."""
    return _intrinsic("round", x)


@register_op("trunc", traits=Traits(sizes="computed"), samples=_ROUNDED)
def trunc(x: Tensor) -> Tensor:
    """The integer part."""
    return _intrinsic("trunc", x)


@register_op("isnan", samples=(*_ANY, Sample(TensorType((5, 7), "f8e4m3fnuz"))))
def isnan(x: Tensor) -> Tensor:
    """Whether an element is NaN, `bool[...]`. Source: ONNX IsNaN-20."""
    need_float("isnan", x)
    return te.compute(
        x.shape, lambda *i: te.call("isnan", computable(x[i])), "isnan", layout=x.layout
    )


@register_op(
    "isinf",
    samples=(
        Sample(np.array([1, math.inf, -math.inf, math.nan], "f4")),
        Sample(np.array([1, math.inf, -math.inf, math.nan], "f4"), negative=False),
        Sample(np.array([1, math.inf, -math.inf, math.nan], "f4"), positive=False),
        Sample(TensorType((5, 7), "f8e5m2"), positive=False),
        Sample(f32(3), positive=False, negative=False),
        _WRONG,
    ),
)
def isinf(x: Tensor, *, positive: bool = True, negative: bool = True) -> Tensor:
    """Whether an element is an infinity of a selected sign, `bool[...]`. Source: ONNX IsInf-20."""
    need_float("isinf", x)

    def element(*i: te.Scalar) -> te.Scalar:
        if positive and negative:
            return te.call("isinf", computable(x[i]))
        if not positive and not negative:
            return te.as_scalar(False, "bool")
        return computable(x[i]).equal(math.inf if positive else -math.inf)

    return te.compute(x.shape, element, "isinf", layout=x.layout)


@register_op(
    "negative",
    traits=Traits(symbolic=symbolic.NEGATIVE, sizes="computed"),
    samples=(*_SIGNED, Sample(boolean(3), error="T105")),
)
def negative(x: Tensor) -> Tensor:
    """`-x`. Source: ONNX Neg-13."""
    need_number("negative", x)
    return te.compute(x.shape, lambda *i: -x[i], "negative", layout=x.layout)


@register_op(
    "abs",
    traits=Traits(symbolic=symbolic.ABS, sizes="computed", never_negative="always"),
    samples=(*_SIGNED, Sample(u8(4), low=0, high=9), Sample(boolean(3), error="T105")),
)
def abs_(x: Tensor) -> Tensor:
    """Absolute value. Source: ONNX Abs-13."""
    need_number("abs", x)
    unsigned = x.dtype[0] == "u"
    return te.compute(
        x.shape, lambda *i: x[i] if unsigned else unary("abs", x[i]), "abs", layout=x.layout
    )


@register_op(
    "sign",
    traits=Traits(sizes="computed"),
    samples=(
        *_SIGNED,
        Sample(i32(3), low=-3, high=3),
        Sample(u8(4), low=0, high=3),
        Sample(boolean(3), error="T105"),
    ),
)
def sign(x: Tensor) -> Tensor:
    """1 for positive, -1 for negative, and 0 for zero elements, also for -0; NaN for NaN. Source:
    ONNX Sign-13.
    """
    need_number("sign", x)
    if x.dtype[0] == "u":
        return te.compute(x.shape, lambda *i: te.minimum(x[i], 1), "sign", layout=x.layout)

    def of_zero(value: Scalar) -> Scalar:
        # Adding 0 keeps NaN and makes -0 zero.
        return value + 0.0 if is_float(x.dtype) else te.as_scalar(0, x.dtype)

    return te.compute(
        x.shape,
        lambda *i: te.select(x[i] > 0, 1, te.select(x[i] < 0, -1, of_zero(x[i]))),
        "sign",
        layout=x.layout,
    )


@register_op("reciprocal", traits=Traits(sizes="computed"), samples=_POSITIVE)
def reciprocal(x: Tensor) -> Tensor:
    """`1 / x`. Source: ONNX Reciprocal-13."""
    need_float("reciprocal", x)
    return te.compute(x.shape, lambda *i: 1.0 / x[i], "reciprocal", layout=x.layout)


@register_op(
    "cast",
    traits=Traits(symbolic=symbolic.CAST, sizes="computed", never_negative="as operands"),
    samples=(
        Sample(f32(3, 5), dtype="i32", low=-9, high=9),
        Sample(i64(3, 5), dtype="f32", low=-9, high=9),
        Sample(f32(7), dtype="f16"),
        Sample(f16(7), dtype="f32"),
        Sample(f32(7), dtype="bf16"),
        Sample(f32(3), dtype="f32"),
        Sample(np.array([0.0, 0.5, -2, math.nan], "f4"), dtype="bool"),
        Sample(boolean(5), dtype="f32"),
        Sample(i32(5), dtype="u8", low=0, high=200),
        Sample(f32(3, 7), dtype="f8e4m3fn", low=-500, high=500),
        Sample(f64(19), dtype="f4e2m1fn", low=-9, high=9),
        Sample(TensorType((5, 7), "f8e5m2fnuz"), dtype="f16"),
        Sample(TensorType((33,), "i4"), dtype="f32", low=-8, high=7),
        Sample(f32(33), dtype="u2", low=-9, high=9),
        Sample(f32(3), dtype="float", error="T106"),
    ),
)
def cast(x: Tensor, *, dtype: str) -> Tensor:
    """The values as `dtype` (a clew name such as `f16`). Floats to integers truncate, floats round
    to nearest even, and every nonzero value is true. Integers wrap. Floats out of an integer's
    range give the result of x86 (`te.convert`); beyond a float's range they give infinity, NaN or
    the largest number, the first of these that the format has. For `f8e8m0fnu`, the nearest power,
    as in `to_exponent`. Source: ONNX Cast-25 (except `saturate`), and ONNX Runtime where it leaves
    the result open.
    """
    if dtype not in DTYPES:
        raise GraphTypeError(
            "T106", f"cast: unknown dtype {dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}"
        )
    if dtype == "f8e8m0fnu":
        return te.compute(x.shape, lambda *i: te.to_exponent(x[i]), "cast", layout=x.layout)
    return te.compute(x.shape, lambda *i: te.cast(dtype, x[i]), "cast", layout=x.layout)


@register_op(
    "clip",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(3, 5), min=-0.5, max=0.5),
        Sample(f32(3, 5), min=0.0),
        Sample(f32(3, 5), max=1.0),
        Sample(f32(3)),
        Sample(i32(3, 5), min=-1.0, max=3.0, low=-9, high=9),
        Sample(u8(5), min=-1.0, max=math.inf, low=0, high=9),
        Sample(boolean(3), min=0.0, error="T105"),
    ),
)
def clip(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:
    """`x` clamped to `min` and `max`, where given. Source: ONNX Clip-13."""
    need_number("clip", x)

    def limit(value: float) -> te.Scalar:
        if not is_float(x.dtype):
            low, high = integer_limits(x.dtype)
            value = low if value <= low else high if value >= high else int(value)
        return te.as_scalar(value, x.dtype)

    def body(*i: te.Scalar) -> te.Scalar:
        value = x[i]
        if min is not None:
            value = te.maximum(value, limit(min))
        return te.minimum(value, limit(max)) if max is not None else value

    return te.compute(x.shape, body, "clip", layout=x.layout)
