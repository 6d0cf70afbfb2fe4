"""Functions of analysis: error and gamma functions, and elementwise operators near the bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from clew.frontends.building import call, cast, cast_wide, reshaped, scalar
from clew.frontends.torch.converters.reals import Real, chosen, polynomial
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Converter, Result, converter
from clew.ir.expr import Expr
from clew.ir.types import is_float

_FLOATS: Final = PROMOTION.INT_TO_FLOAT


def _in_f64(function: Callable[[Real], Real]) -> Converter:
    def convert(layer: Layer) -> Result:
        (x,) = layer.promoted("self", kind=_FLOATS)
        return layer.to_result(function(Real(cast(x, "f64"))).expr)

    return convert


def erfc(x: Real) -> Real:
    """`1 - erf(x)`; from 2.5 on, Laplace's continued fraction, which keeps small results."""
    far = x.maximum(2.5)
    fraction = far
    for n in range(24, 0, -1):
        fraction = far + fraction.reciprocal() * (n / 2)
    tail = (far * far * -1.0).exp() / fraction * (1 / math.sqrt(math.pi))
    return chosen(x < 2.5, x.erf() * -1.0 + 1.0, tail)


_SHIFT: Final = 10


def _from_integer(x: Real) -> Real:
    """Returns the distance from the nearest integer. It is exact: sines of large numbers and of
    those near 0 keep their digits.
    """
    return x - x.round()


def lgamma(x: Real) -> Real:
    """Stirling's series beyond 10, the recurrence up to it, and the reflection below 1/2."""
    low = x < 0.5
    z = chosen(low, x * -1.0 + 1.0, x)
    short = z < float(_SHIFT)
    factors = z
    for n in range(1, _SHIFT):
        factors = factors * (z + float(n))
    far = chosen(short, z + float(_SHIFT), z)
    one = far.reciprocal()
    series = polynomial(
        one * one, (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
    )
    found = (far - 0.5) * far.log() - far + 0.5 * math.log(2 * math.pi) + series * one
    found = found - chosen(short, factors.log(), 0.0)
    sine = (_from_integer(x) * math.pi).sin().abs()
    reflected = sine.log() * -1.0 + math.log(math.pi) - found
    found = chosen(low, reflected, found)
    return chosen(x.abs().equal(math.inf).expr, math.inf, found)


def digamma(x: Real) -> Real:
    """The derivative of `lgamma`, by the derivatives of its three parts."""
    low = x < 0.5
    z = chosen(low, x * -1.0 + 1.0, x)
    short = z < float(_SHIFT)
    steps = z.reciprocal()
    for n in range(1, _SHIFT):
        steps = steps + (z + float(n)).reciprocal()
    far = chosen(short, z + float(_SHIFT), z)
    one = far.reciprocal()
    square = one * one
    series = polynomial(
        square, (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
    )
    found = far.log() - one * 0.5 - series * square - chosen(short, steps, 0.0)
    angle = _from_integer(x) * math.pi
    found = chosen(low, found - angle.cos() / angle.sin() * math.pi, found)
    pole = Real(call("logical_and", low, x.equal(x.floor()).expr)).expr
    zero = x.equal(0.0).expr
    signed = x.reciprocal() * -1.0
    return chosen(pole, chosen(zero, signed, math.nan), found)


for _name, _function in {
    "erfc": erfc,
    "lgamma": lgamma,
    "digamma": digamma,
}.items():
    converter(_name)(_in_f64(_function))


# --- elementwise operators near the bits ----------------------------------------------------------


def is_negative(x: Expr) -> Expr:
    """Whether the sign bit is set, also of a negative zero."""
    dtype = x.tensor.dtype
    if not is_float(dtype):
        return call("less", x, scalar(0, dtype))
    wide = cast_wide(x)
    integer = "i64" if wide.tensor.dtype == "f64" else "i32"
    return call("less", call("bitcast", wide, dtype=integer), scalar(0, integer))


@converter("signbit")
def signbit(layer: Layer) -> Result:
    """Whether the sign bit is set."""
    x = layer.tensor()
    if x.tensor.dtype in ("bool", "u8"):
        return layer.filled(False)
    return is_negative(x)


@converter("copysign")
def copysign(layer: Layer) -> Result:
    """The size of `self` with the sign of `other`."""
    a, b = layer.promoted("self", "other", kind=_FLOATS)
    size = call("abs", a)
    return layer.to_result(call("where", is_negative(b), call("negative", size), size))


@converter("fmax", "fmin")
def extreme_of_numbers(layer: Layer) -> Result:
    """The larger or smaller; of a number and a NaN, the number."""
    a, b = layer.promoted("self", "other")
    if a.tensor.dtype == "bool":
        op = "logical_or" if layer.op.startswith("fmax") else "logical_and"
        return call(op, a, b)
    found = call("maximum" if layer.op.startswith("fmax") else "minimum", a, b)
    if is_float(a.tensor.dtype):
        found = call("where", call("isnan", b), a, found)
        found = call("where", call("isnan", a), b, found)
    return layer.to_result(found)


@converter("hypot")
def hypot(layer: Layer) -> Result:
    """The length of the vector (self, other), without overflow."""
    a, b = (call("abs", x) for x in layer.promoted("self", "other"))
    dtype = a.tensor.dtype
    most, least = call("maximum", a, b), call("minimum", a, b)
    zero = call("equal", most, scalar(0, dtype))
    ratio = call("divide", least, call("where", zero, scalar(1, dtype), most))
    square = call("add", call("multiply", ratio, ratio), scalar(1, dtype))
    found = call("multiply", most, call("sqrt", square))
    endless = call("logical_or", call("isinf", a), call("isinf", b))
    return layer.to_result(call("where", endless, scalar(math.inf, dtype), found))


@converter("ldexp")
def ldexp(layer: Layer) -> Result:
    """`self * 2 ** other`."""
    wanted = layer.result().dtype
    wide = "f64" if wanted == "f64" else "f32"
    two = call("power", scalar(2, wide), cast(layer.tensor("other"), wide))
    return layer.to_result(call("multiply", cast(layer.tensor(), wide), two))


@converter("nextafter")
def nextafter(layer: Layer) -> Result:
    """The next number in the direction of another: one step of the bits."""
    a, b = layer.promoted("self", "other")
    dtype = a.tensor.dtype
    if dtype not in ("f32", "f64"):
        raise layer.unsupported(f"numbers of {dtype}")
    integer = "i64" if dtype == "f64" else "i32"
    bits = call("bitcast", a, dtype=integer)
    one = scalar(1, integer)
    grows = call("equal", call("less", a, b), call("greater", a, scalar(0, dtype)))
    step = call("where", grows, call("add", bits, one), call("subtract", bits, one))
    moved = call("bitcast", step, dtype=dtype)
    least = scalar(5e-324 if dtype == "f64" else 1e-45, dtype)
    from_zero = call("where", is_negative(b), call("negative", least), least)
    moved = call("where", call("equal", a, scalar(0, dtype)), from_zero, moved)
    found = call("where", call("equal", a, b), b, moved)
    wrong = call("logical_or", call("isnan", a), call("isnan", b))
    return call("where", wrong, scalar(math.nan, dtype), found)


@converter("frexp")
def frexp(layer: Layer) -> Result:
    """The mantissa in [0.5, 1) and the exponent, from the bits. Of zeros, infinities and NaN, they
    are the number itself and 0.
    """
    x = layer.tensor()
    wide = cast(x, "f64" if x.tensor.dtype == "f64" else "f32")
    dtype = wide.tensor.dtype
    integer, digits, bias = ("i64", 52, 1023) if dtype == "f64" else ("i32", 23, 127)

    def constant(value: int) -> Expr:
        return scalar(value, integer)

    # Subnormal numbers are made normal by a power of two.
    least = call("less", call("abs", wide), scalar(2.0 ** (1 - bias), dtype))
    normal = call("where", least, call("multiply", wide, scalar(2.0**digits, dtype)), wide)
    bits = call("bitcast", normal, dtype=integer)
    biased = call("right_shift", bits, constant(digits))
    biased = call("bitwise_and", biased, constant(2 * bias + 1))
    exponent = call("subtract", biased, constant(bias - 1))
    exponent = call("subtract", exponent, call("where", least, constant(digits), constant(0)))
    kept = call("bitwise_and", bits, constant(~((2 * bias + 1) << digits)))
    kept = call("bitwise_or", kept, constant((bias - 1) << digits))
    mantissa = call("bitcast", kept, dtype=dtype)
    odd = call("logical_or", call("equal", wide, scalar(0, dtype)), call("isinf", wide))
    odd = call("logical_or", odd, call("isnan", wide))
    mantissa = call("where", odd, wide, mantissa)
    exponent = call("where", odd, constant(0), exponent)
    return [cast(mantissa, x.tensor.dtype), cast(exponent, "i32")]


@converter("angle")
def angle(layer: Layer) -> Result:
    """Of real numbers: pi if they are negative."""
    (x,) = layer.promoted("self", kind=_FLOATS)
    dtype = x.tensor.dtype
    found = call(
        "where", call("less", x, scalar(0, dtype)), scalar(math.pi, dtype), scalar(0, dtype)
    )
    return layer.to_result(call("where", call("isnan", x), x, found))


@converter("logcumsumexp")
def log_cumulative_sum_exp(layer: Layer) -> Result:
    """Logarithms of running sums of exponentials, each less the largest number so far."""
    x = layer.tensor()
    if x.tensor.rank == 0:
        return x
    axis = layer.axis()
    wide = cast(x, "f64" if x.tensor.dtype == "f64" else "f32")
    dtype, shape = wide.tensor.dtype, wide.tensor.shape
    size = shape[axis]
    top = call("cummax", wide, axis=axis)
    top = call("where", call("isinf", top), scalar(0, dtype), top)
    # A new axis behind the old one counts the numbers that are summed.
    rows = reshaped(top, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    terms = reshaped(wide, (*shape[:axis], 1, *shape[axis:]))
    steps = call("arange", start=0, stop=size, step=1, dtype="i64")
    rest = (1,) * (len(shape) - axis - 1)
    here = call("less_equal", reshaped(steps, (1, size, *rest)), reshaped(steps, (size, 1, *rest)))
    share = call("where", here, call("exp", call("subtract", terms, rows)), scalar(0, dtype))
    total = call("sum", share, axes=(axis + 1,), keepdims=False)
    return layer.to_result(call("add", call("log", total), top))
