"""How a token is chosen from logits: penalties, draws, and draws with a draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.generation.choice import Choice
from clew.generation.options import Options
from clew.generation.scores import checked_logits, drawn, narrowed, penalized, probabilities

_DRAWS = 8000


def choice(seed: int = 0, **options: Any) -> Choice:
    return Choice(Options(**options).checked(), 2, np.random.default_rng(seed))


def test_penalties_count_new_tokens() -> None:
    logits = np.zeros(5, "f4")
    tokens = [4, 4, 1, 1, 2]  # the first two are the prompt
    options = {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    chances = choice(**options).chances(logits, tokens)
    np.testing.assert_allclose(np.log(chances / chances[0]), [0, -1, -0.75, 0, 0], atol=1e-6)


def test_draws_have_their_probabilities() -> None:
    chances = np.array([0.1, 0, 0.6, 0.3, 0])
    rng = np.random.default_rng(1)
    counts = np.bincount([drawn(chances, rng) for _ in range(_DRAWS)], minlength=5)
    assert counts[1] == counts[4] == 0
    np.testing.assert_allclose(counts / _DRAWS, chances, atol=0.02)


@pytest.mark.parametrize("certain", [True, False])
def test_drafts_change_no_probability(certain: bool) -> None:
    rng = np.random.default_rng(2)
    logits, other = rng.standard_normal((2, 6)).astype("f4")
    chooses, guesses = choice(3, temperature=0.7), choice(4, temperature=1.4)
    expected, of_draft = chooses.chances(logits, [0, 0]), guesses.chances(other, [0, 0])
    counts = np.zeros(6)
    for n in range(_DRAWS):
        guess = n % 6 if certain else guesses.draw(of_draft)
        chances = None if certain else of_draft
        counts[chooses.verified(logits, [0, 0], guess, chances)] += 1
    np.testing.assert_allclose(counts / _DRAWS, expected, atol=0.02)


def test_a_seed_gives_the_same_draws_everywhere() -> None:
    rng = np.random.Generator(np.random.PCG64([7, 0]))
    found = [drawn(np.full(100, 0.01), rng) for _ in range(8)]
    assert found == SEEDED


SEEDED = [62, 89, 77, 22, 30, 87, 0, 82]


def test_extreme_options_leave_the_best_token() -> None:
    logits = np.array([1, 3, 2], "f4")
    for options in ({"temperature": 1e-40}, {"top_p": 0.0}, {"min_p": 1.0}, {"top_k": 1}):
        kept = narrowed(logits, Options(**options).checked())
        assert np.argmax(kept) == 1, options
        assert choice(**options).token(logits, [0, 0]) == 1


@pytest.mark.filterwarnings("error")
def test_penalties_keep_scores_finite() -> None:
    most, least = float(np.finfo("f4").max), float(np.finfo("f4").tiny)
    for options in (
        {"repetition_penalty": least},
        {"repetition_penalty": most},
        {"presence_penalty": most, "frequency_penalty": most},
        {"presence_penalty": -most, "frequency_penalty": -most},
    ):
        logits = np.array([1e30, -3e38, 0, -np.inf], "f4")
        given = Options(**options).checked()
        found = penalized(logits, [0, 1, 2, 3, 3], 1, given)
        assert np.isfinite(found[:3]).all(), options
        assert found[3] == -np.inf
        assert np.isfinite(probabilities(found)).all()


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(clew.ClewError) as caught:
        checked_logits(np.array([1, np.nan], "f4"))
    assert caught.value.code == "I489"
