"""Elements counted in bins by native code."""

from __future__ import annotations

import numpy as np
import pytest

from clew.quantization.counting import count_in_bins


@pytest.mark.parametrize(
    ("shape", "bins"),
    [
        ((2, 3, 1100), 64),  # lines of several blocks, in copies of the bins
        ((1, 2, 515), 512),
        ((2, 3, 61), 64),  # lines shorter than the bins
        ((1, 2, 40), 12),  # bins that do not fill vectors
        ((5, 19, 1), 32),  # rows of channels
    ],
)
def test_each_element_is_counted_once(shape: tuple[int, int, int], bins: int) -> None:
    rng = np.random.default_rng(0)
    values = np.maximum(rng.standard_normal(shape), -0.5).astype(np.float32)
    values[..., -1] = 30  # beyond the bins: counted in the last one
    factors = np.linspace(3, 5, shape[1])
    firsts = np.floor(-0.5 * factors) - 1
    counts = np.ones((shape[1], bins), np.int64)
    count_in_bins(values, factors, firsts, counts)
    places = values.astype(np.float64) * factors[:, None] - firsts[:, None]
    found = np.minimum(places.astype(np.int64), bins - 1)
    for channel, row in enumerate(counts):
        wanted = np.bincount(found[:, channel].ravel(), minlength=bins) + 1
        np.testing.assert_array_equal(row, wanted)


def test_damaged_numbers_are_counted_somewhere() -> None:
    values = np.full((1, 1, 64), np.nan, np.float32)
    values[0, 0, :3] = np.inf, -np.inf, -1e30
    counts = np.zeros((1, 8), np.int64)
    count_in_bins(values, np.ones(1), np.zeros(1), counts)
    assert counts.sum() == 64
