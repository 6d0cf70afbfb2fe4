"""Learns from trials which choices are likely to be fast, for kernels that were not measured with
them.

The model predicts the logarithm of the ratio to the default's time, from the values of the choices,
their distances from the defaults, and the numbers about the kernel's work (`predict.features`). It
learns from every trial in the database on machines of this kind, of any model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from clew.predict.features import NUMBERS
from clew.predict.trees import Forest, fit_forest
from clew.support.errors import InputError
from clew.tuning.tunable import Tunable

Array = np.ndarray[Any, Any]
_LEAST_ROWS: Final = 60
_SEEDS, _TURNS = 1, 80
_MOST_ROWS: Final = 20_000
_PENALTY: Final = 1.0  # of the ridge
_CLIP: Final = 1.5  # logarithms of ratios: a kernel that is five times as slow is slow enough


class Ranker:
    """Predicts the ratio of a candidate's time to the default's.

    `names` are the choices of all kernels that may occur, as `rule.choice`.
    """

    def __init__(self, tunables: Iterable[Tunable]) -> None:
        kernels = list(tunables)
        names = {f"{knob.rule}.{knob.name}" for kernel in kernels for knob in kernel.knobs}
        self._places = {name: n for n, name in enumerate(sorted(names))}
        self._rows: list[Array] = []
        self._logs: list[float] = []
        self._forest: Forest | None = None
        self._ridge: tuple[Array, Array, Array] | None = None

    @property
    def rows(self) -> int:
        """The number of trials it has received."""
        return len(self._rows)

    @property
    def is_trained(self) -> bool:
        """Whether it can predict."""
        return self._forest is not None or self._ridge is not None

    def features(self, kernel: Tunable, choices: str) -> Array:
        """Returns f64[features] of a candidate."""
        count = len(self._places)
        found = np.zeros(3 * count + len(NUMBERS))
        for knob, value in zip(kernel.knobs, kernel.values(choices), strict=True):
            place = self._places[f"{knob.rule}.{knob.name}"]
            found[place] = 1.0 + math.log2(1 + abs(value))
            found[count + place] = math.log2((1 + abs(value)) / (1 + abs(knob.default)))
            # Whether whole tiles cover a loop matters more than their size.
            most = max(knob.options)
            found[2 * count + place] = (most % value) / value if value > 0 else 0.0
        numbers = [kernel.facts.get(name, 0.0) for name in NUMBERS]
        found[3 * count :] = np.log1p(np.maximum(numbers, 0.0))
        return found

    def add(self, kernel: Tunable, choices: str, ratio: float) -> None:
        """Adds a measured ratio to the default's time."""
        if len(self._rows) < _MOST_ROWS and ratio > 0 and math.isfinite(ratio):
            self._rows.append(self.features(kernel, choices))
            self._logs.append(float(np.clip(math.log(ratio), -_CLIP, _CLIP)))

    def train(self) -> None:
        """Learns from all trials so far; from too few, nothing."""
        if len(self._rows) < _LEAST_ROWS:
            return
        rows, logs = np.array(self._rows), np.array(self._logs)
        try:
            self._forest = fit_forest(rows, logs, _SEEDS, _TURNS)
        except InputError:  # scikit-learn is not installed
            self._ridge = _ridge(rows, logs)

    def ratios(self, kernel: Tunable, candidates: Sequence[str]) -> Array:
        """Returns f64[candidates]: predicted ratios to the default's time; 1 if untrained."""
        if not candidates or not self.is_trained:
            return np.ones(len(candidates))
        rows = np.array([self.features(kernel, choices) for choices in candidates])
        if self._forest is not None:
            logs = self._forest.predict(rows)
        else:
            assert self._ridge is not None
            mean, scale, coefficients = self._ridge
            logs = _terms((rows - mean) / scale) @ coefficients
        found: Array = np.exp(logs)
        return found


def _terms(rows: Array) -> Array:
    return np.concatenate([np.ones((len(rows), 1)), rows, rows**2], axis=1)


def _ridge(rows: Array, logs: Array) -> tuple[Array, Array, Array]:
    """Returns mean, scale and coefficients of a quadratic fit without interactions."""
    mean, scale = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
    terms = _terms((rows - mean) / scale)
    normal = terms.T @ terms + _PENALTY * np.eye(terms.shape[1])
    return mean, scale, np.linalg.solve(normal, terms.T @ logs)
