"""The first estimate of a kernel's time: a sum of quantities that take proportional time.

Source: Lawson and Hanson, Solving Least Squares Problems, 1974 (no negative coefficients); Holland
and Welsch, Robust Regression Using Iteratively Reweighted Least-Squares, 1977.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.predict.extras import needed

Array = np.ndarray[Any, Any]
_ENOUGH_ROWS: Final = 40
_LEAST_NS: Final = 50.0
_MOST_STEPS: Final = 10_000
# All rows count a little in the fit of each kind, for quantities that a kind's own rows lack (such
# as weights from farther memory).
_SHARED_WEIGHT: Final = 0.05
# Few rows that nothing here explains should not raise the estimates of all others.
_ROUNDS: Final = 3
_USUAL_ERROR: Final = 0.03


@dataclass(frozen=True)
class Linear:
    """Nanoseconds per unit of each quantity, for all kernels, and for those of a first rule."""

    common: Array
    by_rule: dict[str, Array]

    def estimate(self, basis: Array, rules: Sequence[str]) -> Array:
        """Returns nanoseconds of each row."""
        found: Array = basis @ self.common
        names = np.array(rules, object)
        for rule, coefficients in self.by_rule.items():
            chosen = names == rule
            found[chosen] = basis[chosen] @ coefficients
        least: Array = np.maximum(found, _LEAST_NS)
        return least


def fit_linear(basis: Array, ns: Array, rules: Sequence[str]) -> Linear:
    """Returns the estimate with about the least absolute relative error.

    Errors: I180.
    """
    nnls = needed("scipy.optimize").nnls
    relative = basis / ns[:, None]

    def solve(weights: Array) -> Array:
        rows = relative * weights[:, None]
        scale = np.maximum(np.sqrt((rows**2).sum(axis=0)), 1e-12)
        # The QR factor has the same solution, but few rows.
        stacked = np.concatenate([rows / scale, weights[:, None]], axis=1)
        factor: Array = np.linalg.qr(stacked, mode="r")  # type: ignore[assignment]
        solution: Array = nnls(factor[:, :-1], factor[:, -1], maxiter=_MOST_STEPS)[0] / scale
        return solution

    def robust(weights: Array) -> Array:
        solution = solve(weights)
        for _ in range(_ROUNDS - 1):
            errors = np.abs(np.log(np.maximum(basis @ solution, _LEAST_NS) / ns))
            solution = solve(weights * np.sqrt(_USUAL_ERROR / np.maximum(errors, _USUAL_ERROR)))
        return solution

    names = np.array(rules, object)
    by_rule = {}
    for rule in dict.fromkeys(rules):
        own = names == rule
        if own.sum() >= _ENOUGH_ROWS:
            shared = _SHARED_WEIGHT * np.sqrt(own.sum() / len(ns))
            by_rule[rule] = robust(np.where(own, 1.0, shared))
    return Linear(robust(np.ones(len(ns))), by_rule)
