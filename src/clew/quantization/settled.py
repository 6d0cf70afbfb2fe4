"""Error estimates from as many samples as their precision requires.

A pass over calibration data that measures errors ends once the remaining samples are expected to
change them little. Ranges are computed from all samples, since a few samples may contain the
extremes. Errors that are only reported are measured on a limited number of samples: if a few
samples have most of the signal, only all samples would make them precise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SHOWN_SAMPLES: Final = 16
"""The number of samples after which errors that are only reported are precise enough."""
_FIRST_SAMPLES: Final = 8  # with fewer, the deviation between samples is too uncertain
_OF_ERRORS: Final = 0.05  # largest relative standard error of an error; 0.4 dB
_OF_MEANS: Final = 0.005  # largest share of a layer's squared error from uncertain corrections
_TINY: Final = float(np.finfo(np.float64).tiny)


class Ratios:
    """Relative RMS errors of `count` values, estimated from some of `samples` samples: the root of
    the sum of squared errors divided by the sum of squares.
    """

    def __init__(self, count: int, samples: int) -> None:
        self._errors: list[Array] = []
        self._squares: list[Array] = []
        self._count, self._samples = count, samples

    def add(self, errors: Sequence[float], squares: Sequence[float]) -> None:
        """Adds a sample: the sum of squared errors and the sum of squares of each value."""
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
    def is_enough(self) -> bool:
        """Whether the ratios are precise enough to be reported."""
        return len(self) >= SHOWN_SAMPLES or self.is_settled

    @property
    def is_settled(self) -> bool:
        """Whether each ratio is a precise estimate of the ratio over all samples: its standard
        error is small. Samples must come in random order.

        Source: Cochran, Sampling Techniques, 3rd edition, 1977, section 2.11 (ratio estimates).
        """
        count = len(self)
        if count < _FIRST_SAMPLES:
            return False
        errors, squares = np.stack(self._errors), np.stack(self._squares)
        rest = errors - squares * self.values**2
        variance = (rest**2).sum(axis=0) / (count * (count - 1))
        deviation = np.sqrt(variance * _left(count, self._samples))
        # The relative standard error of a root is half of that of its argument.
        return bool((deviation <= 2 * _OF_ERRORS * errors.mean(axis=0)).all())


class Means:
    """The mean error of each channel, `f64[C]`, and the mean squared error, estimated from some of
    `samples` samples.
    """

    def __init__(self, channels: int, samples: int) -> None:
        self._samples = samples
        self._sums, self._squares = np.zeros(channels), np.zeros(channels)
        self._error, self._count = 0.0, 0

    def add(self, means: Array, error: float) -> None:
        """Adds a sample: the mean error of each channel, and the mean square of all errors."""
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
        """Whether the uncertainty of the means adds little to the remaining squared error."""
        count = self._count
        if count < _FIRST_SAMPLES:
            return False
        spread = (self._squares - self._sums**2 / count) / (count * (count - 1))
        spread *= _left(count, self._samples)
        left = self.error - float(np.mean(self.values**2))
        return float(np.mean(spread)) <= _OF_MEANS * left or float(np.max(spread)) <= _TINY


def _left(count: int, samples: int) -> float:
    """Returns the finite population correction for a mean over `count` of `samples` samples: the
    share of the variance that remains, 0 if all samples are known.
    """
    return max(1 - count / samples, 0.0)
