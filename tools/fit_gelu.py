"""Prints the coefficients of `nn.gelu` for results that are rounded to `bf16`.

The normal distribution function is `1/2 + x * p(x**2)` for |x| up to a bound, beyond which it is
taken to be 0 or 1. `p` makes the largest error of the product with `x` small, and meets 0 and 1 at
the bound. Run as `python tools/fit_gelu.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BOUND = 4.3
TERMS = 9
_STEPS = 60


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


def main() -> None:
    """Prints both functions' coefficients."""
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
