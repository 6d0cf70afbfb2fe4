"""The makespan of kernels on simulated threads."""

from __future__ import annotations

import pytest

from clew.codegen.artifact import EntryPoint
from clew.runtime.makespan import makespan


def test_equal_pieces_are_shared_evenly() -> None:
    found = makespan([EntryPoint("f", 8, 800_000.0)], 4)
    assert found.tasks >= 4
    assert found.share == pytest.approx(1 / 4)


def test_a_serial_phase_stays_as_long_as_it_is() -> None:
    entries = [EntryPoint("f", 1, 100_000.0), EntryPoint("g", 96, 300_000.0)]
    assert makespan(entries, 4).share == pytest.approx((1 + 3 / 4) / 4)


def test_fewer_pieces_than_threads_leave_threads_idle() -> None:
    found = makespan([EntryPoint("f", 3, 300_000.0)], 8)
    assert found.tasks == 3
    assert found.share == pytest.approx(1 / 3)


def test_lines_are_tasks_too() -> None:
    found = makespan([EntryPoint("f", 1, 300_000.0, lines=((30, 10_000.0),))], 8)
    assert found.tasks >= 8
    assert found.share <= 1 / 7


def test_one_thread_takes_all_the_time() -> None:
    assert makespan([EntryPoint("f", 64, 300_000.0)], 1) == (1, 1.0)


def test_threads_finish_together() -> None:
    """With 19 or 20 chunks, 8 threads would take 3 turns, the last one half idle."""
    found = makespan([EntryPoint("f", 320, 57_000.0)], 8)
    assert found == (16, pytest.approx(1 / 8))
    assert makespan([EntryPoint("f", 160, 32_000.0)], 8) == (8, pytest.approx(1 / 8))
    uneven = makespan([EntryPoint("f", 100, 1e6)], 2)
    assert uneven.tasks >= 6
    assert uneven.share == pytest.approx(1 / 2)
