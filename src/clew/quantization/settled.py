"""Errors from the first samples, as many as make them certain enough.

A pass over calibration data that measures errors ends as soon as further samples would change
little. Ranges come from all samples, since few may have the largest numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_FIRST_SAMPLES: Final = 8  # from fewer, deviations between samples are not known
_OF_ERRORS: Final = 0.05  # of an error: its standard error that is small enough; 0.4 dB
_OF_MEANS: Final = 0.01  # of a layer's squared error: that which uncertain corrections may add
_TINY: Final = float(np.finfo(np.float64).tiny)


class Ratios:
    """Roots of the sum of squared errors over that of squares, of each of so many values, over
    samples.
    """

    def __init__(self, count: int) -> None:
        self._errors: list[Array] = []
        self._squares: list[Array] = []
        self._count = count

    def add(self, errors: Sequence[float], squares: Sequence[float]) -> None:
        """Takes in the sums of a sample: of the squared errors and of the squares of each value."""
        self._errors.append(np.asarray(errors, np.float64))
        self._squares.append(np.asarray(squares, np.float64))

    def __len__(self) -> int:
        return len(self._errors)

    @property
    def values(self) -> Array:
        """The ratios, `f64[count]`."""
        if not self._errors:
            return np.zeros(self._count)
        errors, squares = np.sum(self._errors, axis=0), np.sum(self._squares, axis=0)
        found: Array = np.sqrt(errors / (squares + _TINY))
        return found

    @property
    def is_settled(self) -> bool:
        """Whether the standard error of each ratio is small, for samples in random order.

        Source: Cochran, Sampling Techniques, 3rd edition, 1977, section 2.11 (ratio estimates).
        """
        count = len(self)
        if count < _FIRST_SAMPLES:
            return False
        errors, squares = np.stack(self._errors), np.stack(self._squares)
        rest = errors - squares * self.values**2
        deviation = np.sqrt((rest**2).sum(axis=0) / (count * (count - 1)))
        # The root of a ratio has half of the relative deviation of the ratio.
        return bool((deviation <= 2 * _OF_ERRORS * errors.mean(axis=0)).all())


class Means:
    """The mean of each channel's error, `f64[C]`, and its mean square, over samples."""

    def __init__(self, channels: int) -> None:
        self._sums, self._squares = np.zeros(channels), np.zeros(channels)
        self._error, self._count = 0.0, 0

    def add(self, means: Array, error: float) -> None:
        """Takes in a sample: the mean error of each channel, and the mean square of all errors."""
        self._sums += means
        self._squares += means**2
        self._error += error
        self._count += 1

    @property
    def values(self) -> Array:
        """The means."""
        found: Array = self._sums / max(self._count, 1)
        return found

    @property
    def error(self) -> float:
        """The mean square of the error."""
        return self._error / max(self._count, 1)

    @property
    def is_settled(self) -> bool:
        """Whether the uncertainty of the means adds little to the error of corrected layers."""
        count = self._count
        if count < _FIRST_SAMPLES:
            return False
        spread = (self._squares - self._sums**2 / count) / (count * (count - 1))
        left = self.error - float(np.mean(self.values**2))
        return float(np.mean(spread)) <= _OF_MEANS * left or float(np.max(spread)) <= _TINY
