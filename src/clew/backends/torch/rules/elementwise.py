"""Elementwise arithmetic and comparisons of two inputs."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from clew.backends.torch.registry import Building, Step, builds
from clew.ir.types import is_float

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
