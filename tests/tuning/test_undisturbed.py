"""Candidates are timed on an undisturbed core."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew.ir.module import Module
from clew.runtime.cache import Cache
from clew.runtime.pieces import Pieces
from clew.tuning.screening import ratios
from clew.tuning.sequential import Demand
from clew.tuning.whole import filled, quantiles
from clew.tuning.workbench import Timed, Workbench


def _build(module: Module, tmp_path: Path) -> Workbench:
    return Workbench(clew.compile(module, threads=1, tuned=None), Cache(tmp_path / "cache"))


def test_disturbed_calls_do_not_count(module: Module, tmp_path: Path) -> None:
    bench = _build(module, tmp_path)
    timed = Timed(bench.base, bench.values)
    rows = iter([(100.0, True), (900.0, False), (110.0, True)])
    uses = len(bench.base.uses)

    def run(values: object, *, waits: bool) -> tuple[np.ndarray, np.ndarray]:
        ns, good = next(rows)
        return np.full(uses, ns), np.full(uses, good)

    timed.calls = 3
    timed._pieces.run = run  # type: ignore[method-assign, assignment]
    taken, undisturbed = timed.turn(bench.values)
    np.testing.assert_array_equal(taken, np.full(uses, 110.0))
    np.testing.assert_array_equal(undisturbed, np.full(uses, 105.0))
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

    def turn(self: Timed, values: object) -> tuple[np.ndarray, np.ndarray]:
        nonlocal turns
        turns += 1
        ns = 100.0 if self is bench.timed({}) else 50.0
        found = np.full(len(bench.base.uses), 1e3 * ns)
        return found, found * np.nan if turns % 4 == 0 else found

    monkeypatch.setattr(Timed, "turn", turn)
    lane = {kernel.subject: other}
    (found,) = bench.measured({}, [lane], Demand(most=10), until_decided=False)
    assert found.pairs == 5  # of ten turns of both
    assert found.ratio == 0.5
    never = np.full(len(bench.base.uses), np.nan)
    monkeypatch.setattr(Timed, "turn", lambda *_: (never, never))
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
        uses = len(self.places)
        taken = np.arange(uses, dtype=float) + 1.0
        return (taken, np.full(uses, True)) if runs == 3 else (taken / 9, np.full(uses, False))

    monkeypatch.setattr(Pieces, "run", run)
    choices = ["", next(iter(kernel.neighbors(kernel.default)))]
    operands = bench._verifier.operands(kernel.subject)
    function = bench.functions[kernel.subject]
    assert ratios(function, operands, choices, bench.options, bench.cache) == [1.0, 1.5]
