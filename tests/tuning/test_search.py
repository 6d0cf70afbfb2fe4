"""Candidates are new, apart from each other, and ranked by what was learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clew.predict.features import NUMBERS
from clew.records import Trial
from clew.support.errors import InputError
from clew.tuning.ranking import Ranker
from clew.tuning.search import Forecast, Search
from clew.tuning.tunable import Knob, Tunable, changed, difference, setting
from clew.tuning.workbench import neighbors_of


def kernel(subject: str, places: tuple[int, ...], ns: float = 1e5, rows: int = 8) -> Tunable:
    knobs = (
        Knob("conv", "relu", "rows", rows, (1, 2, 4, 8, 14)),
        Knob("conv", "relu", "vectors", 2, (1, 2, 4)),
        Knob("elementwise", "add", "vectors", 1, (1, 2)),
    )
    default = f"conv@relu: rows={rows} vectors=2; elementwise@add: vectors=1"
    names = tuple(f"k{place}" for place in places)
    facts = dict.fromkeys(NUMBERS, 1000.0)
    return Tunable(subject, names, ((subject,),) * len(places), places, default, knobs, ns, facts)


def trial(subject: str, choices: str, ratio: float, state: str, **more: Any) -> Trial:
    given = {"version": "v", "schedule": "", "total_ratio": ratio, **more}
    return Trial(subject, choices, state, kind="kernel", machine="m", threads=1, **given)


def test_choices_are_changed_one_by_one() -> None:
    one = kernel("a", (0,))
    assert one.size == 30
    near = list(one.neighbors(one.default))
    assert len(near) == len(set(near)) == 4 + 2 + 1
    default = one.values(one.default)
    for choices in near:
        pairs = zip(one.values(choices), default, strict=True)
        assert sum(a != b for a, b in pairs) == 1
    new = changed(one.default, one.knobs[2], 2)
    assert (setting(new, one.knobs[2]), setting(new, one.knobs[1])) == (2, 2)
    assert difference(new, one.default) == "vectors 1→2"
    assert difference(one.default, one.default) == "the default choices"
    assert one.with_values(one.values(new)) == new


def test_no_candidate_is_tried_twice() -> None:
    kernels = [kernel("a", (0, 4)), kernel("b", (1,)), kernel("c", (2,)), kernel("d", (3,))]
    search = Search(kernels, [], "v")
    seen: set[tuple[str, str]] = set()
    assert search.left == 4 * 29
    for _ in range(200):
        proposed = search.propose(20)
        assert len(proposed) <= 20
        if not proposed:
            break
        for subject, choices in proposed:
            assert (subject, choices) not in seen
            assert choices != search.states[subject].kernel.default
            seen.add((subject, choices))
            search.note(trial(subject, choices, 1.2, "lost"))
    assert len(seen) == 4 * 29  # everything was tried, and the search ended
    assert search.left == 0


def test_neighbors_are_those_before_and_after_any_use() -> None:
    near = neighbors_of(["a", "b", "c", "d", "a"])
    assert near == {"a": {*"abd"}, "b": {*"abc"}, "c": {*"bcd"}, "d": {*"acd"}}


def test_kernels_far_from_their_roof_are_tried_first() -> None:
    far = replace(kernel("far", (0,)), headroom=0.6)
    near = replace(kernel("near", (1,)), headroom=0.02)
    first = [Search([far, near], [], "v", seed).propose(1)[0][0] for seed in range(60)]
    assert first.count("far") > 48


def test_records_are_taken_up_again() -> None:
    kernels = [kernel("a", (0,)), kernel("b", (2,))]
    better = "conv@relu: rows=4 vectors=2; elementwise@add: vectors=1"
    best = "conv@relu: rows=4 vectors=4; elementwise@add: vectors=1"
    old = "conv@relu: rows=1 vectors=1; elementwise@add: vectors=1"
    records = [
        trial("a", better, 0.9, "won"),
        trial("a", best, 0.8, "won"),
        trial("a", old, 0.3, "won", version="older"),
        trial("a", "rows@relu: partial=2", 0.1, "won"),
        trial("a", "=;=", 0.1, "won"),
        trial("a", better.replace("rows=4", "rows=5"), 0.1, "won"),
        trial("a", better.replace("vectors=2;", "vectors=x;"), 0.1, "won"),
        trial("b", better, 1.1, "lost"),
        trial("z", better, 0.1, "won"),
        trial("b", best, None, "crashed"),  # type: ignore[arg-type]
    ]
    search = Search(kernels, records, "v")
    assert search.incumbents == {"a": best}
    assert search.ratio_of("a", best) == 0.8
    assert search.ratio_of("a", better) == 0.9
    assert search.ratio_of("a", kernels[0].default) == 1.0
    assert old not in search.states["a"].tried  # other code may be faster, or not
    proposed = search.propose(100)
    assert [choices for subject, choices in proposed if subject == "a"] == [old]
    assert {better, best} <= search.states["b"].tried


def test_kernels_of_no_weight_are_left_alone() -> None:
    search = Search([kernel("a", (0,)), kernel("b", (2,), ns=10.0)], [], "v")
    assert {subject for subject, _ in search.propose(30)} == {"a"}


@pytest.mark.parametrize("library", [True, False])
def test_the_ranking_learns_from_other_kernels(
    monkeypatch: pytest.MonkeyPatch, library: bool
) -> None:
    if not library:

        def absent(*_: Any) -> Any:
            raise InputError("I180", "scikit-learn is not installed")

        monkeypatch.setattr("clew.tuning.ranking.fit_forest", absent)
    random = np.random.default_rng(0)
    kernels = [kernel(str(n), (2 * n,), rows=int(random.choice([2, 4, 8]))) for n in range(8)]
    ranker = Ranker(kernels)

    def truth(one: Tunable, choices: str) -> float:
        rows, vectors, _ = one.values(choices)
        return 0.6 + 0.1 * abs(np.log2(rows) - 2) + 0.2 * abs(vectors - 4)

    unseen = kernels[-1]
    pool = list(unseen.neighbors(unseen.default))
    assert (ranker.ratios(unseen, pool) == 1.0).all()
    for one in kernels[:-1]:
        for _ in range(25):
            values = [int(random.choice(knob.options)) for knob in one.knobs]
            choices = one.with_values(values)
            ranker.add(one, choices, truth(one, choices) * float(random.normal(1.0, 0.01)))
    ranker.train()
    everything = [
        unseen.with_values([r, v, e]) for r in (1, 2, 4, 8, 14) for v in (1, 2, 4) for e in (1, 2)
    ]
    predicted = ranker.ratios(unseen, everything)
    actual = np.array([truth(unseen, choices) for choices in everything])
    assert np.corrcoef(predicted, actual)[0, 1] > 0.8
    assert actual[np.argsort(predicted)[:4]].mean() < np.quantile(actual, 0.3)


def test_the_forecast_assumes_that_the_next_doubling_gains_half_of_the_last() -> None:
    forecast = Forecast()
    assert forecast.gain(600) is None
    for trials in (0, 10, 20, 40):
        forecast.add(trials, 1e6 * 0.9 ** (trials / 10))
    assert forecast.gain(600) is None  # too few trials
    for trials in (80, 160, 320):
        forecast.add(trials, 1e6 * 0.9 ** np.log2(trials))
    assert forecast.gain(320) == pytest.approx(1 - 0.9**0.5, rel=0.01)
    assert forecast.gain(0) == 0.0  # no candidate is left
    forecast.add(640, forecast.ns[-1])
    assert forecast.gain(600) == pytest.approx(0.0)


def test_early_gains_do_not_count_in_the_forecast() -> None:
    forecast = Forecast()
    for trials, ns in ((0, 2e6), (30, 1e6), (100, 1e6), (200, 1e6)):
        forecast.add(trials, ns)
    assert forecast.gain(1000) == 0.0
