"""The sequential test stops early where the answer is clear, and is rarely wrong."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from clew.tuning.sequential import Comparison, Demand, evidence, quantile


def _decide(demand: Demand, ratio: float, noise: float, seed: int, ns: float = 1e5) -> Comparison:
    random = np.random.default_rng(seed)
    found = Comparison(demand)
    while found.verdict is None:
        outlier = 3.0 if random.random() < 0.1 else 1.0
        new = ratio * ns * outlier * math.exp(noise * random.standard_normal())
        found.add(new, ns * math.exp(noise * random.standard_normal()))
    return found


def test_the_evidence_is_the_beta_mixture_over_an_even_chance() -> None:
    for wins, turns in ((0, 0), (3, 3), (2, 5), (7, 20)):
        step = 1e-4
        p = np.arange(step / 2, 1, step)
        prior = 1.0 / (math.pi * np.sqrt(p * (1 - p)))
        mixture = float((prior * p**wins * (1 - p) ** (turns - wins)).sum() * step)
        assert evidence(wins, turns) == pytest.approx(math.log(mixture * 2.0**turns), abs=0.02)


@pytest.mark.parametrize("level", [0.01, 0.1])
def test_without_a_difference_it_seldom_sees_one(level: float) -> None:
    demand = Demand(margin=0.0, margin_ns=0.0, level=level, most=200)
    found = Counter(_decide(demand, 1.0, 0.05, seed).verdict for seed in range(400))
    # The outliers make the new one slower, if anything.
    assert found["won"] <= 400 * level + 3 * math.sqrt(400 * level)


@pytest.mark.parametrize("noise", [0.001, 0.03])
def test_clear_answers_come_early(noise: float) -> None:
    for seed in range(40):
        gain, loss = (_decide(Demand(), ratio, noise, seed) for ratio in (0.7, 1.5))
        assert gain.verdict == "won"
        assert loss.verdict == "lost"
        assert gain.turns < 45
        assert loss.turns < 20
        assert gain.ratio == pytest.approx(0.7, rel=0.2)


def test_gains_below_the_margin_do_not_win() -> None:
    verdicts = {_decide(Demand(margin=0.05), 0.97, 0.002, seed).verdict for seed in range(30)}
    assert "won" not in verdicts
    assert _decide(Demand(margin=0.05), 0.92, 0.002, 0).verdict == "won"
    # Twenty nanoseconds of a hundred are not told from none.
    assert _decide(Demand(), 0.85, 0.001, 0, ns=100.0).verdict == "lost"
    assert _decide(Demand(), 0.85, 0.001, 0, ns=1000.0).verdict == "won"


def test_the_largest_number_of_turns_is_kept() -> None:
    found = Comparison(Demand(margin=0.0, margin_ns=0.0, most=7))
    for turn in range(7):
        assert found.verdict is None
        found.add(100.0 + (-1) ** turn, 100.0)
    assert found.verdict == "undecided"


def test_quantiles_are_interpolated() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.25) == 1.25
    assert math.isnan(quantile([], 0.5))


def test_a_program_that_wins_too_few_turns_is_given_up() -> None:
    found = Comparison(Demand(most=60, patience=12))
    for turn in range(12):
        assert found.verdict is None
        found.add(80.0e3 if turn % 2 else 99.5e3, 100.0e3)
    assert found.verdict == "undecided"
    patient = Comparison(Demand(most=60, patience=30), found.new_ns, found.old_ns)
    assert patient.verdict is None
