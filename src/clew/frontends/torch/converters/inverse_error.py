"""The inverse error function.

`erfinv(x) / x` is a polynomial of `w = -log(1 - x * x)` near 0, and of the root of `w` from there
on, as in Giles's approximation (GPU Computing Gems, 2011). The coefficients interpolate it at the
Chebyshev nodes of each interval and are exact to a tenth of the last bit in `f32` and to half of it
in `f64`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from clew.frontends.building import cast
from clew.frontends.torch.converters.reals import Real, chosen
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter


class _Part(NamedTuple):
    """A polynomial for `w` below a limit, of the distance from the middle of its interval."""

    limit: float
    middle: float
    coefficients: tuple[float, ...]


# The first part of each dtype is a polynomial of `w`, the others are polynomials of its root.
_PARTS: Final = {
    "f32": (
        _Part(5, 2.5, (
            -8.93192597e-9, 2.33359672e-8, 4.681313481e-7, -3.463985268e-6, -4.972419689e-6,
            0.0002183493862, -0.001252726392, -0.004177392875, 0.2466402791, 1.50140936,
        )),
        _Part(17.02, 3.1875, (
            0.0001047321199, -0.0001211332716, -0.0003557331142, 0.001180337199, -0.002075681234,
            0.003056123738, -0.004444766872, 0.006139421411, 1.004541075, 3.021078817,
        )),
    ),
    "f64": (
        _Part(5, 2.5, (
            1.64533799430872013e-19, 2.53820386884546335e-18, -2.66456488097700935e-17,
            -1.01380861928362336e-16, 1.89414562974315011e-15, -3.17707758417498723e-15,
            -7.6106265301918069e-14, 5.37178034116690066e-13, 9.11466978336366837e-13,
            -3.11079597448473076e-11, 1.19607291719353755e-10, 9.07314783873917486e-10,
            -1.08611695217639272e-8, 1.34167888119135577e-8, 4.78725219198754014e-7,
            -3.41661958486239372e-6, -4.99607959927979111e-6, 0.000218250264339359436,
            -0.00125270790781090646, -0.00417731772438288678, 0.246640276744166988,
            1.50140935111079191,
        )),
        _Part(16, 3.125, (
            3.83212830374435192e-9, 3.06037363476040592e-9, -4.60829299691413217e-8,
            5.30596673027029821e-8, 1.34993650768879773e-7, -5.56777314007674492e-7,
            7.48478415847670925e-7, 9.03664364673735336e-7, -6.2712217438908821e-6,
            0.0000113991614663689752, 2.18418822154229847e-6, -0.0000588518674472081316,
            0.00013610492032569838, -0.0000895534095862578715, -0.000328662174962439569,
            0.0012606698970145947, -0.00251988269173527173, 0.00379442001450115319,
            -0.00530101060847944869, 0.0070478844178201698, 1.00371869179792484,
            2.95832015024046193,
        )),
        _Part(36.36, 5.0, (
            4.27895652663205037e-11, -2.78649611982538905e-11, -4.36548130330083073e-10,
            1.50995701899629376e-9, -3.47437530337052644e-9, 7.61323727834450548e-9,
            -1.52509849783453585e-8, 2.91488683094090334e-8, -6.75590507794680564e-8,
            2.2900498834212624e-7, -9.93028313436631127e-7, 4.52606239087755515e-6,
            -0.0000196817709054343578, 0.0000759952770780111407, -0.000215030119810676048,
            -0.000138719318339659937, 1.01030046486454493, 4.84990640140858408,
        )),
    ),
}  # fmt: skip


# The last steps of polynomials in `f32`, which are computed in `f64`: their rounding errors would
# be those of the result.
_WIDE_STEPS: Final = 2


@converter("erfinv")
def erfinv(layer: Layer) -> Result:
    """The number whose error function is given."""
    (x,) = layer.promoted("self", kind=PROMOTION.INT_TO_FLOAT)
    dtype = "f64" if x.tensor.dtype == "f64" else "f32"
    return layer.to_result(_inverse(Real(cast(x, dtype))).expr)


def _inverse(x: Real) -> Real:
    parts = _PARTS[x.expr.tensor.dtype]
    w = ((x * -1.0 + 1.0) * (x + 1.0)).log() * -1.0
    root = w.sqrt()
    below = [w < part.limit for part in parts[:-1]]

    def of_part(values: Sequence[Real | float], like: Real) -> Real:
        *others, found = (like.number(value) for value in values)
        for condition, value in zip(reversed(below), reversed(others), strict=True):
            found = chosen(condition, value, found)
        return found

    # One polynomial with the coefficients of each element's part.
    near, *far = (part.middle for part in parts)
    place = of_part([w - near, *(root - middle for middle in far)], x)
    most = max(len(part.coefficients) for part in parts)
    padded = [(*(0.0,) * (most - len(p.coefficients)), *p.coefficients) for p in parts]
    first, *steps = zip(*padded, strict=True)
    found = of_part(first, x)
    for left, step in zip(range(len(steps), 0, -1), steps, strict=True):
        if left == _WIDE_STEPS:
            found, place = found.cast("f64"), place.cast("f64")
        found = found * place + of_part(step, found)
    found = found * x.cast("f64")
    edge = x.abs().equal(1.0).expr
    return chosen(edge, x * math.inf, found.cast(x.expr.tensor.dtype))
