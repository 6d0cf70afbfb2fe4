"""A core that something else uses is noticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clew.machine.probes import quiet, sentinel
from clew.machine.probes.quiet import Quiet
from clew.machine.probes.sentinel import Sentinel


class _Scripted(Sentinel):
    """A sentinel whose loop takes given times."""

    def __init__(self, times: Iterator[int]) -> None:
        self._times = times
        self._best_ns = next(times)

    def _took_ns(self) -> int:
        return next(self._times)


def test_a_slow_loop_is_a_disturbance() -> None:
    made = _Scripted(iter([1000, 1040, 1400, 900, 1000]))
    assert [made.undisturbed() for _ in range(4)] == [True, False, True, False]


def test_the_sentinel_waits_for_an_undisturbed_moment() -> None:
    assert _Scripted(iter([1000, 1500, 1500, 1001])).wait(60.0)
    assert not _Scripted(iter([1000, *[1500] * 10**6])).wait(0.01)


def test_the_loop_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "_CALIBRATED_AFTER_S", 0.01)
    assert 0 < Sentinel()._took_ns() < 1e9


class _Told(Sentinel):
    """A sentinel that finds the core undisturbed or not, as told."""

    def __init__(self, answers: Iterator[bool]) -> None:
        self.answers = answers

    def undisturbed(self) -> bool:
        return next(self.answers)

    def wait(self, most_s: float) -> bool:
        return next(self.answers)


def test_where_the_core_is_always_disturbed_all_times_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(quiet.time, "perf_counter", lambda: now)
    monkeypatch.setattr(quiet, "_interruptions", lambda: 0)
    answers = [False] * 4 + [True] + [False] * (quiet._PATIENCE + 1) + [True]
    watcher = Quiet(_Told(iter(answers)))
    waits = [watcher.begin() for _ in range(5 + quiet._PATIENCE)]
    assert waits == [False] * 4 + [True] + [False] * quiet._PATIENCE  # in vain
    assert watcher.begin()  # without a look at the core
    assert watcher.is_so()
    now = quiet._GIVES_UP_S + 1
    assert not watcher.is_so()
    assert watcher.begin()


def test_an_interruption_is_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 3, 4, 4])
    monkeypatch.setattr(quiet, "_interruptions", lambda: next(counts))
    watcher = Quiet(_Told(iter([True] * 9)))
    assert [watcher.is_so() for _ in range(3)] == [True, False, True]


def test_where_it_is_not_lenient_it_only_stops_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(quiet.time, "perf_counter", lambda: now)
    monkeypatch.setattr(quiet, "_interruptions", lambda: 0)
    waits: list[float] = []

    class Never(Sentinel):
        def __init__(self) -> None:
            pass

        def undisturbed(self) -> bool:
            return False

        def wait(self, most_s: float) -> bool:
            waits.append(most_s)
            return False

    watcher = Quiet(Never(), lenient=False)
    assert not any(watcher.begin() for _ in range(quiet._PATIENCE + 2))
    assert not watcher.is_so()
    assert [most > 0 for most in waits] == [True] * quiet._PATIENCE + [False] * 2
    now = quiet._GIVES_UP_S + 1
    watcher.begin()
    assert waits[-1] > 0
