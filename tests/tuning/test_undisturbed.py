"""Times that something else disturbed do not count, unless all are disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.ir.module import Module
from clew.machine.probes.sentinel import Sentinel
from clew.runtime.cache import Cache
from clew.tuning import undisturbed
from clew.tuning.screening import ratios
from clew.tuning.sequential import Demand
from clew.tuning.undisturbed import Pieces, Quiet
from clew.tuning.workbench import Timed, Workbench, filled, quantiles

from .conftest import Trusting


class _Scripted(Sentinel):
    """A sentinel that finds the core undisturbed or not, as told."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self.answers = answers

    def undisturbed(self) -> bool:
        return next(self.answers)

    def wait(self, most_s: float) -> bool:
        return next(self.answers)


class _Told(Trusting):
    """Watches by a script: one answer for each look."""

    def __init__(self, *answers: bool) -> None:
        self.answers = iter(answers)

    def is_so(self) -> bool:
        return next(self.answers)


def test_where_the_core_is_always_disturbed_all_times_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(undisturbed.time, "perf_counter", lambda: now)
    monkeypatch.setattr(undisturbed, "_interruptions", lambda: 0)
    answers = [False] * 4 + [True] + [False] * (undisturbed._PATIENCE + 1) + [True]
    quiet = Quiet(_Scripted(iter(answers)))
    waits = [quiet.begin() for _ in range(5 + undisturbed._PATIENCE)]
    assert waits == [False] * 4 + [True] + [False] * undisturbed._PATIENCE  # in vain
    assert quiet.begin()  # without a look at the core
    assert quiet.is_so()
    now = undisturbed._DISTURBED_S + 1
    assert not quiet.is_so()
    assert quiet.begin()


def test_an_interruption_is_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 3, 4, 4])
    monkeypatch.setattr(undisturbed, "_interruptions", lambda: next(counts))
    quiet = Quiet(_Scripted(iter([True] * 9)))
    assert [quiet.is_so() for _ in range(3)] == [True, False, True]


def _build(module: Module, tmp_path: Path) -> Workbench:
    return Workbench(clew.compile(module, threads=1, tuned=None), Cache(tmp_path / "cache"))


def test_a_piece_counts_if_it_began_and_ended_undisturbed(module: Module, tmp_path: Path) -> None:
    bench = _build(module, tmp_path)
    (segment,) = bench.base.segments
    count = len(segment.plan.steps)
    assert count >= 3
    pieces = Pieces(bench.base, _Told(True, False, True, True))
    pieces.divide(np.full(len(bench.base.uses), undisturbed._PIECE_NS / (count - 2)))
    assert pieces._ends == [[count - 2]]
    taken, good = pieces.run(bench.values[0])
    assert (taken > 0).all()
    steps = np.array([use.step for use in bench.base.uses])
    assert (good == (steps >= count - 2)).all()


def test_disturbed_calls_do_not_count(module: Module, tmp_path: Path) -> None:
    bench = _build(module, tmp_path)
    timed = Timed(bench.base, bench.values)
    rows = iter([(100.0, True), (900.0, False), (110.0, True)])
    uses = len(bench.base.uses)

    def run(values: object) -> tuple[np.ndarray, np.ndarray]:
        ns, good = next(rows)
        return np.full(uses, ns), np.full(uses, good)

    timed.calls = 3
    timed._pieces.run = run  # type: ignore[method-assign, assignment]
    np.testing.assert_array_equal(timed.turn(bench.values), np.full(uses, 105.0))
    found = quantiles([np.array([1.0, np.nan]), np.array([3.0, np.nan])])
    np.testing.assert_array_equal(found, [2.0, np.nan])
    np.testing.assert_array_equal(filled(found, np.array([7.0, 8.0])), [2.0, 8.0])


def test_disturbed_turns_are_no_turns(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = _build(module, tmp_path)
    kernel = next(k for k in bench.tunables() if "conv2d" in k.name)
    other = next(iter(kernel.neighbors(kernel.default)))
    turns = 0

    def turn(self: Timed, values: object) -> np.ndarray:
        nonlocal turns
        turns += 1
        ns = 100.0 if self is bench.timed({}) else 50.0
        return np.full(len(bench.base.uses), np.nan if turns % 4 == 0 else 1e3 * ns)

    monkeypatch.setattr(Timed, "turn", turn)
    lane = {kernel.subject: other}
    (found,) = bench.measured({}, [lane], Demand(most=10), until_decided=False)
    assert found.pairs == 5  # of ten turns of both
    assert found.ratio == 0.5
    monkeypatch.setattr(Timed, "turn", lambda *_: np.full(len(bench.base.uses), np.nan))
    (found,) = bench.measured({}, [lane], Demand(most=3))
    assert (found.state, found.pairs, found.ratio) == ("undecided", 0, None)


def test_candidates_are_timed_alone_while_the_core_is_undisturbed(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = _build(module, tmp_path)
    kernel = next(k for k in bench.tunables() if "conv2d" in k.name)
    runs = 0

    def run(self: Pieces, values: object) -> tuple[np.ndarray, np.ndarray]:
        nonlocal runs
        runs += 1
        uses = len(self.build.uses)
        taken = np.arange(uses, dtype=float) + 1.0
        return (taken, np.full(uses, True)) if runs == 3 else (taken / 9, np.full(uses, False))

    monkeypatch.setattr(Pieces, "run", run)
    choices = ["", next(iter(kernel.neighbors(kernel.default)))]
    operands = bench._verifier.operands(kernel.subject)
    function = bench.functions[kernel.subject]
    assert ratios(function, operands, choices, bench.options, bench.cache) == [1.0, 1.5]
