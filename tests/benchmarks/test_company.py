"""Timing beside other processes."""

import os
import time
from pathlib import Path

import pytest

import company

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_processes_keep_a_core_busy_and_end(count: int) -> None:
    with company.company(CORES[-1], count) as pids:
        assert len(pids) == count
        before = company._cpu_ns(pids)
        for pid in pids:
            assert os.sched_getaffinity(pid) == {CORES[-1]}
        deadline = time.monotonic() + 60
        while pids and company._cpu_ns(pids) == before:
            assert time.monotonic() < deadline, "they do not compute"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_time_of_a_call_is_that_of_its_function(rounds: int) -> None:
    runs = {"long": lambda: time.sleep(0.02), "short": lambda: time.sleep(0.002)}
    found = company.mean_ms(runs, rounds, 0.01, [])
    assert list(found) == ["long", "short"]
    assert found["long"] >= 20
    assert found["short"] >= 2
