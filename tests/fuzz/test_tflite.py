"""Random TFLite graphs: the same for the same seeds, and clew's results are LiteRT's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from clew.frontends.tflite.registry import CONVERTERS
from fuzz.tflite.check import case_of, check

FIRST = 1


@pytest.mark.parametrize("count", [25, pytest.param(2_000, marks=pytest.mark.exhaustive)])
def test_graphs_agree_with_litert(count: int) -> None:
    drawn: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + count):
        case, outcome = check(seed)
        assert case is not None
        assert not outcome.failed, f"seed {seed}: {outcome.kind}: {outcome.what}"
        drawn.update(case.operators)
        kinds[outcome.kind] += 1
    assert kinds["ok, compiled"]
    assert len(drawn) > 30
    assert all(CONVERTERS.find(op) for op in drawn)


def test_a_seed_is_a_graph() -> None:
    for seed in range(3):
        one, two = case_of(seed), case_of(seed)
        assert one.data == two.data
        for name, value in one.feeds.items():
            np.testing.assert_array_equal(value, two.feeds[name])
