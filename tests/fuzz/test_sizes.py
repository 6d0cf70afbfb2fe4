"""Models whose sizes data decide: what is drawn is valid, and clew agrees with the others."""

from __future__ import annotations

import onnxruntime
import pytest

from fuzz.check import OK
from fuzz.sizes import case_of, check

SEEDS = [pytest.param(n, marks=[pytest.mark.exhaustive] if n else []) for n in range(40)]
SIXTIES = [pytest.param(n, marks=[pytest.mark.exhaustive] if n else []) for n in range(0, 600, 60)]


@pytest.mark.parametrize("first", SIXTIES)
def test_models_are_valid(first: int) -> None:
    for seed in range(first, first + 8):
        case = case_of(seed)
        onnxruntime.InferenceSession(case.model.SerializeToString())
        assert len(case.calls) >= 5


@pytest.mark.parametrize("seed", SEEDS)
def test_results_agree(seed: int) -> None:
    outcome = check(seed)
    assert outcome.kind == OK, outcome.what
