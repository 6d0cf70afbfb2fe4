"""Moves the difficulty of channels with large numbers from activations to weights: the operand is
divided by one number per channel before it is rounded, and the weight multiplied by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.ir.types import integer_limits
from clew.quantization.ranges import Histograms
from clew.quantization.scheme import Scheme
from clew.quantization.sites import Site
from clew.quantization.totals import squared

Array = NDArray[Any]
_STRENGTHS: Final = (0.25, 0.5, 0.75, 1.0)
_LEAST_GAIN: Final = 0.9  # of the estimated squared error
_TINY: Final = 1e-12
_MOST: Final = 1e4  # the ratio of the largest to the smallest number


class Channels:
    """The distribution of each channel of a value: a histogram with extremes, and the mean
    square.
    """

    def __init__(self, count: int) -> None:
        self.histograms = Histograms(count)
        self._squares, self._samples = np.zeros(count), 0

    def add(self, rows: Array, low: Array, high: Array) -> None:
        """Adds a sample, `[outer, channels, inner]`, with the extremes of its channels."""
        self.histograms.add(rows, low, high)
        self._squares += squared(rows) / (rows.size // rows.shape[1])
        self._samples += 1

    @property
    def low(self) -> Array:
        """The smallest number of each channel, at most 0."""
        return self.histograms.low

    @property
    def high(self) -> Array:
        """The largest number of each channel, at least 0."""
        return self.histograms.high

    @property
    def squares(self) -> Array:
        """The mean squares."""
        found: Array = self._squares / max(self._samples, 1)
        return found


def migrated(channels: Channels, sites: Sequence[Site], scheme: Scheme) -> Array | None:
    """Returns the numbers by which the channels of a value that these sites read are divided, or
    None if it gains nothing. The strength with the least error is taken, of those estimated from
    the steps of both operands.
    """
    weights = [_Weight.of(s) for s in sites]
    plain = np.ones(len(channels.low))
    least = _LEAST_GAIN * _error(channels, weights, plain, scheme)
    size = np.maximum(np.maximum(channels.high, -channels.low), 0)
    largest = np.max([w.peaks.max(axis=1).reshape(-1) for w in weights], axis=0)
    known = (size > _TINY) & (largest > _TINY)
    if not known.any():
        return None
    best: Array | None = None
    for strength in _STRENGTHS:
        numbers = np.ones(len(size))
        numbers[known] = size[known] ** strength / largest[known] ** (1 - strength)
        middle = np.exp(np.mean(np.log(numbers[known])))
        numbers = np.clip(numbers / middle, 1 / _MOST, _MOST)
        numbers[~known] = 1.0
        error = _error(channels, weights, numbers, scheme)
        if error < least:
            best, least = numbers, error
    return None if best is None else best.astype(np.float32)


def over_inputs(site: Site, numbers: Array) -> Array:
    """Returns one number per input channel in the shape of the weight, broadcast along its other
    axes. In a grouped convolution, each group has its own channels.
    """
    weight = site.weight.data
    if weight.ndim == 2:
        found: Array = numbers.reshape((1, -1) if site.channel == 0 else (-1, 1))
        return found
    groups = site.call.attrs.groups
    rows = np.repeat(numbers.reshape(groups, -1), weight.shape[0] // groups, axis=0)
    return rows.reshape(rows.shape + (1,) * (weight.ndim - 2))


@dataclass(frozen=True)
class _Weight:
    """What the estimates need of a weight, by group, output and input channel: the largest size of
    its taps, `f64[G, O, I]`; and for all outputs, the sum of squares, `f64[G, I]`.
    """

    peaks: Array
    squares: Array
    taps: int

    @staticmethod
    def of(site: Site) -> _Weight:
        """Returns that of the weight of a site."""
        weight, groups = site.weight.data, 1
        if weight.ndim == 2:
            weight = weight if site.channel == 0 else weight.T
        else:
            groups = site.call.attrs.groups
        taps = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
        squares = np.einsum("goit,goit->gi", taps, taps, dtype=np.float64)
        return _Weight(np.abs(taps).max(axis=3).astype(np.float64), squares, taps.shape[3])


def _error(channels: Channels, weights: Sequence[_Weight], numbers: Array, scheme: Scheme) -> float:
    """Returns the estimated mean square of the error of all results: that of steps of the operand,
    weighted by the weights, and that of steps of the weights, weighted by the operand.
    """
    first, last = integer_limits("u8" if scheme.is_dynamic else scheme.activations)
    high, low = np.max(channels.high / numbers), np.min(channels.low / numbers)
    step = max(float(high - low), _TINY) / (last - first)
    squares = channels.squares / numbers**2
    total = 0.0
    for weight in weights:
        groups = len(weight.peaks)
        by = numbers.reshape(groups, -1)
        total += step**2 * float(np.sum(weight.squares * by**2))
        most = (weight.peaks * by[:, None, :]).max(axis=2)
        steps = 2 * most / (scheme.weight_limits[1] * 2)
        read = (weight.peaks != 0) @ squares.reshape(groups, -1, 1)
        total += float(np.sum(steps**2 * read[:, :, 0])) * weight.taps
    return total
