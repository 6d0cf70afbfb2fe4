"""Runs that another program disturbed do not count."""

from __future__ import annotations

import numpy as np
import pytest

from clew.predict.measure import Probe, Timed


def _timed(kernels: np.ndarray, share: float, calls: np.ndarray) -> Timed:
    none = np.zeros((0, kernels.shape[1]))
    runs = np.ones(kernels.shape[1], np.int64)
    return Timed(kernels, share, none, runs, calls, (Probe(1.0, 1.0, 1.0),), True)


def test_the_time_is_that_of_undisturbed_runs() -> None:
    """Each kernel takes half as long again in seven of ten runs, not always in the same ones."""
    rng = np.random.default_rng(0)
    disturbed = np.argsort(rng.random((200, 2)), axis=0) >= 60
    kernels = np.array([100.0, 50.0]) * np.where(disturbed, 1.5, 1 + rng.random((200, 2)) / 50)
    made = _timed(kernels, 0.3, np.zeros(0))
    assert made.typical == pytest.approx([100, 50], rel=0.02)
    assert made.call_ns == made.sum_ns == pytest.approx(150, rel=0.02)


def test_a_call_has_the_time_outside_the_kernels() -> None:
    kernels = np.full((20, 3), 100.0)
    made = _timed(kernels, 1.0, np.full(20, 340.0))
    assert (made.sum_ns, made.call_ns) == (300, 340)
