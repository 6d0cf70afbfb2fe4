"""How long ago operands were used: in bytes touched since, and in cycles."""

from __future__ import annotations

import numpy as np

from clew.predict.program import AGES, DISTANCES, Surroundings, Touch, surroundings_of

_BIG = 8 << 20


def _arena(kind: str, start: int, size: int) -> Touch:
    return Touch(kind, (0,), start, size)


def _steps(size: int) -> list[list[Touch]]:
    """Returns a step that writes a value, and one that reads it and writes a little."""
    return [
        [Touch("constant", (0, "constant", 0, 0), 0, 64), _arena("written", 0, size)],
        [_arena("value", 0, size), _arena("written", size, 64)],
    ]


def _second(size: int, cycles: float) -> Surroundings:
    return surroundings_of(_steps(size), [size + 4096], [cycles, cycles], 1 << 19)[1]


def test_a_large_value_was_written_its_own_size_ago() -> None:
    (n,) = np.flatnonzero(_second(_BIG, 1e6).touched["value"])
    assert _BIG / 2 <= DISTANCES[n - 1] < _BIG + 64 <= 2 * DISTANCES[n]


def test_a_small_value_is_near() -> None:
    assert _second(512, 1e6).touched["value"][0] == 512


def test_the_age_is_the_time_that_kernels_compute() -> None:
    (n,) = np.flatnonzero(_second(_BIG, 1e6).aged["value"])
    assert AGES[n - 1] < 1e6 <= AGES[n]
    (n,) = np.flatnonzero(_second(_BIG, 2e7).aged["value"])
    assert AGES[n - 1] < 2e7 <= AGES[n]


def test_values_in_near_caches_do_not_age() -> None:
    assert not any(_second(512, 1e6).aged["value"])
