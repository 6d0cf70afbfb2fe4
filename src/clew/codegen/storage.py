"""Storage-only numbers: 8-, 6- and 4-bit floats, 4- and 2-bit integers.

In memory and in registers, such a number is a byte with its code in the low bits. For arithmetic,
it is converted exactly to `f32`, `i8` or `u8`; the conversion back rounds to nearest even. Both use
integer arithmetic on whole vectors, without branches or tables. Formats: ONNX's Cast, the OCP's
8-bit and microscaling formats, and `ml_dtypes` where these leave something open.
"""

from __future__ import annotations

from typing import Final

from clew.codegen.lanes import Lanes, pick
from clew.ir.types import bits, is_float
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Format:
    """A float of few bits: sign, `exponent` and `mantissa` bits, and codes for special values.

    `largest` is the code of the largest number, `over` the code for larger ones; both without the
    sign. `nan` is the code for NaN. `unsigned_zero`: whether the code of the negative zero is
    NaN's.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    over: int
    nan: int
    unsigned_zero: bool = False

    @property
    def sign_at(self) -> int:
        """The position of the sign bit."""
        return self.exponent + self.mantissa


FORMATS: Final = {
    "f8e4m3fn": Format(4, 3, 7, largest=0x7E, over=0x7F, nan=0x7F),
    "f8e5m2": Format(5, 2, 15, largest=0x7B, over=0x7C, nan=0x7E),
    "f8e4m3fnuz": Format(4, 3, 8, largest=0x7F, over=0x80, nan=0x80, unsigned_zero=True),
    "f8e5m2fnuz": Format(5, 2, 16, largest=0x7F, over=0x80, nan=0x80, unsigned_zero=True),
    # Without infinities and NaN: NaN becomes a zero of the other sign, as in ml_dtypes.
    "f6e2m3fn": Format(2, 3, 1, largest=0x1F, over=0x1F, nan=0),
    "f6e3m2fn": Format(3, 2, 3, largest=0x1F, over=0x1F, nan=0),
    "f4e2m1fn": Format(2, 1, 1, largest=0x7, over=0x7, nan=0),
}
_EXPONENTS: Final = "f8e8m0fnu"
_NAN: Final = 0x7FC00000


def decoded(x: Lanes) -> Lanes:
    """Returns stored numbers as `f32`, `i8` or `u8`, exactly; bits above a code are ignored."""
    width = bits(x.dtype)
    if not is_float(x.dtype):
        if x.dtype[0] == "u":
            return x.retyped("u8") & ((1 << width) - 1)
        return (x.retyped("i8") << (8 - width)) >> (8 - width)
    code = x.retyped("u8").convert("zext", "u32")
    if x.dtype == _EXPONENTS:
        number = pick(code == 0, code.like(0x00400000), code << 23)
        return _float(pick(code == 0xFF, code.like(_NAN), number))
    form = FORMATS[x.dtype]
    if x.dtype == "f8e5m2":  # the upper half of an f16
        half = (code << 8).convert("trunc", "u16").convert("bitcast", "f16")
        return half.convert("fpext", "f32")
    magnitude = code & ((1 << form.sign_at) - 1)
    smallest = (128 - form.bias) << 23  # of normal numbers, in the bits of f32
    shifted = magnitude << (23 - form.mantissa)
    normal = shifted + ((127 - form.bias) << 23)
    # Subnormal numbers: decoded with a leading one, which is then subtracted.
    small = _bits(_float(shifted + smallest) - 2.0 ** (1 - form.bias))
    number = pick(magnitude < (1 << form.mantissa), small, normal)
    number = number | ((code >> form.sign_at) << 31)
    if form.unsigned_zero:
        number = pick(code == form.nan, code.like(_NAN), number)
    elif form.over != form.largest:
        number = pick(magnitude == form.nan, number | _NAN, number)
    return _float(number)


def encoded(x: Lanes, dtype: str) -> Lanes:
    """Returns numbers in stored form. `f32` is rounded to nearest even, and beyond the largest
    number becomes the value that the format defines (infinity, NaN, or the largest); integers are
    truncated to their lowest bits.
    """
    if not is_float(dtype):
        low = x if bits(x.dtype) == 8 else x.convert("trunc", "u8")
        return (low.retyped("u8") & ((1 << bits(dtype)) - 1)).retyped(dtype)
    form = FORMATS[dtype]
    pattern = _bits(x)
    magnitude = pattern & 0x7FFFFFFF
    drop = 23 - form.mantissa
    odd = (magnitude >> drop) & 1
    rounded = (magnitude + odd + ((1 << (drop - 1)) - 1)) >> drop
    normal = rounded - ((127 - form.bias) << form.mantissa)
    # Subnormals: an addition in which the last bit has the weight of the format's last bit.
    rounder = 2.0 ** (1 - form.bias + drop)
    small = _bits(_float(magnitude) + rounder) - ((150 - form.bias - form.mantissa + 1) << 23)
    code = pick(magnitude < (128 - form.bias) << 23, small, normal)
    is_nan = magnitude > 0x7F800000
    sign = (pattern >> 31) << form.sign_at
    over = code > form.largest
    if form.unsigned_zero:
        # NaN is code 0x80: a sign with zero magnitude
        signed = pick(code == 0, code, code | sign)
        return _code(pick(over, code.like(form.nan), signed), dtype)
    code = pick(over, code.like(form.over), code)
    if form.over == form.largest:
        signed = pick(is_nan, sign ^ (1 << form.sign_at), code | sign)
        return _code(signed, dtype)
    if form.over != form.nan:
        code = pick(is_nan, code.like(form.nan), code)
    return _code(code | sign, dtype)


def _float(pattern: Lanes) -> Lanes:
    return pattern.convert("bitcast", "f32")


def _bits(x: Lanes) -> Lanes:
    return x.convert("bitcast", "u32")


def _code(pattern: Lanes, dtype: str) -> Lanes:
    return pattern.convert("trunc", "u8").retyped(dtype)
