"""Sums of two 8-bit codes in one multiplication each.

LiteRT scales both codes to a common unit, adds them, and scales the sum, with three roundings in 64
bits. There are 65,536 pairs of codes, so whether a linear form in 32 bits rounds all of them to the
same codes is decided by trying.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.frontends.building import call, cast, scalar
from clew.frontends.tflite.converters.quantized.codes import SUM, scale_of, zero_of
from clew.frontends.tflite.converters.quantized.tables import fixed
from clew.frontends.tflite.file.model import TensorInfo
from clew.ir.expr import Expr
from clew.ir.types import integer_limits

Codes = NDArray[np.int64]
_AROUND: Final = 3
"""By how much factors may differ from the nearest integers."""
_STATES: Final = 256


class Linear(NamedTuple):
    """`(first * a + second * b + offset) >> shift`, which fits in 32 bits for all codes."""

    first: int
    second: int
    offset: int
    shift: int

    def of(self, a: Expr, b: Expr) -> Expr:
        """Returns the form of codes."""
        parts = [
            call("multiply", cast(each, SUM), scalar(factor, SUM))
            for each, factor in ((a, self.first), (b, self.second))
        ]
        total = call("add", call("add", *parts), scalar(self.offset, SUM))
        return call("right_shift", total, scalar(self.shift, SUM))


def linear_sum(
    a: TensorInfo, b: TensorInfo, out: TensorInfo, between: tuple[int, int], left: int, sign: int
) -> Linear | None:
    """Returns the linear form of a sum, or of a difference if `sign` is -1, that rounds all pairs
    of codes to those of LiteRT's reference kernel. `left` is by how many bits that shifts codes.
    None if there is none, or if a tensor has no 8-bit codes.
    """
    if not a.dtype == b.dtype == out.dtype or out.dtype not in ("i8", "u8"):
        return None
    low, high = integer_limits(out.dtype)
    codes = np.arange(low, high + 1, dtype=np.int64)
    scales = [np.float64(scale_of(each)) for each in (a, b, out)]
    most = 2 * max(scales[:2])
    x, y = (
        fixed((codes - zero_of(each)) << left, scale / most)
        for each, scale in zip((a, b), scales, strict=False)
    )
    total = fixed(x[:, None] + sign * y, most / (2.0**left * scales[2])) + zero_of(out)
    return fitted(codes, np.clip(total, *between), scales[0] / scales[2], sign * scales[1] / scales[2])


def fitted(codes: Codes, wanted: Codes, first: float, second: float) -> Linear | None:
    """Returns the form with factors close to `first` and `second` of a step that maps all pairs of
    codes to the wanted ones `[first, second]`, which are saturated at their extremes.
    """
    # The sum of magnitudes, with the wanted code and half a step, stays below 2**31.
    size = float(_STATES * (abs(first) + abs(second) + 2))
    shift = 30 - int(np.frexp(size)[1])
    if not 0 < shift < 31 or not np.isfinite(size):
        return None
    near = [int(np.rint(each * 2.0**shift)) for each in (first, second)]
    value = near[0] * codes[:, None] + near[1] * codes
    least, above = (wanted << shift) - value, ((wanted + 1) << shift) - value
    # Of the conditions `least <= offset < above`, those that other factors may make decisive.
    spread = 4 * _AROUND * _STATES
    lower, upper = wanted > wanted.min(), wanted < wanted.max()
    lower &= least >= np.max(least, where=lower, initial=-(1 << 40)) - spread
    upper &= above <= np.min(above, where=upper, initial=1 << 40) + spread
    if not lower.any() or not upper.any():
        return None
    below, over = least[lower], above[upper]
    (a, b), (x, y) = ((codes[n] for n in np.nonzero(kept)) for kept in (lower, upper))
    steps = sorted(itertools.product(range(-_AROUND, _AROUND + 1), repeat=2), key=_size)
    for more in steps:
        down = int((below - more[0] * a - more[1] * b).max())
        up = int((over - more[0] * x - more[1] * y).min())
        if down < up:
            return Linear(near[0] + more[0], near[1] + more[1], (down + up) // 2, shift)
    return None


def _size(steps: tuple[int, int]) -> int:
    return abs(steps[0]) + abs(steps[1])
