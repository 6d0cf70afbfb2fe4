"""Kernel ridge regression: a kernel is predicted like those that resemble it.

Trees predict steps, and are best where a schedule changes; most of the remainder varies smoothly
with sizes.

Source: Saunders, Gammerman and Vovk, Ridge Regression Learning Algorithm in Dual Variables, 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.predict.extras import needed

Array = np.ndarray[Any, Any]
_WIDTH: Final = 0.01  # of the Laplacian kernel exp(-width · distance)
_RIDGE: Final = 0.03
_MOST_DEVIATIONS: Final = 4.0
_LEAST_DEVIATION: Final = 1e-6
_ROWS_AT_ONCE: Final = 64
_MOST_POINTS: Final = 1 << 17


@dataclass(frozen=True)
class Smooth:
    """A weighted sum of similarities to the points that were learned from. Features are compared
    after `mean` is subtracted and `deviation` is divided by. Arrays are f64[features], f64[points,
    features] and f64[points].
    """

    mean: Array
    deviation: Array
    points: Array
    weights: Array

    def predict(self, features: Array) -> Array:
        """Returns f64[rows] for f64[rows, features]."""
        found = np.zeros(len(features))
        given = _scaled(features, self.mean, self.deviation)
        for start in range(0, len(given), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            distances = np.zeros((len(given[part]), len(self.points)))
            for row, values in enumerate(given[part]):
                distances[row] = np.abs(self.points - values).sum(axis=1)
            found[part] = np.exp(-_WIDTH * distances) @ self.weights
        return found

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays to store in a file."""
        return {name: getattr(self, name) for name in FIELDS}

    @classmethod
    def of_arrays(cls, arrays: dict[str, Array]) -> Smooth:
        """Returns the regression with these `arrays`. Raises ValueError if they do not fit."""
        for name in FIELDS:
            if arrays[name].dtype != np.float64 or not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} are not finite numbers")
        mean, deviation, points, weights = (arrays[name] for name in FIELDS)
        if mean.ndim != 1 or deviation.shape != mean.shape or (deviation <= 0).any():
            raise ValueError("the scales do not fit")
        if points.shape != (len(weights), len(mean)) or weights.ndim != 1:
            raise ValueError("the points do not fit")
        if len(points) > _MOST_POINTS:
            raise ValueError("too many points")
        return cls(mean, deviation, points, weights)


FIELDS: Final = ("mean", "deviation", "points", "weights")
"""The arrays of a `Smooth`."""


def fit_smooth(features: Array, scaled: int, wanted: Array, weights: Array) -> Smooth:
    """Returns the regression of `wanted`. The first `scaled` features are divided by their
    deviations, the others are counts. `weights` are those of rows.

    Errors: I180.
    """
    distance = needed("scipy.spatial.distance").cdist
    solve = needed("scipy.linalg").solve
    mean, deviation = np.zeros(features.shape[1]), np.ones(features.shape[1])
    mean[:scaled] = features[:, :scaled].mean(axis=0)
    deviation[:scaled] = np.maximum(features[:, :scaled].std(axis=0), _LEAST_DEVIATION)
    points = _scaled(features, mean, deviation)
    similar = np.exp(-_WIDTH * distance(points, points, "cityblock"))
    similar[np.diag_indices_from(similar)] += _RIDGE / weights
    found = solve(similar, wanted, assume_a="pos", overwrite_a=True)
    return Smooth(mean, deviation, points, np.asarray(found))


def _scaled(features: Array, mean: Array, deviation: Array) -> Array:
    found: Array = (features - mean) / deviation
    return np.clip(found, -_MOST_DEVIATIONS, _MOST_DEVIATIONS)
