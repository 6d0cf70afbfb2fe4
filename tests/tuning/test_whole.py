"""Whole calls are compared by a clock that is not to be trusted: its speed changes all the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.module import Module
from clew.records import Store
from clew.tuning import whole
from clew.tuning.whole import Turn, Whole, compared, estimate, of_rounds
from clew.tuning.workbench import Timed

KERNELS = np.array([60.0, 30.0, 10.0])


def _random(seed: int, stays: float) -> Iterator[float]:
    """Yields speeds that change by up to half, each after some turns."""
    rng = np.random.default_rng(seed)
    while True:
        speed = 1.0 + rng.random() / 2
        yield speed
        while rng.random() < stays:
            yield speed


CLOCKS: dict[str, Callable[[int], Iterator[float]]] = {
    "every second turn is slow": lambda seed: cycle([1.0, 1.5]),
    "as slowly as rounds that alternate": lambda seed: cycle([1.0, 1.5, 1.5, 1.0]),
    "blocks of ten": lambda seed: cycle([1.0] * 10 + [1.5] * 10),
    "ever slower": lambda seed: iter(1.0 + np.arange(1000) / 50),
    "every turn is another": lambda seed: _random(seed, 0.0),
    "random blocks": lambda seed: _random(seed, 0.9),
}


def _whole(clock: Iterator[float], ratio: float, seed: int, *, trusted: bool = True) -> Whole:
    def program(ns: np.ndarray) -> Turn:
        def turn(waits: bool) -> tuple[np.ndarray, np.ndarray]:
            taken = ns * next(clock)
            return taken, taken * (1.0 if trusted else np.nan)

        return turn

    return compared(program(KERNELS), program(KERNELS * ratio), 24, 1e6, seed)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rounds than those wanted, and one turn of each program in them."""
    monkeypatch.setattr(whole, "_TIMES_ROUNDS", 1)
    monkeypatch.setattr(whole, "_MOST_TURNS", 1)


@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
def test_an_equal_program_is_not_reported_as_faster(
    clock: Callable[[int], Iterator[float]], short: None
) -> None:
    """One of forty intervals lies on this side of the truth by chance."""
    seeds = range(100)
    verdicts = [_whole(clock(seed), 1.0, seed, trusted=seed % 2 > 0).verdict for seed in seeds]
    assert verdicts.count("won") <= 0.06 * len(seeds)


@pytest.mark.parametrize(
    "clock", [CLOCKS["random blocks"], CLOCKS["blocks of ten"], CLOCKS["ever slower"]]
)
def test_a_faster_program_is_reported_as_faster(
    clock: Callable[[int], Iterator[float]], short: None
) -> None:
    for seed in range(30):
        found = _whole(clock(seed), 0.9, seed, trusted=seed % 2 > 0)
        assert found.verdict == "won"
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 0.91
        assert found.high >= 0.89
        slower = _whole(clock(seed), 1 / 0.9, seed)
        assert slower.verdict == "lost"


def test_an_interval_is_that_of_the_signed_rank_test() -> None:
    """24 values: sums of ranks up to 81 have 5 % of the probability, both sides together."""
    values = np.random.default_rng(3).normal(0.2, 1.0, 24)
    center, low, high = estimate(values)
    means = sorted((a + b) / 2 for n, a in enumerate(values) for b in values[n:])
    assert (low, high) == (means[81], means[-82])
    assert center == pytest.approx(np.median(means))
    assert estimate(values[:5])[1:] == (-math.inf, math.inf)
    assert estimate(values[:6])[1:] == (values[:6].min(), values[:6].max())


def test_disturbed_kernels_count_with_other_rounds() -> None:
    rounds = [(row, row) for row in (KERNELS * speed for speed in [1.0, 1.5] * 6)]
    new = [(row * 0.9, row * 0.9) for row, _ in rounds]
    new[0] = 10 * new[0][0], np.where([False, False, True], np.nan, new[0][1])
    found = of_rounds(rounds, new)
    assert (found.rounds, found.undisturbed, found.verdict) == (12, 12, "won")
    # A round without most of its kernels does not count.
    new[1] = new[1][0], np.where([True, False, False], np.nan, new[1][1])
    found = of_rounds(rounds, new)
    assert (found.rounds, found.undisturbed) == (11, 11)
    # If there are only few others, all count as they were, in both programs.
    never = [(row, np.where([True, False, False], np.nan, row)) for row, _ in new[1:]]
    found = of_rounds(rounds[1:], never)
    assert (found.rounds, found.undisturbed, found.ratio) == (11, 0, pytest.approx(0.9))
    assert of_rounds(rounds[:5], rounds[:5]) == Whole(rounds=5)
    assert "were not compared" in str(Whole(rounds=5))


def test_turns_are_repeated_for_disturbed_kernels() -> None:
    turns = iter([[60.0, np.nan, 10.0], [99.0, 30.0, 99.0]] * 8)

    def old(waits: bool) -> tuple[np.ndarray, np.ndarray]:
        clean = np.array(next(turns))
        return np.where(np.isnan(clean), 45.0, clean), clean

    found = compared(old, lambda waits: (KERNELS, KERNELS), rounds=8, seconds=1e6)
    assert (found.old_ns, found.undisturbed) == (100.0, 8)


def test_it_waits_for_undisturbed_moments_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    asked: list[bool] = []

    def turn(waits: bool) -> tuple[np.ndarray, np.ndarray]:
        nonlocal now
        now += 2.0 if waits else 0.5
        asked.append(waits)
        return KERNELS, KERNELS if waits else KERNELS * np.nan

    monkeypatch.setattr(whole.time, "perf_counter", lambda: now)
    assert compared(turn, turn, rounds=10, seconds=20.0).rounds >= 10
    assert 20.0 <= now <= 24.0
    assert 0 < sum(asked) < 20
    asked.clear()
    assert compared(turn, turn, rounds=10, seconds=100.0).undisturbed == 10
    assert all(asked)
    assert compared(turn, turn, rounds=10, seconds=2.0).rounds == 1


def test_an_outcome_is_said_plainly() -> None:
    gain = str(Whole(74.1e6, 0.9, 0.88, 0.93, 24))
    assert gain == "whole calls: 74.100 → 66.690 ms (7.0 to 12.0 % saved)"
    loss = str(Whole(74.1e6, 1.1, 1.05, 1.12, 24))
    assert loss == "whole calls became slower: 74.100 → 81.510 ms (5.0 to 12.0 % more)"
    none = str(Whole(74.1e6, 0.98, 0.95, 1.02, 24))
    assert none == (
        "whole calls show no gain: 74.100 ms, between 2.0 % more and 5.0 % less with the best "
        "choices"
    )


@pytest.mark.parametrize(
    ("ratio", "verdict", "said"),
    [(1.0, "undecided", "whole calls show no gain: "), (0.9, "won", "whole calls: ")],
)
def test_a_session_says_whether_whole_calls_gained(
    tmp_path: Path, module: Module, lawful: None, monkeypatch: pytest.MonkeyPatch,
    ratio: float, verdict: str, said: str,
) -> None:  # fmt: skip
    clock = _random(0, 0.9)

    def turn(self: Timed, values: object, *, waits: bool = True) -> Any:
        tuned = any(use.call.op.attrs.get("tuned") for use in self.build.uses)  # type: ignore[union-attr]
        found = np.full(len(self.build.uses), 1e4) * next(clock) * (ratio if tuned else 1.0)
        return found, found

    monkeypatch.setattr(Timed, "turn", turn)
    path, told = tmp_path / "t.db", list[str]()
    report = clew.tune(
        module, minutes=2, trials=14, database=path, threads=1, on_progress=told.append
    )
    assert report.tally is not None
    found = report.tally.whole
    assert found is not None
    assert found.verdict == verdict
    assert told[-1].startswith(said)
    assert said in str(report)
    assert report.to_json()["session"]["whole"]["verdict"] == verdict
    with Store(path) as store:
        (session,) = store.sessions("model", store.trials()[0].machine, 1)
    assert (session.before_ns, session.after_ns) == (found.old_ns, found.new_ns)
