"""Functions of floats as instructions: our own polynomials, with equal results on one lane and
many.

Frequently used `f32` functions are computed in `f32` (at most 2 units in the last place off, and
the normal distribution function within 2e-7); the rest use `f64`, and `f16` and `bf16` use `f32`.
All functions are valid over the whole range: denormals, infinities, NaN, signed zeros, huge
arguments.

No target-specific instructions and no fast-math: the text has one meaning on all targets. Only
`fma` is assumed to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from clew.codegen.builder import Builder, Value
from clew.codegen.lanes import (
    Lanes,
    at_least,
    at_most,
    check_dtype,
    fma,
    horner,
    in_halves,
    literal,
    literal_of,
    narrow,
    pick,
    widen,
)
from clew.codegen.math import polynomials as poly
from clew.codegen.math import vmath64
from clew.ir.types import bits, is_float
from clew.machine.instructions import rounds_by_call
from clew.te.expr import INTRINSICS

# ln 2 in two parts: products of the first with small integers are exact.
_LN2_HIGH: Final = 0.693359375
_LN2_LOW: Final = math.log(2) - _LN2_HIGH
# Adding it to a float rounds the float to an integer in the low bits.
_ROUNDER: Final = 1.5 * 2**23
_MANTISSA_BITS: Final = 23
_BIAS: Final = 127
_BYTE_BITS: Final = 8
MOST_LANES: Final = 16
ROUND_AS_USUAL: Final = 4
_SQRT_HALF_BITS: Final = 0x3F3504F3
_ONE_BITS: Final = 0x3F800000
# exp(x) for x = r from -ln(2)/2 to ln(2)/2
_LEAST_EXPONENT: Final = -151  # powers of two below are 0, as is this one


def intrinsic(b: Builder, name: str, args: Sequence[Value]) -> Value:
    """Returns a function in `te.expr.INTRINSICS` of floats; `isnan` and `isinf` give `bool`.

    Errors: C010.
    """
    assert name in INTRINSICS, name
    check_dtype(args[0].dtype)
    assert is_float(args[0].dtype), f"{name} of {args}"
    assert len({a[1:] for a in args}) == 1, f"{name} of {args}"
    lanes = [Lanes(b, a) for a in args]
    wide = [widen(x) for x in lanes]
    if name == "isnan":
        return wide[0].is_nan().value
    if name == "isinf":
        return (wide[0].abs() == math.inf).value
    return narrow(_apply(name, wide), args[0].dtype).value


def _apply(name: str, args: Sequence[Lanes]) -> Lanes:
    """Returns a function of `f32` or `f64` lanes."""
    direct = _LLVM.get(name)
    if direct is not None:
        if name == "round" and rounds_by_call(args[0].b.module.triple):
            direct = "llvm.rint"
        return args[0].intrinsic(direct, *args[1:])
    if args[0].dtype == "f64":
        return vmath64.FUNCTIONS[name](*args)
    own = _F32.get(name)
    if own is not None:
        return own(*args)
    exact = vmath64.FUNCTIONS[name](*(x.convert("fpext", "f64") for x in args))
    return exact.convert("fptrunc", "f32")


def _reduce(x: Lanes, offset: int = 0) -> tuple[Lanes, Lanes, Lanes]:
    """Returns `n`, the power 2**(n + offset), and `r`: x = n * ln 2 + r.

    |x| is below 2**20; `r` is within 0.35 of 0. NaN gives a NaN `r`.
    """
    rounder = _ROUNDER + _BIAS + offset
    shifted = fma(x, 1 / math.log(2), rounder)
    n = shifted - rounder
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return n, _power_of_two(shifted), r


def _power_of_two(shifted: Lanes) -> Lanes:
    """Returns 2**n for `n` (plus the bias, in the low bits) between -126 and 127."""
    return (shifted.bits() << _MANTISSA_BITS).from_bits()


def _exp_less_one(r: Lanes) -> Lanes:
    """Returns `exp(r) - 1` for `r` within 0.35 of 0."""
    return fma(horner(r, poly.EXP_F32), r * r, r)


def _scale_in_two_steps(x: Lanes, half: Lanes) -> Lanes:
    """Returns `x * 2**n`, given 2**(n - 1), for `n` between -151 and 128.

    Two products, because 2**n itself may be out of range; only the second can round. Its factor is
    2, or less where the result may be denormal, and 0 for the least `n`: a product that rounds to 0
    is many times slower on processors than a product with 0.
    """
    exponent = half.bits()
    first = at_least(exponent, (_BIAS * 2 + _LEAST_EXPONENT) << _MANTISSA_BITS)
    second = exponent - first + ((_BIAS + 1) << _MANTISSA_BITS)
    return x * first.from_bits() * second.from_bits()


def _scale(x: Lanes, n: Lanes, half: Lanes) -> Lanes:
    """Returns `x * 2**n`, rounded once, for `n` between -151 (which gives 0) and 128. `half` is
    2**(n - 1).
    """
    lanes = x.value.lanes
    instructions = x.b.module.instructions
    if lanes > MOST_LANES and instructions.scale(MOST_LANES):
        return in_halves(_scale, (x, n, half))
    function = instructions.scale(lanes)
    if not function:
        return _scale_in_two_steps(x, half)
    kept = ~(n <= _LEAST_EXPONENT)
    mask, b = kept.value, x.b
    if lanes < _BYTE_BITS:
        zeros = literal(False, "bool", lanes)
        order = ", ".join(f"i32 {n}" for n in range(_BYTE_BITS))
        text = f"shufflevector {mask.typed}, {zeros.typed}, <{_BYTE_BITS} x i32> <{order}>"
        mask = b.value(text, "bool", _BYTE_BITS)
    bits_ = b.value(f"bitcast {mask.typed} to i{mask.lanes}", f"u{mask.lanes}")
    args = [x.value, n.value, x.like(0.0).value, bits_]
    if lanes == MOST_LANES:
        args.append(literal(ROUND_AS_USUAL, "i32"))
    return Lanes(b, b.call(function, args, "f32", lanes))


def _exp(x: Lanes) -> Lanes:
    n, half, r = _reduce(at_most(at_least(x, _LEAST_EXPONENT * math.log(2)), 89.0), -1)
    return _scale(horner(r, (1.0, 1.0, *poly.EXP_F32)), n, half)


def _exp_normal(x: Lanes) -> Lanes:
    """Returns `exp(x)`, or 0 from the square root of 2 times the least normal number down.

    The power of two is half of what it should be, since 2**128 is out of range, and the polynomial
    has twice its value. The bits of the least power are those of 0.
    """
    least = (1 - _BIAS) * math.log(2)
    _, half, r = _reduce(at_most(at_least(x, least), 89.0), -1)
    return horner(r, [2 * c for c in (1.0, 1.0, *poly.EXP_F32)]) * half


def _exp2(x: Lanes) -> Lanes:
    bounded = at_most(at_least(x, float(_LEAST_EXPONENT)), 128.0)
    rounder = _ROUNDER + _BIAS - 1
    shifted = bounded + rounder
    n = shifted - rounder
    r = bounded - n
    # ln 2 in two parts: the low one is added to the rest of the sum.
    high = float.fromhex("0x1.62e4p-1")
    rest = fma(fma(r, horner(r, poly.EXP2_F32), math.log(2) - high), r, r * high)
    return _scale(rest + 1.0, n, _power_of_two(shifted))


def _expm1(x: Lanes) -> Lanes:
    # Halves, because 2**128 is out of range.
    _, half, r = _reduce(at_most(at_least(x, -20.0), 89.0), -1)
    near = fma(half, _exp_less_one(r), half - 0.5) * 2.0
    return pick(x.abs() < 2.0**-30, x, near)


def _sigmoid(x: Lanes) -> Lanes:
    """Computes `c / (c + c * exp(-x))`, where `c` keeps the sum in range for denormal results."""
    scale = -24
    _, power, r = _reduce(-at_most(at_least(x, _LEAST_EXPONENT * math.log(2)), 40.0), scale)
    c = 2.0**scale
    total = power + c
    lost = c - (total - power)  # so that the sum is rounded only once
    return c / (fma(power, _exp_less_one(r), lost) + total)


def _tanh(x: Lanes) -> Lanes:
    """Uses a polynomial near 0, else `1 - 2 / (1 + exp(2 |x|))`."""
    size = x.abs()
    z = x * x
    small = fma(horner(z, poly.TANH_F32) * z, size, size)
    _, power, r = _reduce(at_most(size, 9.5) * 2.0)
    large = 1.0 - 2.0 / fma(power, horner(r, (1.0, 1.0, *poly.EXP_F32)), 1.0)
    return pick(size < 0.625, small, large).intrinsic("llvm.copysign", x)


def _erf(x: Lanes) -> Lanes:
    """Uses a polynomial near 0, else `1 - exp(-t * (1 + polynomial))`."""
    size = x.abs()
    small = fma(horner(x * x, poly.ERF_SMALL_F32), size, size)
    t = at_most(size, 4.0)
    _, power, r = _reduce(-fma(horner(t, poly.ERF_LARGE_F32), t, t))
    large = fma(-power, horner(r, (1.0, 1.0, *poly.EXP_F32)), 1.0)
    return pick(size < 0.9375, small, large).intrinsic("llvm.copysign", x)


# The normal distribution function as `1/2 + x * p(x**2) / q(x**2)`, fitted by `tools/fit_gelu.py`.
# At the bound, the quotient is exactly 1/2.
_NORMAL_BOUND: Final = 5.5
_NORMAL_P: Final = (
    0.3989422619342804,
    0.03392905741930008,
    0.004677352495491505,
    0.00016892956045921892,
    6.289781140367268e-06,
    2.229740658776791e-08,
)
_NORMAL_Q: Final = (
    1.0,
    0.2517138719558716,
    0.028677573427557945,
    0.0018854937516152859,
    7.33443011995405e-05,
    1.179657033389958e-06,
)


def _normal_cdf(x: Lanes) -> Lanes:
    """Is within 2e-7. A GELU needs no more, and takes half as many instructions as with `erf`. The
    two polynomials can overlap.
    """
    near = at_most(at_least(x, -_NORMAL_BOUND), _NORMAL_BOUND)
    z = near * near
    return near * horner(z, _NORMAL_P) / horner(z, _NORMAL_Q) + 0.5


def _log(x: Lanes) -> Lanes:
    """Computes `n * ln 2 + log(1 + f)` with `1 + f` between the square roots of 1/2 and 2."""
    denormal = x < 2.0**-126
    pattern = pick(denormal, x * 2.0**23, x).bits() - _SQRT_HALF_BITS
    n = (pattern >> 23).convert("sitofp", "f32") - pick(denormal, x.like(23.0), 0.0)
    return vmath64.log_special(x, _log_sum(n, _mantissa_above_one(pattern)))


def _mantissa_above_one(pattern: Lanes) -> Lanes:
    return ((pattern & 0x7FFFFF) + _SQRT_HALF_BITS).from_bits() - 1.0


def _log_sum(n: Lanes, f: Lanes) -> Lanes:
    """Returns `n * ln 2 + log(1 + f)`."""
    square = f * f
    low = fma(n, _LN2_LOW, horner(f, poly.LOG_F32) * f * square)
    return fma(n, _LN2_HIGH, f + fma(square, -0.5, low))


def _log1p(x: Lanes) -> Lanes:
    """`log` of 1 + x; the rounding error of the sum, in units of its power of two, is added to
    `f`.
    """
    one_more = x + 1.0
    lost = pick(x > 1.0, 1.0 - (one_more - x), x - (one_more - 1.0))
    pattern = one_more.bits() - _SQRT_HALF_BITS
    n = pattern >> 23
    inverse_power = (pattern.like(_ONE_BITS) - (n << 23)).from_bits()
    f = _mantissa_above_one(pattern)
    f = pick(x < 2.0**25, f + lost * inverse_power, f)
    near = _log_sum(n.convert("sitofp", "f32"), f)
    return pick(x == 0.0, x, vmath64.log_special(one_more, near))


def _rsqrt(x: Lanes) -> Lanes:
    return 1.0 / x.intrinsic("llvm.sqrt")


_LLVM: Final = {
    "sqrt": "llvm.sqrt", "floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc",
    "round": "llvm.roundeven", "fma": "llvm.fma", "copysign": "llvm.copysign",
}  # fmt: skip
_F32: Final[dict[str, Callable[..., Lanes]]] = {
    "exp": _exp,
    "exp2": _exp2,
    "exp_normal": _exp_normal,
    "expm1": _expm1,
    "log": _log,
    "log1p": _log1p,
    "tanh": _tanh,
    "erf": _erf,
    "normal_cdf": _normal_cdf,
    "sigmoid": _sigmoid,
    "rsqrt": _rsqrt,
}

# ------------------------------------------------------------------------------------------ powers


def power(x: Lanes, y: Lanes) -> Lanes:
    """Returns `x` to the power `y` of `f32` or `f64`, as in C's `pow`."""
    number = literal_of(y.value)
    if number in (0.25, 0.5, 0.75, -0.5):
        positive = x + 0.0  # -0 becomes 0
        root = positive.intrinsic("llvm.sqrt")
        if number == 0.25:
            root = root.intrinsic("llvm.sqrt")
        if number == 0.75:
            root = _three_quarters(positive)
        root = pick(x == -math.inf, x.like(math.inf), root)
        return 1.0 / root if number == -0.5 else root
    if number is not None and abs(number) <= 32 and number == int(number):
        return _literal_power(x, int(number))
    if x.dtype == "f64":
        return x.intrinsic("llvm.pow", y)
    wide = vmath64.power_short(x.convert("fpext", "f64"), y.convert("fpext", "f64"))
    return wide.convert("fptrunc", "f32")


def _three_quarters(x: Lanes) -> Lanes:
    """Computes `sqrt(x * sqrt(x))`, scaled by a power of two that keeps the product in range."""
    down, up = (-64, 80) if x.dtype == "f32" else (-512, 640)
    large = x > 1.0
    scaled = x * pick(large, x.like(2.0**down), 2.0**up)
    product = scaled * scaled.intrinsic("llvm.sqrt")
    back = pick(large, x.like(2.0 ** (-down * 3 // 4)), 2.0 ** (-up * 3 // 4))
    return product.intrinsic("llvm.sqrt") * back


def _literal_power(x: Lanes, exponent: int) -> Lanes:
    """Multiplies, in `f64` if the result would be more than one unit off in `f32`."""
    if exponent == 0:
        return x.like(1.0)
    if x.dtype == "f64" and not -1 <= exponent <= 4:
        return x.intrinsic("llvm.pow", x.like(float(exponent)))
    wide = x.dtype == "f32" and not -1 <= exponent <= 4
    square = x.convert("fpext", "f64") if wide else x
    result: Lanes | None = None
    left = abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else result * square
        left >>= 1
        if left:
            square = square * square
    assert result is not None
    if exponent < 0:
        result = 1.0 / result
    return result.convert("fptrunc", "f32") if wide else result


def integer_power(x: Lanes, y: Lanes) -> Lanes:
    """Returns integer powers, wrapping; a negative exponent truncates to 0."""
    signed = x.dtype[0] == "i"
    number = literal_of(y.value)
    steps = bits(x.dtype) - signed if number is None else max(1, abs(int(number)).bit_length())
    exponent = pick(y < 0, -y, y) if signed else y
    result, square = x.like(1), x
    for step in range(steps):
        odd = (exponent & (1 << step)) != 0
        result = pick(odd, result * square, result)
        if step + 1 < steps:
            square = square * square
    if not signed:
        return result
    unit = (x == 1) | (x == -1)
    return pick((y < 0) & ~unit, x.like(0), result)
