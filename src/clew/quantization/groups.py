"""Integers of a matrix in groups along its input channels, each with a scale and a zero point:
scales of least error, and rounding that compensates its own errors (GPTQ).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SHRINKS: Final = np.linspace(1.0, 0.5, 11)
_ROWS: Final = 1 << 20  # elements that are tried at once: they stay in the cache
_DAMPING: Final = 0.01  # of the mean of the Gram matrix's diagonal
_BLOCK: Final = 128  # columns between updates of all columns that follow
_TINY: Final = float(np.finfo(np.float32).tiny)
_LEAST_HALF: Final = float(np.finfo(np.float16).tiny)


@dataclass(frozen=True, eq=False)
class Grouped:
    """A matrix `[N, K]` as `(integers - zeros) * scales`, with `[N, G]` scales and zero points, one
    for each group of `size` input channels. Scales may be negative; `zeros` are integers.
    """

    integers: Array
    scales: Array
    zeros: Array
    size: int

    @property
    def values(self) -> Array:
        """The numbers that the integers stand for."""
        depth = self.integers.shape[1]
        scales, zeros = (_spread(x, self.size, depth) for x in (self.scales, self.zeros))
        found: Array = ((self.integers - zeros) * scales).astype(np.float32)
        return found


def nearest(
    rows: Array,
    size: int,
    limits: tuple[int, int],
    method: str,
    *,
    symmetric: bool,
    importance: Array | None = None,
) -> Grouped:
    """Returns the nearest integers of a matrix `[N, K]`, in groups of `size` input channels.

    `minmax` takes the extremes of each group, `mse` the scale of the least squared error, weighted
    by the `importance` of input channels if given. Scales are numbers of `f16`.
    """
    count, depth = rows.shape
    groups = -(-depth // size)
    padded = np.zeros((count, groups * size), np.float32)
    padded[:, :depth] = rows
    weights = np.zeros(groups * size, np.float32)
    weights[:depth] = 1 if importance is None else importance
    weights = np.maximum(weights, _TINY).reshape(groups, size)
    flat = padded.reshape(count * groups, size)
    scales = np.empty(len(flat), np.float32)
    zeros = np.zeros(len(flat), np.float32)
    step = max(1, _ROWS // size // groups) * groups  # whole rows, so that `weights` repeat
    for first in range(0, len(flat), step):
        part = slice(first, first + step)
        values = flat[part]
        by = np.tile(weights, (len(values) // groups, 1))
        if symmetric:
            scales[part] = _symmetric(values, limits, method, by)
        else:
            scales[part], zeros[part] = _with_zeros(values, limits, method, by)
    shape = (count, groups)
    scales = _in_halves(scales)
    found = Grouped(padded, scales.reshape(shape), zeros.reshape(shape), size)
    return Grouped(_integers(rows, found, limits), found.scales, found.zeros, size)


def _in_halves(scales: Array) -> Array:
    """Returns scales rounded to `f16`, in which kernels keep them, where it has all of its digits
    for them; 1 for groups of zeros.
    """
    known = np.where(np.abs(scales) > _TINY, scales, 1).astype(np.float32)
    with np.errstate(over="ignore"):
        halves = known.astype(np.float16).astype(np.float32)
    whole = (np.abs(known) >= _LEAST_HALF) & np.isfinite(halves)
    found: Array = np.where(whole, halves, known)
    return found


def _integers(rows: Array, found: Grouped, limits: tuple[int, int]) -> Array:
    scales, zeros = (_spread(x, found.size, rows.shape[1]) for x in (found.scales, found.zeros))
    steps = np.rint(rows.astype(np.float32) / scales) + zeros
    whole: Array = np.clip(steps, *limits).astype(np.int16)
    return whole


def _spread(x: Array, size: int, depth: int) -> Array:
    found: Array = np.repeat(x, size, axis=1)[:, :depth]
    return found


def _symmetric(values: Array, limits: tuple[int, int], method: str, by: Array) -> Array:
    """Returns scales of groups without a zero point. Where one limit is larger than the other, the
    sign of the scale gives it to the side with the larger number.
    """
    low, high = -float(limits[0]), float(limits[1])
    least, most = values.min(axis=1), values.max(axis=1)
    sign: Array = np.where((-least >= most) | (low == high), 1, -1).astype(np.float32)
    larger, smaller = np.maximum(-least, most), np.maximum(np.minimum(-least, most), 0)
    scale = np.maximum(np.maximum(larger / low, smaller / high), _TINY)
    if method != "mse":
        found: Array = sign * scale
        return found
    whole = np.maximum(larger / high, _TINY)
    best, error = sign * scale, _error(values, sign * scale, 0, limits, by)
    for shrink in _SHRINKS:
        for turn in (1, -1) if low != high else (1,):
            best, error = _better(values, turn * shrink * sign * whole, best, error, limits, by)
    for _ in range(2):
        best, error = _better(values, _refit(values, best, 0, limits, by), best, error, limits, by)
    return np.asarray(best)


def _better(
    values: Array, scale: Array, best: Array, error: Array, limits: tuple[int, int], by: Array
) -> tuple[Array, Array]:
    tried = _error(values, scale, 0, limits, by)
    better = tried < error
    return np.where(better, scale, best), np.where(better, tried, error)


def _with_zeros(
    values: Array, limits: tuple[int, int], method: str, by: Array
) -> tuple[Array, Array]:
    """Returns scales and zero points of groups."""
    least, most = np.minimum(values.min(axis=1), 0), np.maximum(values.max(axis=1), 0)
    best = _grid(least, most, limits)
    if method != "mse":
        return best
    error = _error(values, *best, limits, by)
    ends = np.ones((2, len(values)), np.float32)
    for which in ((True, True), (False, True), (True, False)):
        start = ends.copy()
        for shrink in _SHRINKS[1:]:
            tried = np.where(np.array(which)[:, None], start * np.float32(shrink), start)
            grid = _grid(least * tried[0], most * tried[1], limits)
            best, error, better = _better_grid(values, grid, best, error, limits, by)
            ends = np.where(better, tried, ends)
    for _ in range(2):
        scale = _refit(values, best[0], best[1], limits, by)
        best, error, _ = _better_grid(values, (scale, best[1]), best, error, limits, by)
    return best


def _grid(least: Array, most: Array, limits: tuple[int, int]) -> tuple[Array, Array]:
    scale = np.maximum((most - least) / np.float32(limits[1] - limits[0]), _TINY)
    zero = np.clip(np.rint(limits[0] - least / scale), *limits)
    return scale.astype(np.float32), zero.astype(np.float32)


def _better_grid(
    values: Array,
    grid: tuple[Array, Array],
    best: tuple[Array, Array],
    error: Array,
    limits: tuple[int, int],
    by: Array,
) -> tuple[tuple[Array, Array], Array, Array]:
    tried = _error(values, *grid, limits, by)
    better = tried < error
    scale, zero = (np.where(better, new, old) for new, old in zip(grid, best, strict=True))
    return (scale, zero), np.where(better, tried, error), better


def _steps(values: Array, scale: Array, zero: Any, limits: tuple[int, int]) -> Array:
    """Returns integers less the zero point."""
    column = zero[:, None] if isinstance(zero, np.ndarray) else np.float32(zero)
    found = np.rint(values / scale[:, None])
    np.clip(found, limits[0] - column, limits[1] - column, out=found)
    return found


def _error(values: Array, scale: Array, zero: Any, limits: tuple[int, int], by: Array) -> Array:
    found = _steps(values, scale, zero, limits)
    found *= scale[:, None]
    found -= values
    error: Array = np.einsum("gk,gk,gk->g", found, found, by)
    return error


def _refit(values: Array, scale: Array, zero: Any, limits: tuple[int, int], by: Array) -> Array:
    """Returns the scales of least squared error for the integers that these scales give."""
    steps = _steps(values, scale, zero, limits)
    weighted = steps * by
    lengths = np.einsum("gk,gk->g", weighted, steps)
    found = np.einsum("gk,gk->g", weighted, values) / np.maximum(lengths, _TINY)
    return np.where((lengths > _TINY) & (np.abs(found) > _TINY), found, scale).astype(np.float32)


def compensated(
    rows: Array,
    start: Grouped,
    limits: tuple[int, int],
    gram: Array,
    say: Callable[[str], None],
) -> Grouped:
    """Returns the integers of a matrix `[N, K]` on the grid of `start`, of which each column's
    errors are compensated by the columns that are rounded after it, for inputs with a Gram matrix
    `[K, K]`. Columns with the largest inputs are rounded first.

    Source: Frantar et al., GPTQ, 2023; the order by size is that of its reference implementation
    (`act_order` with static groups).
    """
    depth = rows.shape[1]
    diagonal = np.diag(gram)
    order = np.argsort(-diagonal, kind="stable")
    factor = _inverse_factor(gram[np.ix_(order, order)])
    left = rows[:, order].astype(np.float32)
    scales = _spread(start.scales, start.size, depth)[:, order]
    zeros = _spread(start.zeros, start.size, depth)[:, order].astype(np.float32)
    found = np.empty(rows.shape, np.int16)
    for first in range(0, depth, _BLOCK):
        last = min(first + _BLOCK, depth)
        say(f"column {last} of {depth}")
        errors = np.empty((len(rows), last - first), np.float32)
        block = np.ascontiguousarray(left[:, first:last].T)
        for n in range(first, last):
            value, scale, zero = block[n - first], scales[:, n], zeros[:, n]
            whole = np.clip(np.rint(value / scale) + zero, *limits)
            found[:, n] = whole
            error = (value - (whole - zero) * scale) / factor[n, n]
            errors[:, n - first] = error
            block[n - first + 1 :] -= np.outer(factor[n, n + 1 : last], error)
        left[:, last:] -= errors @ factor[first:last, last:]
    integers = np.empty_like(found)
    integers[:, order] = found
    return Grouped(integers, start.scales, start.zeros, start.size)


def _inverse_factor(gram: Array) -> Array:
    """Returns the upper Cholesky factor of the inverse of a Gram matrix, damped until it exists."""
    wide = gram.astype(np.float64)
    mean = float(np.mean(np.diag(wide)))
    damping = _DAMPING * mean if mean > 0 else 1.0
    while True:
        damped = wide + damping * np.eye(len(wide))
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(damped))
            found: Array = np.linalg.cholesky(inverse.T @ inverse).T
        except np.linalg.LinAlgError:
            damping *= 10
            continue
        return found.astype(np.float32)


def output_error(rows: Array, found: Array, gram: Array) -> float:
    """Returns the sum of squared errors of the products of a matrix `[N, K]` with inputs that have
    a Gram matrix.
    """
    change = (found - rows).astype(np.float32)
    return float(np.einsum("nk,nk->", change @ gram, change, dtype=np.float64))
