"""Fits the polynomials of vector math and prints `src/clew/codegen/math/polynomials.py`.

Usage: `python tools/fit_polynomials.py > src/clew/codegen/math/polynomials.py`

Each is the best in the weighted maximum norm (Remez exchange, 60 digits), of the lowest degree
whose error is below the target; the coefficients are then rounded to their dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 60
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Fit:
    """A polynomial for `function`, its error times `weight` to be below `2**-target_bits`."""

    name: str
    formula: str
    function: Function
    low: float
    high: float
    weight: Function
    target_bits: float
    dtype: str = "f64"


def grid(low: float, high: float, count: int) -> list[Any]:
    """Returns points of the open interval, dense at its ends."""
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    return [middle - half * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / count) for i in range(count)]


def extrema(errors: list[Any], count: int) -> list[int]:
    """Returns where the error is largest between its changes of sign, `count` of them in a row."""
    groups = itertools.groupby(range(len(errors)), key=lambda i: errors[i] > 0)
    peaks = [max(group, key=lambda i: abs(errors[i])) for _, group in groups]
    while len(peaks) > count:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    return peaks


def remez(fit: Fit, degree: int) -> tuple[list[Any], Any]:
    """Returns the coefficients from the constant upwards, and the largest weighted error."""
    count = degree + 2
    points = grid(fit.low, fit.high, 48 * count)
    values = [fit.function(x) for x in points]
    weights = [fit.weight(x) for x in points]
    chosen = [min(len(points) - 1, (2 * i + 1) * 24) for i in range(count)]
    best: tuple[list[Any], Any] = ([], mp.inf)
    for _ in range(15):
        rows = mp.matrix(count, count)
        for row, i in enumerate(chosen):
            for power in range(degree + 1):
                rows[row, power] = points[i] ** power
            rows[row, degree + 1] = (-1) ** row / weights[i]
        solution = mp.lu_solve(rows, mp.matrix([values[i] for i in chosen]))
        coefficients = [solution[i] for i in range(degree + 1)]
        errors = [
            (mp.polyval(coefficients[::-1], x) - y) * w
            for x, y, w in zip(points, values, weights, strict=True)
        ]
        largest = max(map(abs, errors))
        if largest < best[1]:
            best = coefficients, largest
        chosen = extrema(errors, count)
        if len(chosen) < count:
            break
    return best


def solve(fit: Fit) -> tuple[list[float], float]:
    """Returns the shortest good polynomial, rounded, and its right bits before rounding."""
    for degree in range(2, 24):
        coefficients, error = remez(fit, degree)
        if error < mp.mpf(2) ** -fit.target_bits:
            break
    else:
        raise SystemExit(f"{fit.name}: no polynomial up to degree 23 is good enough")
    exact = [float(c) for c in coefficients]
    rounded = [float(np.float32(c)) for c in exact] if fit.dtype == "f32" else exact
    return rounded, float(-mp.log(error, 2))


def even(function: Function) -> Function:
    """Returns `function` of the square root, for polynomials in a square."""
    return lambda z: function(mp.sqrt(z))


def erf_exponent(name: str, low: float, high: float) -> Fit:
    """Returns the fit of `u` with erf(t) = 1 - exp(-u), `t` from `low` to `high`."""
    return Fit(
        name, f"-log(1 - erf(t)) over t - {low}",
        lambda s: -mp.log(mp.erfc(s + low)), 0.0, high - low,
        lambda s: mp.erfc(s + low) / mp.erf(s + low), 57,
    )  # fmt: skip


def fits() -> Iterator[Fit]:
    """All polynomials, in the order of the output."""
    one = mp.mpf(1)
    half_ln2 = float(mp.log(2) / 2) * 1.0001
    low_log, high_log = float(mp.sqrt(one / 2) - 1), float(mp.sqrt(2) - 1)
    quarter = float(mp.pi / 4) * 1.0001

    for dtype, bits in (("f32", 27), ("f64", 57)):
        yield Fit(
            f"EXP_{dtype.upper()}", "(exp(r) - 1 - r) / r**2",
            lambda r: (mp.expm1(r) - r) / r**2, -half_ln2, half_ln2,
            lambda r: r**2, bits, dtype,
        )  # fmt: skip
        yield Fit(
            f"EXP2_{dtype.upper()}", "(2**r - 1) / r - ln 2, over r",
            lambda r: (mp.expm1(r * mp.log(2)) / r - mp.log(2)) / r, -0.5001, 0.5001,
            lambda r: r**2, bits, dtype,
        )  # fmt: skip
    yield Fit(
        "LOG_F32", "(log(1 + f) - f + f**2 / 2) / f**3",
        lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, low_log, high_log,
        lambda f: f**3 / mp.log1p(f), 27, "f32",
    )  # fmt: skip
    yield Fit(
        "LOG_F64", "(log((1 + s) / (1 - s)) / s - 2) / s**2 in z = s**2",
        even(lambda s: (2 * mp.atanh(s) / s - 2) / s**2), 1e-12, (high_log / (2 + high_log)) ** 2,
        lambda z: z, 58,
    )  # fmt: skip
    yield Fit(
        "TANH_F32", "(tanh(x) / x - 1) / x**2 in z = x**2",
        even(lambda x: (mp.tanh(x) / x - 1) / x**2), 1e-12, 0.625**2,
        lambda z: z * mp.sqrt(z) / mp.tanh(mp.sqrt(z)), 27, "f32",
    )  # fmt: skip
    yield Fit(
        "ERF_SMALL_F32", "erf(x) / x - 1 in z = x**2",
        even(lambda x: mp.erf(x) / x - 1), 1e-12, 0.9375**2,
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), 27, "f32",
    )  # fmt: skip
    yield Fit(
        "ERF_LARGE_F32", "-log(1 - erf(t)) / t - 1",
        lambda t: -mp.log(mp.erfc(t)) / t - 1, 0.93, 4.01,
        lambda t: mp.erfc(t) * t / mp.erf(t), 27, "f32",
    )  # fmt: skip
    yield Fit(
        "ERF_SMALL_F64", "erf(x) / x - 1 in z = x**2",
        even(lambda x: mp.erf(x) / x - 1), 1e-12, 1.0,
        lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), 56,
    )  # fmt: skip
    yield erf_exponent("ERF_MIDDLE_F64", 1.0, 2.25)
    yield erf_exponent("ERF_LARGE_F64", 2.25, 6.0)
    yield Fit(
        "SIN_F64", "(sin(r) / r - 1) / r**2 in z = r**2",
        even(lambda r: (mp.sin(r) / r - 1) / r**2), 1e-12, quarter**2,
        lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)), 57,
    )  # fmt: skip
    yield Fit(
        "COS_F64", "(cos(r) - 1 + r**2 / 2) / r**4 in z = r**2",
        even(lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4), 1e-6, quarter**2,
        lambda z: z**2, 57,
    )  # fmt: skip
    yield Fit(
        "ATAN_F64", "(atan(t) / t - 1) / t**2 in z = t**2",
        even(lambda t: (mp.atan(t) / t - 1) / t**2), 1e-12, (mp.sqrt(2) - 1) ** 2,
        lambda z: z, 57,
    )  # fmt: skip
    yield Fit(
        "ASIN_F64", "(asin(t) / t - 1) / t**2 in z = t**2",
        even(lambda t: (mp.asin(t) / t - 1) / t**2), 1e-12, 0.25,
        lambda z: z, 57,
    )  # fmt: skip


HEADER = '''"""Coefficients from the constant upwards, made by `tools/fit_polynomials.py`."""

from __future__ import annotations

from typing import Final
'''


def main() -> None:
    """Prints the module."""
    print(HEADER, end="")
    for fit in fits():
        coefficients, bits = solve(fit)
        print(f"\n# {fit.formula}")
        print(f"# on [{float(fit.low):.5g}, {float(fit.high):.5g}]: error below 2**-{bits:.1f}")
        print(f"{fit.name}: Final = (")
        for c in coefficients:
            print(f"    {c!r},")
        print(")")


if __name__ == "__main__":
    main()
