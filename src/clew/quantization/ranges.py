"""The range of a quantized tensor, chosen from the distribution of its elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.ir.types import integer_limits
from clew.quantization.counting import count_in_bins
from clew.quantization.totals import highest, lowest

Array = NDArray[Any]

BINS: Final = 4096
"""Bins of a histogram. At least half of them, minus two, are between its extremes."""
_MOST_BINS: Final = 1 << 17  # of all channels of a tensor, unless each would get too few
_FEWEST_BINS: Final = 128
_MOST_HALVINGS: Final = 62  # of a 64-bit integer
_SHRINKS: Final = np.linspace(1.0, 0.2, 81)
_AT_ONCE: Final = 1 << 14  # elements of a weight that stay in cache while scales are tried
_HALVINGS: Final = 4  # halvings of the full range that are tried
_COARSE_BINS: Final = 128  # of the distribution that `entropy` compares
_TINY: Final = float(np.finfo(np.float32).tiny)

Loss = Callable[["Histogram", Sequence["Grid"]], Array]
"""The loss of a distribution on each of several grids."""


@dataclass(frozen=True)
class Histogram:
    """The distribution of elements between `low` and `high`, which include 0: bin `n` of `counts`
    holds those from `(first + n) * width`.
    """

    low: float
    high: float
    width: float
    first: int
    counts: Array

    @property
    def centers(self) -> Array:
        """The middles of the bins."""
        found: Array = self.width * (np.arange(len(self.counts)) + (self.first + 0.5))
        return found

    def outside(self, low: float, high: float) -> float:
        """Returns the share of elements outside of a range, to the precision of a bin."""
        centers = self.centers
        outside = (centers < low) | (centers > high)
        return float(self.counts[outside].sum() / max(self.counts.sum(), 1))


class Histograms:
    """A histogram of each channel of a tensor, whose bins widen as the extremes of the channel
    grow. `low` and `high`, `f64[C]`, are the extremes, extended to 0.

    If new elements do not fit, pairs of bins are merged, so one pass over the data is enough, in
    any order. Channels can be divided by numbers and merged afterwards, so the numbers may be
    computed in the same pass.
    """

    def __init__(self, channels: int = 1, bins: int = 0) -> None:
        self.low, self.high = np.zeros(channels), np.zeros(channels)
        self._widths, self._firsts = np.zeros(channels), np.zeros(channels, np.int64)
        self._counts = np.zeros((channels, bins or _bins_of(channels)), np.int64)

    def add(self, values: Array, low: Any = None, high: Any = None) -> None:
        """Adds finite elements, `[outer, channels, inner]`. The extremes of the channels, `low` and
        `high`, are computed if they are not given.
        """
        if not values.size:
            return
        values = values.astype(np.float32, copy=False)
        self.low = np.minimum(self.low, lowest(values) if low is None else low)
        self.high = np.maximum(self.high, highest(values) if high is None else high)
        self._widen()
        used = self._widths > 0  # channels without a width have only zeros
        factors = np.divide(1, self._widths, out=np.zeros_like(self._widths), where=used)
        count_in_bins(values, factors, self._firsts, self._counts)

    def merged(self, numbers: Array | None = None) -> Histogram:
        """Returns the histogram of all elements. With `numbers`, which are positive, each channel
        is divided by its number first.
        """
        if len(self.low) == 1 and numbers is None:
            low, high = float(self.low[0]), float(self.high[0])
            return Histogram(
                low, high, float(self._widths[0]), int(self._firsts[0]), self._counts[0]
            )
        by = np.ones(len(self.low)) if numbers is None else numbers.astype(np.float64)
        lows, highs = self.low / by, self.high / by
        low, high = float(lows.min()), float(highs.max())
        width = (high - low) / (BINS // 2)
        first = math.floor(low / width) - 1 if width else 0
        channel, place = np.nonzero(self._counts)
        starts, steps = place + self._firsts[channel], (self._widths / by)[channel]
        # Treats the elements of a bin as evenly spread over the part within the channel's extremes.
        parts = max(1, BINS // self._counts.shape[1])
        shares, counts = self._counts[channel, place] / parts, np.zeros(BINS)
        for part in range(parts):
            middles = (starts + (part + 0.5) / parts) * steps
            middles = np.clip(middles, lows[channel], highs[channel])
            bins = np.floor(middles / width).astype(np.int64) - first if width else 0 * place
            counts += np.bincount(bins, weights=shares, minlength=BINS)
        return Histogram(low, high, width, first, counts)

    def _widen(self) -> None:
        """Makes the bins cover the extremes, with a spare bin on each side for rounding."""
        bins = self._counts.shape[1]
        with np.errstate(divide="ignore", invalid="ignore"):  # channels without a width
            first = np.floor(self.low / self._widths) - 1
            last = np.floor(self.high / self._widths) + 1
        fits = (first >= self._firsts) & (last < self._firsts + bins)
        changed = np.flatnonzero((self.high > self.low) & ~fits)
        if not changed.size:
            return
        low, high = self.low[changed], self.high[changed]
        widths, halvings = self._widths[changed], np.zeros(len(changed), np.int64)
        widths = np.where(widths > 0, widths, (high - low) / (bins // 2))
        while (wide := np.floor(high / widths) - np.floor(low / widths) + 2 >= bins).any():
            widths, halvings = np.where(wide, 2 * widths, widths), halvings + wide
        firsts = np.floor(low / widths).astype(np.int64) - 1
        row, used = np.nonzero(self._counts[changed])
        shifts = np.minimum(halvings, _MOST_HALVINGS)[row]
        places = ((used + self._firsts[changed][row]) >> shifts) - firsts[row]
        moved = np.zeros((len(changed), bins), np.int64)
        np.add.at(moved, (row, places), self._counts[changed][row, used])
        self._counts[changed], self._widths[changed], self._firsts[changed] = moved, widths, firsts


def _bins_of(channels: int) -> int:
    """Returns the number of bins of each channel, a power of two."""
    return min(BINS, max(_FEWEST_BINS, 1 << (_MOST_BINS // channels).bit_length() - 1))


@dataclass(frozen=True)
class Grid:
    """The numbers `scale * (q - zero)` for the integers of a dtype."""

    scale: float
    zero: int
    dtype: str

    def quantized(self, values: Array) -> Array:
        """Returns the nearest numbers of the grid."""
        low, high = integer_limits(self.dtype)
        whole = np.clip(np.rint(values / self.scale) + self.zero, low, high)
        found: Array = (whole - self.zero) * self.scale
        return found

    @property
    def low(self) -> float:
        """The smallest number."""
        return (integer_limits(self.dtype)[0] - self.zero) * self.scale

    @property
    def high(self) -> float:
        """The largest number."""
        return (integer_limits(self.dtype)[1] - self.zero) * self.scale


def grid_of(low: float, high: float, dtype: str) -> Grid:
    """Returns the grid of a range, which is extended to 0, so that 0 is on the grid."""
    low, high = min(low, 0.0), max(high, 0.0)
    first, last = integer_limits(dtype)
    span = high - low
    scale = float(np.float32(max(span / (last - first), _TINY)))
    if span <= 0:
        return Grid(1.0, 0, dtype)
    return Grid(scale, int(np.clip(round(first - low / scale), first, last)), dtype)


def chosen_grid(
    found: Histogram, dtype: str, method: str, percentile: float, *, shifts: bool = False
) -> Grid:
    """Returns the grid for a distribution by a method of `scheme.METHODS`. With `shifts`, its scale
    is a power of two and its zero point 0.
    """
    if shifts:
        return _power_grid(found, dtype, method, percentile)
    if found.high <= found.low or not found.counts.any():
        return grid_of(found.low, found.high, dtype)
    if method == "minmax":
        return grid_of(found.low, found.high, dtype)
    if method == "percentile":
        return grid_of(*_percentile(found, percentile), dtype)
    loss = _divergences if method == "entropy" else _squared_error
    return _searched(found, dtype, loss)


def _power_grid(found: Histogram, dtype: str, method: str, percentile: float) -> Grid:
    ends = (found.low, found.high)
    if method == "percentile" and found.counts.any():
        ends = _percentile(found, percentile)
    largest = integer_limits(dtype)[1]
    whole = power_of_two(max(abs(ends[0]), abs(ends[1]), _TINY) / largest)
    if method in ("minmax", "percentile") or found.high <= found.low or not found.counts.any():
        return Grid(whole, 0, dtype)
    loss = _divergences if method == "entropy" else _squared_error
    grids = [Grid(whole / 2**n, 0, dtype) for n in range(_HALVINGS + 1)]
    return grids[int(np.argmin(loss(found, grids)))]


def power_of_two(least: float) -> float:
    """Returns the smallest power of two that is not less than a positive number."""
    mantissa, exponent = math.frexp(least)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def _percentile(found: Histogram, percentile: float) -> tuple[float, float]:
    share = np.cumsum(found.counts) / found.counts.sum()
    outside = 1 - percentile / 100
    first = found.first + int(np.searchsorted(share, outside, side="right"))
    last = found.first + int(np.searchsorted(share, 1 - outside, side="left"))
    low, high = found.width * first, found.width * (last + 1)
    return min(max(low, found.low), 0.0), max(min(high, found.high), 0.0)


def _searched(found: Histogram, dtype: str, loss: Loss) -> Grid:
    """Returns the best of shrunken ranges: both ends together first, then each alone."""
    best = grid_of(found.low, found.high, dtype)
    least = loss(found, [best])[0]
    ends = np.ones(2)
    for which in ((0, 1), (1,), (0,), (1,)):
        tried = np.tile(ends, (len(_SHRINKS), 1))
        tried[:, which] = _SHRINKS[:, None]
        grids = [grid_of(found.low * low, found.high * high, dtype) for low, high in tried.tolist()]
        losses = loss(found, grids)
        first = int(np.argmin(losses))
        if losses[first] < least:
            best, least, ends = grids[first], losses[first], tried[first]
    return best


def _squared_error(found: Histogram, grids: Sequence[Grid]) -> Array:
    """Returns, for each grid, the sum of the squared errors of the distribution.

    Within the range, errors of many numbers in one bin are spread evenly over a step. Beyond it,
    sums of counts, of numbers and of their squares up to each bin give the error for all bins.
    """
    centers = found.centers
    moments = np.zeros((3, len(centers) + 1))
    np.cumsum(found.counts * centers ** np.arange(3)[:, None], axis=1, out=moments[:, 1:])
    scales, lows, highs = np.array([(g.scale, g.low, g.high) for g in grids]).T
    first = np.searchsorted(centers, lows, side="left")
    last = np.searchsorted(centers, highs, side="right")

    def beyond(ends: Array, sums: Array) -> Array:
        found: Array = ends**2 * sums[0] - 2 * ends * sums[1] + sums[2]
        return np.maximum(found, 0)

    inside = moments[0, last] - moments[0, first]
    errors = beyond(lows, moments[:, first]) + beyond(highs, moments[:, -1:] - moments[:, last])
    errors += np.where(inside > 0, inside * scales**2 / 12, 0)
    fine = np.flatnonzero(found.width >= scales)  # all numbers of a bin have one error
    for n in fine.tolist():
        part = slice(first[n], last[n])
        steps = grids[n].quantized(centers[part]) - centers[part]
        errors[n] += found.counts[part] @ steps**2 - inside[n] * scales[n] ** 2 / 12
    return errors


def _divergences(found: Histogram, grids: Sequence[Grid]) -> Array:
    return np.array([_divergence(found, grid) for grid in grids])


def _divergence(found: Histogram, grid: Grid) -> float:
    """Returns the Kullback-Leibler divergence of the numbers on the grid, whose clipped ends are
    added to the outermost steps, from the numbers themselves.
    """
    centers, counts = found.centers, found.counts.astype(np.float64)
    inside = (centers >= grid.low) & (centers <= grid.high)
    if not inside.any():
        return float("inf")
    true = counts[inside].copy()
    true[0] += counts[centers < grid.low].sum()
    true[-1] += counts[centers > grid.high].sum()
    steps = min(_COARSE_BINS, len(true))
    group = np.arange(len(true)) * steps // len(true)
    kept = counts[inside]
    used = kept > 0
    total = np.bincount(group, weights=kept, minlength=steps)
    filled = np.bincount(group, weights=used, minlength=steps)
    spread = np.where(used, (total / np.maximum(filled, 1))[group], 0.0)
    p, q = true / max(true.sum(), 1), spread / max(spread.sum(), _TINY)
    where = p > 0
    return float(np.sum(p[where] * np.log(p[where] / np.maximum(q[where], _TINY))))


def weight_scales(
    weight: Array,
    channel: int | None,
    limits: tuple[int, int],
    method: str,
    *,
    shifts: bool = False,
) -> tuple[Array, Array]:
    """Returns the scales of a weight and the zero points, one per channel (or one, if `channel` is
    None). Limits that are not symmetric mean a zero point; others a zero point of 0. With `shifts`,
    scales are powers of two.
    """
    rows = weight.reshape(1, -1) if channel is None else np.moveaxis(weight, channel, 0)
    rows = rows.reshape(rows.shape[0], -1).astype(np.float64)
    low, high = limits
    if low == -high:
        whole = np.maximum(np.abs(rows).max(axis=1), np.finfo(np.float32).tiny)
        zeros = np.zeros(len(rows), np.int64)
        best = whole / high
        if shifts:
            best = np.array([power_of_two(float(b)) for b in best])
            if method == "mse":
                halves = [best / 2**n for n in range(_HALVINGS + 1)]
                best = _of_least_error(rows, halves, limits)
        elif method == "mse":
            shrinks = np.linspace(1.0, 0.6, 21)
            best = _of_least_error(rows, [whole * s / high for s in shrinks], limits)
        return best.astype(np.float32), zeros
    least, most = np.minimum(rows.min(axis=1), 0), np.maximum(rows.max(axis=1), 0)
    scale = np.maximum((most - least) / (high - low), np.finfo(np.float32).tiny)
    zeros = np.clip(np.rint(low - least / scale), low, high).astype(np.int64)
    return scale.astype(np.float32), zeros


def _of_least_error(rows: Array, scales: Sequence[Array], limits: tuple[int, int]) -> Array:
    """Returns, for each row, the scale with the least squared error; of equals, the first.

    Tries all scales on a few rows at a time, which stay in the cache.
    """
    best = np.empty(len(rows))
    few = max(1, _AT_ONCE // max(rows.shape[1], 1))
    for start in range(0, len(rows), few):
        part = slice(start, start + few)
        best[part] = _of_least_error_at_once(rows[part], [s[part] for s in scales], limits)
    return best


def _of_least_error_at_once(rows: Array, scales: Sequence[Array], limits: tuple[int, int]) -> Array:
    best, errors_of = scales[0], np.empty_like(rows)
    least = np.full(len(rows), np.inf)
    for scale in scales:
        np.divide(rows, scale[:, None], out=errors_of)
        np.rint(errors_of, out=errors_of)
        np.clip(errors_of, *limits, out=errors_of)
        errors_of *= scale[:, None]
        errors_of -= rows
        np.square(errors_of, out=errors_of)
        errors = errors_of.sum(axis=1)
        better = errors < least
        best, least = np.where(better, scale, best), np.where(better, errors, least)
    return best


def rounded(
    weight: Array, scales: Array, zeros: Array, channel: int | None, limits: tuple[int, int]
) -> Array:
    """Returns the nearest integers of a weight."""
    along = [1] * weight.ndim
    if channel is not None:
        along[channel] = -1
    scale, zero = scales.reshape(along), zeros.reshape(along)
    found: Array = np.clip(np.rint(weight / scale) + zero, *limits)
    return found
