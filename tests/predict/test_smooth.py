"""Kernel ridge regression finds smooth functions, and is kept as plain arrays."""

from __future__ import annotations

import numpy as np
import pytest

from clew.predict.smooth import Smooth, fit_smooth


def _fitted() -> Smooth:
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (300, 3))
    wanted = 0.3 * np.sin(2 * features[:, 0]) + 0.1 * features[:, 1]
    return fit_smooth(features, 3, wanted, np.ones(300))


def test_a_smooth_function_is_found() -> None:
    features = np.random.default_rng(1).uniform(-0.9, 0.9, (50, 3))
    wanted = 0.3 * np.sin(2 * features[:, 0]) + 0.1 * features[:, 1]
    assert np.abs(_fitted().predict(features) - wanted).mean() < 0.02


def test_rows_of_little_weight_matter_little() -> None:
    features = np.linspace(0, 1, 100)[:, None]
    wanted = np.where(np.arange(100) % 2, 0.1, 0.5)
    weights = np.where(np.arange(100) % 2, 1.0, 0.01)
    made = fit_smooth(features, 1, wanted, weights)
    assert np.median(made.predict(features)) == pytest.approx(0.1, abs=0.05)


def test_it_comes_back_from_its_arrays() -> None:
    made = _fitted()
    again = Smooth.of_arrays(made.arrays())
    features = np.zeros((2, 3))
    assert (made.predict(features) == again.predict(features)).all()


@pytest.mark.parametrize("name", ["mean", "deviation", "points", "weights"])
def test_arrays_that_do_not_fit_are_refused(name: str) -> None:
    arrays = _fitted().arrays()
    with pytest.raises(ValueError, match=r"fit|finite"):
        Smooth.of_arrays({**arrays, name: arrays[name][:-1]})
    with pytest.raises(ValueError, match="finite"):
        Smooth.of_arrays({**arrays, name: np.full_like(arrays[name], np.nan)})
