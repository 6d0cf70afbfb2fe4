"""Prints the coefficients of the normal distribution function, for `f32` and for `nn.gelu` with
results that are rounded to `bf16`.

In `f32`, the function is `1/2 + x * p(x**2) / q(x**2)` for |x| up to a bound. `p` and `q` make the
largest relative error of the second term small. At the bound, rounded arithmetic gives exactly 0
or 1.

For `bf16`, it is `1/2 + x * p(x**2)` for |x| up to a bound, beyond which it is taken to be 0 or 1.
`p` makes the largest error of the product with `x` small, and meets 0 and 1 at the bound. Run as
`python tools/fit_gelu.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BOUND = 4.3
TERMS = 9
RATIO_BOUND, RATIO_TERMS = 5.5, 6
_FITTED_TO = 5.6
_STEPS = 60
_RATIO_STEPS = 300


def fit(distribution: Callable[[float], float]) -> tuple[float, list[float]]:
    """Returns the largest error of `x` times the function, and the coefficients from the constant
    upwards: least squares, again and again with more weight where the error is large.
    """
    x = BOUND * np.cos(np.linspace(0, math.pi / 2, 4001))[:-1]
    wanted = np.array([distribution(v) for v in x]) - 0.5
    powers = np.stack([(x / BOUND) ** (2 * n + 1) for n in range(TERMS)], 1)
    free = powers[:, :-1] - powers[:, -1:]  # the last coefficient is what 1/2 at the bound leaves
    rest = wanted - 0.5 * powers[:, -1]
    weight, best = np.ones_like(x), math.inf
    chosen: np.ndarray = np.zeros(TERMS - 1)
    for _ in range(_STEPS):
        scale = weight * x
        found = np.linalg.lstsq(free * scale[:, None], rest * scale, rcond=None)[0]
        error = np.abs((free @ found - rest) * x)
        if error.max() < best:
            best, chosen = float(error.max()), found
        weight *= (error / error.max() + 1e-3) ** 0.3
        weight /= weight.max()
    scaled = [*chosen, 0.5 - chosen.sum()]
    return best, [float(b) / BOUND ** (2 * n + 1) for n, b in enumerate(scaled)]


def fit_ratio(half: Callable[[float], float]) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the largest relative error of `x * p(x**2) / q(x**2)`, and the coefficients of both
    in f32 from the constants upwards, by the same method; `q` begins with 1.
    """
    x = _FITTED_TO * np.cos(np.linspace(0, math.pi / 2, 6001))[:-1]
    x = np.concatenate([x, np.logspace(-4, -1, 200)])
    wanted = np.array([half(v) / v for v in x])
    powers = np.stack([(x / _FITTED_TO) ** (2 * n) for n in range(RATIO_TERMS)], 1)
    weight, below, best = np.ones_like(x), np.ones_like(x), math.inf
    chosen: np.ndarray = np.zeros(2 * RATIO_TERMS - 1)
    for _ in range(_RATIO_STEPS):
        scale = weight / (wanted * below)  # `below`, from the step before, makes this linear
        system = np.concatenate([powers, -wanted[:, None] * powers[:, 1:]], 1)
        found = np.linalg.lstsq(system * scale[:, None], wanted * scale, rcond=None)[0]
        below = 1 + powers[:, 1:] @ found[RATIO_TERMS:]
        error = np.abs(powers @ found[:RATIO_TERMS] / below / wanted - 1)
        if error.max() < best:
            best, chosen = float(error.max()), found
        weight *= (error / error.max() + 1e-3) ** 0.3
        weight /= weight.max()
    units = _FITTED_TO ** (2.0 * np.arange(RATIO_TERMS))
    over, under = chosen[:RATIO_TERMS], np.concatenate([[1.0], chosen[RATIO_TERMS:]])
    return best, (over / units).astype(np.float32), (under / units).astype(np.float32)


def main() -> None:
    """Prints all coefficients."""
    error, over, under = fit_ratio(lambda v: 0.5 * math.erf(v / math.sqrt(2)))
    print(f"# within {error:.1e} of the second term, before rounding")
    for name, part in (("_NORMAL_P", over), ("_NORMAL_Q", under)):
        print(f"{name}: Final = (")
        for value in part:
            print(f"    {float(value)!r},")
        print(")")
    root = math.sqrt(2 / math.pi)
    for name, function in (
        ("none", lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2)))),
        ("tanh", lambda v: 0.5 * (1 + math.tanh(root * (v + 0.044715 * v**3)))),
    ):
        error, coefficients = fit(function)
        print(f"# error below {error:.1e}")
        print(f'"{name}": (')
        for value in coefficients:
            print(f"    {float(np.float32(value))!r},")
        print("),")


if __name__ == "__main__":
    main()
