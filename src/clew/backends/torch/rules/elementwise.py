"""Elementwise arithmetic and comparisons of two inputs."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.tensors import DTYPES
from clew.ir.types import NARROW_FLOATS, bits, integer_limits, is_float, is_integer

_DIV: Final[Step] = torch.div
_FMOD: Final[Step] = torch.fmod
_REMAINDER: Final[Step] = torch.remainder
_POW: Final[Step] = torch.pow
# The largest exponent whose integer power clew computes as it is.
_MOST_EXPONENT: Final = 63


def _is_safe(b: Building) -> bool:
    """Whether an integer divisor is known to be neither 0 nor -1, for which torch fails."""
    known = b.known(1)
    return known is not None and not np.isin(known, [0, -1]).any()


def _trapping(divisor: torch.Tensor) -> torch.Tensor:
    """Returns where torch fails to divide by an integer."""
    zero = divisor == 0
    return zero if divisor.dtype == torch.uint8 else zero | (divisor == -1)


@builds("divide")
def divide(b: Building) -> Step:
    """`div`, truncating for integers. The quotient by 0 is the dividend, that by -1 its negation,
    also of the least integer.
    """
    if is_float(b.type.dtype):
        return _DIV

    def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.div(x, y, rounding_mode="trunc")

    def guarded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        quotient = plain(x, torch.where(_trapping(y), 1, y))
        return quotient if y.dtype == torch.uint8 else torch.where(y == -1, -x, quotient)

    return plain if _is_safe(b) else guarded


@builds("mod")
def mod(b: Building) -> Step:
    """`fmod`; the remainder of integers by 0 and -1 is 0."""
    if is_float(b.type.dtype) or _is_safe(b):
        return _FMOD
    return lambda x, y: torch.fmod(x, torch.where(_trapping(y), 1, y))


@builds("floor_mod")
def floor_mod(b: Building) -> Step:
    """`remainder`; that of integers by 0 and -1 is 0."""
    if is_float(b.type.dtype) or _is_safe(b):
        return _REMAINDER
    return lambda x, y: torch.remainder(x, torch.where(_trapping(y), 1, y))


@builds("power")
def power(b: Building) -> Step:
    """`pow`. Integer powers wrap as clew's do for known exponents that are not large."""
    if is_float(b.type.dtype):
        return _POW
    known = b.known(1)
    if known is None or known.max(initial=0) > _MOST_EXPONENT:
        b.refuse(f"exponents of integers may be larger than {_MOST_EXPONENT}")
    return _POW


@builds("isinf")
def isinf(b: Building) -> Step:
    """`isinf`, `isposinf` or `isneginf`."""
    signs = (b.attrs.positive, b.attrs.negative)
    if not any(signs):
        return lambda x: torch.zeros_like(x, dtype=torch.bool)
    found: Step = torch.isinf if all(signs) else torch.isposinf if signs[0] else torch.isneginf
    return found


@builds("sign")
def sign(b: Building) -> Step:
    """`sign`, except for NaN, which stays NaN."""
    if not is_float(b.type.dtype):
        return lambda x: torch.sign(x)
    return lambda x: torch.where(torch.isnan(x), x, torch.sign(x))


@builds("cast")
def cast(b: Building) -> Step:
    """`to`. Floats become short integers by way of `i32`, as on x86."""
    source, target = b.types[0].dtype, b.type.dtype
    dtype = DTYPES[target]
    if source == "f64" and target in NARROW_FLOATS:
        b.refuse(f"torch rounds f64 to f32 on the way to {target}")
    if is_float(source) and is_integer(target) and bits(target) < bits("i32"):
        return lambda x: x.to(torch.int32).to(dtype)
    return lambda x: x.to(dtype)


@builds("bitcast")
def bitcast(b: Building) -> Step:
    """`view`."""
    if "bool" in (b.types[0].dtype, b.type.dtype) and b.types[0].dtype != b.type.dtype:
        b.refuse("any nonzero bits are true")
    dtype = b.dtype
    return lambda x: x.view(dtype)


@builds("clip")
def clip(b: Building) -> Step:
    """`clamp`; limits of integers are truncated."""
    dtype, limits = b.type.dtype, []
    for value in (b.attrs.min, b.attrs.max):
        if value is not None and not is_float(dtype):
            low, high = integer_limits(dtype)
            if not math.isfinite(value) or not low <= int(value) <= high:
                b.refuse(f"a limit of {value} is out of the range of {dtype}")
            value = int(value)
        limits.append(value)
    low, high = limits
    if low is None and high is None:
        return lambda x: x
    return lambda x: torch.clamp(x, low, high)


_SIXTH: Final = 0.1666666716337204
"""1/6 as f32, as in `nn.hard_swish`."""


@builds("nn.prelu")
def prelu(b: Building) -> Step:
    """A selection: `prelu` of torch has a slope for each channel."""
    return lambda x, slope: torch.where(x < 0, x * slope, x)


@builds("nn.selu")
def selu(b: Building) -> Step:
    """`elu` with a scale: `selu` of torch has fixed constants."""
    alpha, gamma = b.attrs.alpha, b.attrs.gamma
    return lambda x: torch.ops.aten.elu(x, alpha, gamma, 1.0)


@builds("nn.celu")
def celu(b: Building) -> Step:
    """`elu` with a scale of the input."""
    alpha = b.attrs.alpha
    if not alpha:
        b.refuse("alpha is 0")
    return lambda x: torch.ops.aten.elu(x, alpha, 1.0, 1 / alpha)


@builds("nn.swish")
def swish(b: Building) -> Step:
    """`x * sigmoid(alpha * x)`."""
    alpha = b.attrs.alpha
    return lambda x: x * torch.sigmoid(x * alpha)


@builds("nn.softplus")
def softplus(b: Building) -> Step:
    """`softplus`, which is `x` from 20 on; for f64, the formula."""
    if b.type.dtype != "f64":
        return functional.softplus
    return lambda x: torch.clamp(x, 0) + torch.log1p(torch.exp(-torch.abs(x)))


@builds("nn.hard_sigmoid")
def hard_sigmoid(b: Building) -> Step:
    """The formula: `hardsigmoid` of torch has fixed constants."""
    alpha, beta = b.attrs.alpha, b.attrs.beta
    return lambda x: torch.clamp(x * alpha + beta, 0, 1)


@builds("nn.hard_swish")
def hard_swish(b: Building) -> Step:
    """`hardswish`; for f64, the formula with clew's constant."""
    if b.type.dtype != "f64":
        return functional.hardswish
    return lambda x: x * torch.clamp(x * _SIXTH + 0.5, 0, 1)


@builds("nn.thresholded_relu")
def thresholded_relu(b: Building) -> Step:
    """A selection: `threshold` of torch keeps NaN."""
    alpha = b.attrs.alpha
    return lambda x: torch.where(x > alpha, x, torch.zeros_like(x))


@builds("nn.shrink")
def shrink(b: Building) -> Step:
    """Selections, of integers as real numbers."""
    dtype, lambd, bias = b.type.dtype, b.attrs.lambd, b.attrs.bias
    wide = b.dtype
    if is_integer(dtype):
        wide = torch.float64 if bits(dtype) > 16 else torch.float32
        if dtype == "i64":
            b.refuse("f64 does not hold all i64")

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.to(wide)
        rest = torch.where(x > lambd, x - bias, torch.zeros_like(x))
        return torch.where(x < -lambd, x + bias, rest)

    if not is_integer(dtype):
        return step
    narrow = b.dtype
    return lambda x: step(x).to(torch.int32).to(narrow)
