"""Errors that the first samples of calibration data make certain enough."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import convolutional, drawn

import clew
from clew.quantization.feeds import feeds_of
from clew.quantization.sequences import Sequences
from clew.quantization.settled import Means, Ratios


def settled_after(spread: float, most: int = 400, samples: int = 1_000_000) -> int:
    """The samples, of so many, until ratios with this relative deviation are settled."""
    rng = np.random.default_rng(70)
    found = Ratios(2, samples)
    for count in range(1, most + 1):
        squares = rng.uniform(1, 2, 2)
        found.add(squares * 0.01 * rng.lognormal(0, spread, 2), squares)
        if found.is_settled:
            return count
    return most + 1


def test_ratios_of_equal_samples_are_settled_at_once() -> None:
    assert settled_after(0.0) == 8


def test_ratios_that_vary_take_as_many_samples_as_their_deviation_asks_for() -> None:
    # Half of the deviation over the root of the count is 0.05: 25 samples for a deviation of 0.5.
    assert 15 <= settled_after(0.5) <= 60
    assert settled_after(3.0) == 401


def test_fewer_samples_are_enough_where_few_are_left() -> None:
    # With a deviation d of the estimate, d * sqrt(1 - n / samples) is small before d is.
    alone = settled_after(1.0)
    assert settled_after(1.0, samples=alone) < 0.8 * alone
    assert settled_after(3.0, samples=40) <= 40


def test_errors_that_are_shown_need_no_more_than_a_number_of_samples() -> None:
    rng, found = np.random.default_rng(73), Ratios(1, 400)
    while not found.is_enough:
        found.add(rng.lognormal(0, 3, 1), [1.0])
    assert len(found) == 16
    assert not found.is_settled


def test_ratios_are_those_of_sums() -> None:
    found = Ratios(2, 2)
    np.testing.assert_array_equal(found.values, [0, 0])
    found.add([1, 0], [4, 0])
    found.add([3, 0], [12, 0])
    np.testing.assert_allclose(found.values, [0.5, 0])


@pytest.mark.parametrize(("noise", "is_settled"), [(0.0, True), (0.01, True), (1.0, False)])
def test_means_are_settled_if_corrections_by_them_add_little(
    noise: float, is_settled: bool
) -> None:
    rng = np.random.default_rng(71)
    found = Means(64, 1000)
    shift = rng.standard_normal(64)
    for _ in range(10):
        found.add(shift + noise * rng.standard_normal(64), float(np.mean(shift**2)) + 1.0)
    assert found.is_settled == is_settled
    np.testing.assert_allclose(found.values, shift, atol=noise + 1e-9)
    assert found.error == pytest.approx(float(np.mean(shift**2)) + 1.0)


def test_passes_that_measure_errors_end_early_and_those_of_bounds_do_not() -> None:
    passes: dict[str, list[str]] = {}
    for bounded in (False, True):
        said = passes.setdefault(str(bounded), [])
        samples = np.concatenate([drawn(4, 3, 8, 8, seed=72)] * 12)
        clew.quantize(
            convolutional(), samples, threads=1, sensitivities=bounded, on_progress=said.append
        )

    def last(said: list[str], what: str) -> str:
        return [text for text in said if text.startswith(what)][-1]

    free, bound = passes["False"], passes["True"]
    assert last(free, "ranges").startswith("ranges: sample 48 of 48")
    assert "at most" in last(free, "local errors")
    assert int(last(free, "accumulated errors").split()[3]) < 48
    assert last(bound, "accumulated errors").startswith("accumulated errors: sample 48 of 48")


@pytest.mark.parametrize("count", [1, 2, 10, 64, 97])
def test_the_first_samples_come_from_everywhere_in_the_data(count: int) -> None:
    compiled = clew.compile(convolutional(), threads=1)
    sequences = Sequences(compiled.module)
    calls = [np.full((1, 3, 8, 8), n, "f4") for n in range(count)]
    found = [int(feed["image"].flat[0]) for feed in feeds_of(compiled, calls, sequences).spread]
    assert sorted(found) == list(range(count))
    for first in (4, 8, 16):
        edges = np.append(np.sort(found[:first]), count)
        assert np.diff(edges, prepend=0).max() <= max(1, 3 * count / first)
