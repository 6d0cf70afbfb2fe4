"""Runs that another program disturbed do not count."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

import clew
from clew.machine.probes.quiet import Quiet
from clew.predict.measure import Machine, Probe, Timed, _measured, _Subject, time_program
from clew.runtime.pieces import Pieces


def _timed(kernels: np.ndarray, share: float, calls: np.ndarray, inside: np.ndarray) -> Timed:
    none = np.zeros((0, kernels.shape[1]))
    runs = np.ones(kernels.shape[1], np.int64)
    shares = np.full(kernels.shape[1], share)
    return Timed(kernels, shares, none, runs, calls, inside, (Probe(1.0, 1.0, 1.0),), True)


def test_the_time_is_that_of_undisturbed_runs() -> None:
    """Each kernel takes half as long again in seven of ten runs, not always in the same ones."""
    rng = np.random.default_rng(0)
    disturbed = np.argsort(rng.random((200, 2)), axis=0) >= 60
    kernels = np.array([100.0, 50.0]) * np.where(disturbed, 1.5, 1 + rng.random((200, 2)) / 50)
    made = _timed(kernels, 0.3, np.zeros(0), np.zeros(0))
    assert made.typical == pytest.approx([100, 50], rel=0.02)
    assert made.call_ns == made.sum_ns == pytest.approx(150, rel=0.02)
    assert len(made.of_kernel(0)) == 60
    assert made.of_kernel(0).max() < 103
    assert made.of_kernel(1).max() < 51.5


def test_a_call_has_the_time_outside_the_kernels() -> None:
    kernels = np.full((20, 3), 100.0)
    made = _timed(kernels, 1.0, np.array([480.0, 350.0, 500.0]), np.array([330.0, 310.0, 450.0]))
    assert (made.sum_ns, made.call_ns) == (300, 340)
    faster = _timed(kernels, 1.0, np.array([300.0]), np.array([310.0]))
    assert faster.call_ns == 300


class _Told(Quiet):
    """Watches by a script of answers at the borders of pieces; no begin is disturbed."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self._answers = answers

    def begin(self) -> bool:
        return True

    def is_so(self) -> bool:
        return next(self._answers)


def _program() -> clew.CompiledModel:
    return clew.compile(
        clew.parse(
            "clew 1\n"
            'def @main(%x: f32[16, 64]) -> (f32[16, 64],) with outputs=["y"] {\n'
            "  %0 = exp(%x)\n  %1 = nn.softmax(%0)\n  %2 = (%1,)\n  return %2\n}\n"
        ),
        threads=1, passes=clew.Passes(fuse=False),
    )  # fmt: skip


class _Probed(Machine):
    """A machine with a scripted core, whose speed is not measured."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self.watcher = _Told(answers)

    def probe(self, threads: int) -> Probe:
        return Probe(1.0, 1.0, 1.0)


def test_runs_go_on_until_enough_of_each_kernel_were_undisturbed() -> None:
    compiled = _program()
    arrays = [np.ones((16, 64), np.float32)]
    # Each run looks before and after its only piece: every second one ends disturbed.
    made = time_program(compiled.build, arrays, _Probed(n % 4 != 3 for n in count()), turns=2)
    assert made.steady
    rows = len(made.kernels)
    assert rows > 10
    assert made.share == pytest.approx(10 / rows)
    assert [len(made.of_kernel(n)) for n in range(2)] == [10, 10]
    assert (made.typical > 0).all()
    assert len(made.calls) == len(made.inside) == 10
    assert made.inside.min() < made.calls.min()


def test_where_the_core_is_disturbed_the_fastest_run_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clew.predict.measure._MOST_TURN_S", 0.05)
    arrays = [np.ones((16, 64), np.float32)]
    made = time_program(_program().build, arrays, _Probed(False for _ in count()), turns=1)
    assert not made.steady
    assert (made.share == 0).all()
    assert (made.typical == made.kernels.min(axis=0)).all()


def test_waiting_takes_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 0.0, 0

    class Slow(_Told):
        def begin(self) -> bool:
            nonlocal now, waits
            now += 0.8
            waits += 1
            return False

    def run(self: Pieces, arrays: object, *, waits: bool = True) -> tuple[np.ndarray, np.ndarray]:
        nonlocal now
        now += 0.1
        return np.full(2, 0.1e9), np.full(2, False)

    subject = _Subject(_program().build, [np.ones((16, 64), np.float32)], Slow(iter(())))
    monkeypatch.setattr(Pieces, "run", run)
    monkeypatch.setattr("clew.predict.measure.time.perf_counter", lambda: now)
    times, good = _measured(subject, np.ones(2, np.int64), turns=4, long=True)
    assert len(times) == len(good) > 40
    assert 0.4 * now < 0.8 * waits < 0.6 * now
