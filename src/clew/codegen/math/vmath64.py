"""Functions of `f64` lanes, at most 4 units in the last place off; rare `f32` functions use
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from clew.codegen.lanes import Lanes, at_least, at_most, fma, horner, pick
from clew.codegen.math import polynomials as poly

_LN2_HIGH: Final = float.fromhex("0x1.62e42fefap-1")  # 33 bits: exact times n
_LN2_LOW: Final = float.fromhex("0x1.cf79abc9e3b3ap-40")
_ROUNDER: Final = 1.5 * 2**52
_ROUNDER_BITS: Final = 0x4338 << 48
_ONE_BITS: Final = 0x3FF << 52
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
_FRACTION: Final = (1 << 52) - 1
_LEAST_OF_NORMAL_EXP: Final = -708.0  # of numbers whose exp is a normal one, with some reserve


def _split_exponent(x: Lanes) -> tuple[Lanes, Lanes]:
    """Returns `n` as an integer, and `u`: exp(x) = 2**n * (1 + u), `u` within 0.42 of 0."""
    shifted = fma(x, 1 / math.log(2), _ROUNDER)
    n = shifted - _ROUNDER
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return shifted.bits() - _ROUNDER_BITS, fma(horner(r, poly.EXP_F64), r * r, r)


def _power_of_two(n: Lanes) -> Lanes:
    """Returns 2**n for integers between -1022 and 1023."""
    return ((n << 52) + _ONE_BITS).from_bits()


def _scale(x: Lanes, n: Lanes) -> Lanes:
    """Returns `x * 2**n`, in two steps of which only the second can round."""
    half = n >> 1
    return x * _power_of_two(half) * _power_of_two(n - half)


def _exp_shifted(x: Lanes, shift: int) -> Lanes:
    """Returns `exp(x) * 2**shift` without intermediate overflow."""
    n, u = _split_exponent(at_most(at_least(x, -746.0), 712.0))
    return _scale(u + 1.0, n + shift if shift else n)


def exp(x: Lanes) -> Lanes:
    """Returns e to the power x."""
    return _exp_shifted(x, 0)


def exp_normal(x: Lanes) -> Lanes:
    """Returns e to the power x, or 0 where that is about the least normal number or below."""
    return pick(x < _LEAST_OF_NORMAL_EXP, x.like(0.0), exp(at_least(x, _LEAST_OF_NORMAL_EXP)))


def expm1(x: Lanes) -> Lanes:
    """Returns e to the power x less 1, exact near 0."""
    n, u = _split_exponent(at_most(at_least(x, -40.0), 710.0))
    # 2**(n - 1), because 2**1024 is out of range.
    half = _power_of_two(n - 1)
    near = fma(half, u, half - 0.5) * 2.0
    return pick(x.abs() < 2.0**-60, x, near)


def exp2(x: Lanes) -> Lanes:
    """Returns 2 to the power x."""
    bounded = at_most(at_least(x, -1080.0), 1025.0)
    shifted = bounded + _ROUNDER
    r = bounded - (shifted - _ROUNDER)
    high = float.fromhex("0x1.62e42fefap-1")
    rest = fma(fma(r, horner(r, poly.EXP2_F64), _LN2_LOW), r, r * high)
    return _scale(rest + 1.0, shifted.bits() - _ROUNDER_BITS)


def sigmoid(x: Lanes) -> Lanes:
    """Returns `1 / (1 + exp(-x))`."""
    n, u = _split_exponent(at_most(at_least(-x, -700.0), 746.0))
    far = n > 500
    c = pick(far, x.like(2.0**-500), 1.0)
    power = _power_of_two(n - pick(far, n.like(500), 0))
    total = power + c
    lost = c - (total - power)
    return c / (fma(power, u, lost) + total)


def tanh(x: Lanes) -> Lanes:
    """Returns the hyperbolic tangent, `e / (e + 2)` with `e = expm1(2 |x|)`."""
    e = expm1(at_most(x.abs(), 20.0) * 2.0)
    return (e / (e + 2.0)).intrinsic("llvm.copysign", x)


def _log_parts(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Returns `n`, `f` and `rest`: log(x) = n * ln 2 + (f - rest), for `x` positive and finite."""
    denormal = x < 2.0**-1022
    pattern = pick(denormal, x * 2.0**54, x).bits() - _SQRT_HALF_BITS
    f = ((pattern & _FRACTION) + _SQRT_HALF_BITS).from_bits() - 1.0
    n = (pattern >> 52) - pick(denormal, pattern.like(54), 0)
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    tail = horner(z, poly.LOG_F64) * z
    rest = half_square - s * (half_square + tail)
    return n.convert("sitofp", "f64"), f, rest


def log_special(x: Lanes, result: Lanes) -> Lanes:
    """Replaces results for arguments that are not positive and finite."""
    result = pick(x < math.inf, result, x)
    return pick(x > 0.0, result, pick(x == 0.0, x.like(-math.inf), x - x + math.nan))


def log(x: Lanes) -> Lanes:
    """Returns the natural logarithm."""
    n, f, rest = _log_parts(x)
    return log_special(x, fma(n, _LN2_HIGH, f - (rest - n * _LN2_LOW)))


def log2(x: Lanes) -> Lanes:
    """Returns the base-2 logarithm; exact at powers of 2."""
    n, f, rest = _log_parts(x)
    high = 1 / math.log(2)
    low = 2.0355273740931033e-17  # log2(e) - high
    natural = f - rest
    lost = (f - natural) - rest
    return log_special(x, n + fma(natural, high, fma(natural, low, lost * high)))


def log1p(x: Lanes) -> Lanes:
    """Returns log(1 + x), exact near 0."""
    one_more = x + 1.0
    lost = pick(one_more > 2.0, 1.0 - (one_more - x), x - (one_more - 1.0))
    n, f, rest = _log_parts(one_more)
    rest = rest - n * _LN2_LOW - lost / one_more
    near = log_special(one_more, fma(n, _LN2_HIGH, f - rest))
    return pick(x == 0.0, x, pick(x < math.inf, near, x))


def power_short(x: Lanes, y: Lanes) -> Lanes:
    """Returns x to the power y, as in C's `pow`, with the precision of `f32` (about 2**-40)."""
    size = x.abs()
    result = exp2(y * log2(size))
    whole = y.intrinsic("llvm.trunc") == y
    half = y * 0.5
    odd = whole & (half.intrinsic("llvm.trunc") != half)
    result = pick((x.bits() < 0) & odd, -result, result)
    finite_negative = (x < 0.0) & (size < math.inf)
    result = pick(finite_negative & ~whole & (y.abs() < math.inf), x.like(math.nan), result)
    minus_one = (x == -1.0) & (y.abs() == math.inf)
    return pick((y == 0.0) | (x == 1.0) | minus_one, x.like(1.0), result)


def rsqrt(x: Lanes) -> Lanes:
    """Returns 1 over the square root."""
    return 1.0 / x.intrinsic("llvm.sqrt")


def _signed_as(result: Lanes, x: Lanes) -> Lanes:
    return result.intrinsic("llvm.copysign", x)


def erf(x: Lanes) -> Lanes:
    """Returns the error function: a polynomial near 0, else `1 - exp(-polynomial)`."""
    size = x.abs()
    small = fma(horner(x * x, poly.ERF_SMALL_F64), size, size)
    t = at_most(size, 6.0)
    middle = horner(t - 1.0, poly.ERF_MIDDLE_F64)
    exponent = pick(t < 2.25, middle, horner(t - 2.25, poly.ERF_LARGE_F64))
    return _signed_as(pick(size < 1.0, small, 1.0 - exp(-exponent)), x)


def normal_cdf(x: Lanes) -> Lanes:
    """Returns the standard normal distribution function, within 1.2e-16."""
    return fma(erf(x * math.sqrt(0.5)), 0.5, x.like(0.5))


# ------------------------------------------------------------------------------------- remainders

_INTEGERS: Final = 2.0**52  # smaller quotients are integers after truncation


def fmod(x: Lanes, y: Lanes) -> Lanes:
    """Returns the exact remainder of truncating division, with the sign of `x`, as C's `fmod`."""
    quotient = x / y
    rest = fma(-quotient.intrinsic("llvm.trunc"), y, x)
    # The quotient may have rounded up to the next integer.
    beyond = ((rest < 0.0) & (x > 0.0)) | ((rest > 0.0) & (x < 0.0))
    rest = pick(beyond, rest + y.intrinsic("llvm.copysign", x), rest)
    # An infinite divisor leaves every number unchanged, and has no product with 0.
    near = pick(x.abs() < y.abs(), x, rest.intrinsic("llvm.copysign", x))
    return _unless_far(quotient, _INTEGERS, near, lambda: x.remainder(y))


def _unless_far(size: Lanes, limit: float, near: Lanes, exact: Callable[[], Lanes]) -> Lanes:
    """Returns `near`, or the C library's result where a size is too large for `near` to be
    correct.
    """
    b, lanes = near.b, near.value.lanes
    # Frozen, because unused lanes may be poison.
    far = Lanes(b, b.value(f"freeze {(size.abs() >= limit).value.typed}", "bool", lanes))
    some = far.value
    if lanes > 1:
        mask = b.value(f"bitcast {some.typed} to i{lanes}", f"i{lanes}")
        some = b.value(f"icmp ne i{lanes} {mask.text}, 0", "bool")
    slow, join, before = b.label("far"), b.label("near"), b.block
    b.branch_if(some, slow, join)
    b.start(slow)
    found = pick(far, exact(), near).value
    b.branch(join)
    after = b.block
    b.start(join)
    choice = f"phi {found.type} [ {near.value.text}, %{before} ], [ {found.text}, %{after} ]"
    return Lanes(b, b.value(choice, near.dtype, lanes))


# ------------------------------------------------------------------------------------ trigonometry

# pi / 2 in three parts of 53 bits.
_HALF_PI: Final = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_PI_LOW: Final = 1.2246467991473532e-16
_FAR: Final = 2.0**32


def _quadrant(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Returns `k`, sin(r), cos(r): x = k * pi / 2 + r, |r| up to pi / 4, for |x| below 2**32."""
    shifted = fma(x, 2 / math.pi, _ROUNDER)
    n = shifted - _ROUNDER
    # The first is exact, so the rest is correct even if nearly all of x cancels.
    r = fma(n, -_HALF_PI[2], fma(n, -_HALF_PI[1], fma(n, -_HALF_PI[0], x)))
    z = r * r
    sine = fma(horner(z, poly.SIN_F64) * z, r, r)
    half = z * 0.5
    near = 1.0 - half
    cosine = near + fma(z * z, horner(z, poly.COS_F64), (1.0 - near) - half)
    return shifted.bits(), sine, cosine


def sin(x: Lanes) -> Lanes:
    """Returns the sine."""
    k, sine, cosine = _quadrant(x)
    size = pick((k & 1) != 0, cosine, sine)
    near = pick((k & 2) != 0, -size, size)
    return _unless_far(x, _FAR, pick(x == 0.0, x, near), lambda: x.intrinsic("llvm.sin"))


def cos(x: Lanes) -> Lanes:
    """Returns the cosine."""
    k, sine, cosine = _quadrant(x)
    size = pick((k & 1) != 0, sine, cosine)
    near = pick(((k + 1) & 2) != 0, -size, size)
    return _unless_far(x, _FAR, near, lambda: x.intrinsic("llvm.cos"))


def tan(x: Lanes) -> Lanes:
    """Returns the tangent."""
    k, sine, cosine = _quadrant(x)
    odd = (k & 1) != 0
    near = pick(odd, cosine, sine) / pick(odd, -sine, cosine)
    return _unless_far(x, _FAR, pick(x == 0.0, x, near), lambda: x.intrinsic("llvm.tan"))


def atan(x: Lanes) -> Lanes:
    """Returns the arc tangent, computed from an argument below tan(pi / 8)."""
    size = x.abs()
    large, middle = size > math.sqrt(2) + 1, size > math.sqrt(2) - 1
    above = pick(large, x.like(-1.0), pick(middle, size - 1.0, size))
    below = pick(large, size, pick(middle, size + 1.0, 1.0))
    t = above / below
    z = t * t
    half, quarter = _HALF_PI[:2], (_HALF_PI[0] / 2, _HALF_PI[1] / 2)
    high = pick(large, x.like(half[0]), pick(middle, x.like(quarter[0]), 0.0))
    low = pick(large, x.like(half[1]), pick(middle, x.like(quarter[1]), 0.0))
    return _signed_as(high + (t + fma(t * z, horner(z, poly.ATAN_F64), low)), x)


def _arc_sine(x: Lanes) -> tuple[Lanes, Lanes]:
    """Returns whether |x| exceeds 1/2, and asin(|x|), or in that case half of acos(|x|)."""
    size = x.abs()
    far = size > 0.5
    z = pick(far, 0.5 - size * 0.5, size * size)
    t = pick(far, z.intrinsic("llvm.sqrt"), size)
    return far, fma(t * z, horner(z, poly.ASIN_F64), t)


def asin(x: Lanes) -> Lanes:
    """Returns the arc sine."""
    far, arc = _arc_sine(x)
    return _signed_as(pick(far, _HALF_PI[0] - (arc * 2.0 - _HALF_PI[1]), arc), x)


def acos(x: Lanes) -> Lanes:
    """Returns the arc cosine."""
    far, arc = _arc_sine(x)
    negative = x < 0.0
    outer = pick(negative, math.pi - (arc * 2.0 - _PI_LOW), arc * 2.0)
    return pick(far, outer, _HALF_PI[0] - (_signed_as(arc, x) - _HALF_PI[1]))


# -------------------------------------------------------------------------------------- hyperbolas


def sinh(x: Lanes) -> Lanes:
    """Returns the hyperbolic sine."""
    size = x.abs()
    e = expm1(at_most(size, 30.0))
    near = (e + e / (e + 1.0)) * 0.5
    return _signed_as(pick(size < 22.0, near, _exp_shifted(size, -1)), x)


def cosh(x: Lanes) -> Lanes:
    """Returns the hyperbolic cosine."""
    half = _exp_shifted(x.abs(), -1)
    return half + 0.25 / half


_HUGE: Final = 2.0**60  # too large for 1 to affect any digit


def asinh(x: Lanes) -> Lanes:
    """Returns the inverse hyperbolic sine."""
    size = x.abs()
    huge = size > _HUGE
    square = size * size
    near = size + square / ((square + 1.0).intrinsic("llvm.sqrt") + 1.0)
    extra = pick(huge, x.like(math.log(2)), 0.0)
    return _signed_as(log1p(pick(huge, size, near)) + extra, x)


def acosh(x: Lanes) -> Lanes:
    """Returns the inverse hyperbolic cosine."""
    huge = x > _HUGE
    t = x - 1.0
    near = t + (t * (t + 2.0)).intrinsic("llvm.sqrt")
    extra = pick(huge, x.like(math.log(2)), 0.0)
    return pick(x < 1.0, x.like(math.nan), log1p(pick(huge, x, near)) + extra)


def atanh(x: Lanes) -> Lanes:
    """Returns the inverse hyperbolic tangent."""
    size = x.abs()
    return _signed_as(log1p(size * 2.0 / (1.0 - size)) * 0.5, x)


FUNCTIONS: Final[dict[str, Callable[..., Lanes]]] = {
    f.__name__: f
    for f in (
        exp, exp_normal, expm1, exp2, sigmoid, tanh, log, log2, log1p, rsqrt, erf, normal_cdf,
        sin, cos, tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh, fmod,
    )
}  # fmt: skip
