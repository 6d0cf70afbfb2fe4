"""Times of two builds: what counts as a difference, and that layers share out what kernels take."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew.compare.state import Side
from clew.compare.times import measure, timing

from .conftest import Array, Network, Write


def series(middle: float, spread: float, count: int = 21) -> Array:
    return middle + spread * np.linspace(-1, 1, count)


def test_a_difference_counts_beyond_its_spread() -> None:
    assert timing(series(100, 1), series(110, 1)).differs
    faster = timing(series(100, 1), series(90, 1)[::-1])
    assert faster.differs
    assert faster.ratio == pytest.approx(0.9)
    noisy = timing(series(100, 1), series(110, 30))
    assert not noisy.differs
    assert noisy.spread == pytest.approx(29)


def test_a_difference_in_every_round_counts_whatever_its_size() -> None:
    wild = np.array([2.0, 3.0, 50.0, 150.0, 200.0])
    assert timing(np.ones(15), np.tile(wild, 3)).differs
    assert not timing(np.ones(5), wild).differs  # five may be chance
    assert not timing(np.full(15, 2.5), np.tile(wild, 3)).differs


def test_noise_that_hits_both_alike_hides_nothing() -> None:
    weather = series(0, 50)
    assert timing(100 + weather, 110 + weather).differs


def test_differences_of_a_few_percent_do_not_count() -> None:
    assert not timing(series(100, 0), series(102, 0)).differs
    assert not timing(series(0, 0), series(0, 0)).differs
    assert timing(series(0, 0), series(1, 0)).differs


def test_layers_share_out_what_kernels_take(write: Write, feed: dict[str, Array]) -> None:
    path = write(Network())
    models = [clew.compile(path, threads=1), clew.compile(path, threads=1, opt_level=0)]
    sides = [Side(model) for model in models]
    said: list[str] = []
    times = measure(sides, [[feed["x"]]] * 2, 2, said.append)
    assert times.rounds == 2
    assert "timing, round 2 of 2" in said
    for side, found in zip(sides, (times.a, times.b), strict=True):
        assert set(found.kernels) == {use.name for use in side.build.uses}
        layers = sum(found.of_layer(name) for name in side.layers)
        np.testing.assert_allclose(layers, found.of_kernels(list(found.kernels)), rtol=1e-6)
