"""Races, with stated times instead of a clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.advice import race
from clew.advice.race import Race, per_call


class Build:
    """A program whose calls take a stated time, with noise."""

    def __init__(self, ns: float, seed: int, noise: float = 0.02) -> None:
        self.ns = ns
        self.random = np.random.default_rng(seed)
        self.noise = noise

    def turn(self, waits: bool) -> tuple[Any, Any]:
        """Returns the time of a call."""
        taken = np.array([self.ns * (1 + self.noise * self.random.standard_normal())])
        return taken, taken


@pytest.fixture(autouse=True)
def _stated(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn_of(build: Build, values: Any, threads: int) -> Any:
        return build.turn

    monkeypatch.setattr(race, "turn_of", turn_of)


def raced(old: float, new: float, seed: int = 0, **more: Any) -> race.Outcome:
    """Returns how two stated programs compare."""
    builds: Any = Build(old, 2 * seed), Build(new, 2 * seed + 1)
    calls = more.pop("calls", 1)
    return Race(seed).race((builds[0], []), (builds[1], []), calls, 5.0, **more)


@pytest.mark.parametrize("gain", [0.05, 0.3])
def test_a_gain_is_found_with_its_interval(gain: float) -> None:
    found = raced(1e6, (1 - gain) * 1e6)
    assert found.verdict == "won"
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 - gain < found.high < 1
    assert found.gain == pytest.approx(gain, abs=0.02)
    assert found.new_ns == pytest.approx((1 - gain) * 1e6, rel=0.05)


def test_equal_programs_do_not_win() -> None:
    outcomes = [raced(1e6, 1e6, seed) for seed in range(40)]
    assert all(one.verdict != "won" for one in outcomes)
    assert all(one.high is None for one in outcomes)


def test_a_slower_program_loses_in_few_turns() -> None:
    found = raced(1e6, 1.3e6)
    assert found.verdict == "lost"
    assert found.rounds < 10


def test_without_the_wish_to_win_there_is_an_interval_of_a_loss() -> None:
    found = raced(1e6, 1.1e6, to_win=False)
    assert found.low is not None
    assert found.high is not None
    assert 1 < found.low < 1.1 < found.high


def test_a_call_of_several_samples_counts_by_sample() -> None:
    found = raced(1e6, 2e6, calls=4)
    assert found.verdict == "won"
    assert found.ratio == pytest.approx(0.5, abs=0.02)
    taken, clean = per_call(lambda waits: (np.array([8.0]), np.array([4.0])), 4)(True)
    assert (taken[0], clean[0]) == (2.0, 1.0)
