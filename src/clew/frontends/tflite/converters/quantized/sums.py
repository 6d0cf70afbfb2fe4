"""Sums of two 8-bit codes in one multiplication each.

LiteRT scales both codes to a common unit, adds them, and scales the sum, with three roundings in 64
bits. There are only 65,536 pairs of codes, so trying all of them decides whether a linear form in
32 bits gives the same results.
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
"""How far factors may be from the nearest integers."""
_STATES: Final = 256
_SIGN: Final = 31
_SLACK: Final = 1.001  # for factors that are not the nearest ones
_FAR: Final = 1 << 40


class Linear(NamedTuple):
    """`(total + offset) >> shift` with `total = first * (a - zeros[0]) + second * (b - zeros[1])`,
    less `below` where the total is negative. All of it fits in 32 bits for all codes.
    """

    first: int
    second: int
    offset: int
    shift: int
    below: int = 0
    zeros: tuple[int, int] = (0, 0)

    def of(self, a: Expr, b: Expr) -> Expr:
        """Returns the form of codes. The zero points of a form with one offset are part of it."""
        first, second = (
            call("multiply", cast(each, SUM), scalar(factor, SUM))
            for each, factor in ((a, self.first), (b, self.second))
        )
        centre = self.first * self.zeros[0] + self.second * self.zeros[1]
        total = call("add", first, second)
        if not self.below:
            total = call("add", total, scalar(self.offset - centre, SUM))
        else:
            total = call("subtract", total, scalar(centre, SUM))
            sign = call("right_shift", total, scalar(_SIGN, SUM))
            less = call("bitwise_and", sign, scalar(-self.below, SUM))
            total = call("add", call("add", total, scalar(self.offset, SUM)), less)
        return call("right_shift", total, scalar(self.shift, SUM))


def linear_sum(
    a: TensorInfo, b: TensorInfo, out: TensorInfo, between: tuple[int, int], left: int, sign: int
) -> Linear | None:
    """Returns the linear form of a sum, or of a difference if `sign` is -1, that rounds all pairs
    of codes to those of LiteRT's reference kernel, which shifts codes left by `left` bits. None if
    there is none, or if a tensor has no 8-bit codes.
    """
    if not a.dtype == b.dtype == out.dtype or out.dtype not in ("i8", "u8"):
        return None
    low, high = integer_limits(out.dtype)
    codes = np.arange(low, high + 1, dtype=np.int64)
    scales = [np.float64(scale_of(each)) for each in (a, b, out)]
    most, zeros = 2 * max(scales[:2]), (zero_of(a), zero_of(b))
    x, y = (
        fixed((codes - zero) << left, scale / most)
        for zero, scale in zip(zeros, scales, strict=False)
    )
    total = fixed(x[:, None] + sign * y, most / (2.0**left * scales[2])) + zero_of(out)
    steps = scales[0] / scales[2], sign * scales[1] / scales[2]
    return fitted((codes - zeros[0], codes - zeros[1]), total, between, steps, zeros)


def fitted(
    operands: tuple[Codes, Codes],
    total: Codes,
    between: tuple[int, int],
    steps: tuple[float, float],
    zeros: tuple[int, int] = (0, 0),
) -> Linear | None:
    """Returns the form that maps all pairs of codes less their zero points to the results
    `total[first, second]`, saturated to the limits `between`. `steps` are the steps of the result
    per step of each operand; the factors are close to these.

    Ties round away from zero, so negative sums need another offset if there are many ties.
    """
    # Sums of codes, of these less their zero points, and the results stay below 2**31.
    given = zip(steps, operands, zeros, strict=True)
    ends = [(abs(s), np.abs(codes).max(), np.abs(codes + zero).max()) for s, codes, zero in given]
    size = max(
        *(sum(step * each[n] for step, *each in ends) for n in range(2)), float(np.abs(total).max())
    )
    if not np.isfinite(size):
        return None
    shift = _SIGN - int(np.frexp(_SLACK * size + 2)[1])
    if not 0 < shift < _SIGN:
        return None
    near = [int(np.rint(each * 2.0**shift)) for each in steps]
    value = near[0] * operands[0][:, None] + near[1] * operands[1]
    bounds = _Bounds.of(operands, value, np.clip(total, *between), between, shift)
    if bounds is None:
        return None
    around = range(-_AROUND, _AROUND + 1)
    nearby = sorted(itertools.product(around, around), key=_size)
    for more in nearby:
        first, second = near[0] + more[0], near[1] + more[1]
        offset = bounds.offset(more)
        if offset is not None:
            return Linear(first, second, offset, shift, 0, zeros)
    for more in nearby:
        first, second = near[0] + more[0], near[1] + more[1]
        offset, lower = (bounds.offset(more, negative) for negative in (False, True))
        if offset is not None and lower is not None and offset > lower:
            return Linear(first, second, offset, shift, offset - lower, zeros)
    return None


class _Bounds(NamedTuple):
    """The conditions `offset >= lower` and `offset < upper` that may be decisive: each a triple of
    bounds at the nearest factors, and the codes of both operands. `values` are the sums there.
    """

    lower: tuple[Codes, Codes, Codes]
    upper: tuple[Codes, Codes, Codes]
    values: tuple[Codes, Codes]

    @staticmethod
    def of(
        operands: tuple[Codes, Codes],
        value: Codes,
        wanted: Codes,
        between: tuple[int, int],
        shift: int,
    ) -> _Bounds | None:
        """Returns the conditions of all pairs, without those that are far from decisive for the
        pairs of one sign.
        """
        least, above = (wanted << shift) - value, ((wanted + 1) << shift) - value
        spread = 4 * _AROUND * _STATES
        lower, upper = wanted > between[0], wanted < between[1]
        near_lower, near_upper = np.zeros_like(lower), np.zeros_like(upper)
        for side in (value < spread, value > -spread):
            top = np.max(least, where=lower & side, initial=-_FAR)
            bottom = np.min(above, where=upper & side, initial=_FAR)
            near_lower |= lower & side & (least >= top - spread)
            near_upper |= upper & side & (above <= bottom + spread)
        if not near_lower.any() or not near_upper.any():
            return None
        found = []
        for bound, kept in ((least, near_lower), (above, near_upper)):
            rows, columns = np.nonzero(kept)
            found.append((bound[kept], operands[0][rows], operands[1][columns]))
        return _Bounds(found[0], found[1], (value[near_lower], value[near_upper]))

    def offset(self, more: tuple[int, int], negative: bool | None = None) -> int | None:
        """Returns an offset for factors that are `more` than the nearest ones; None if there is
        none. With `negative`, it is for sums of one sign.
        """
        ends = [-_FAR, _FAR]
        for number, (bound, a, b) in enumerate((self.lower, self.upper)):
            change = more[0] * a + more[1] * b
            each = bound - change
            if negative is not None:
                each = each[(self.values[number] + change < 0) == negative]
            if each.size:
                ends[number] = int(each.min() if number else each.max())
        down, up = ends
        return (down + up) // 2 if -_FAR < down < up < _FAR else None


def _size(steps: tuple[int, int]) -> int:
    return abs(steps[0]) + abs(steps[1])
