"""Weights move from files to memory of the process's own once a segment has run a few times."""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import clew.runtime.resident
from clew.runtime.resident import Resident


def in_file(folder: Path, values: np.ndarray) -> np.ndarray:
    path = folder / "weights"
    path.write_bytes(b"head" * 16 + values.tobytes())
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(pages, values.dtype, offset=64)


def test_what_lies_in_a_file_is_copied_after_a_few_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", "1")
    values = np.arange(3 << 20, dtype=np.float32)
    mapped, own = in_file(tmp_path, values), np.ones((3, 5))
    resident = Resident([mapped, own])
    for calls in (1, 2):  # the third starts the copy, which may end within it
        assert resident.count_call() is None, calls
    moved = until_moved(resident)
    copy, same = moved
    assert same is own
    assert not np.shares_memory(copy, mapped)
    assert copy.ctypes.data % 64 == 0
    for array in (copy, mapped):  # what is read from the file again is there
        np.testing.assert_array_equal(array, values)
    assert resident.count_call() is None
    assert resident.settle() is None


def until_moved(resident: Resident) -> list[np.ndarray]:
    """Counts calls until one of them gets the copies."""
    ends = time.monotonic() + 30
    while (moved := resident.count_call()) is None:
        assert time.monotonic() < ends
        time.sleep(0.001)
    return moved


def test_a_call_does_not_wait_for_the_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", "1")
    go_on = threading.Event()
    release = clew.runtime.resident.release_pages

    def held(array: np.ndarray, file: mmap.mmap) -> None:
        assert go_on.wait(30)
        release(array, file)

    monkeypatch.setattr("clew.runtime.resident.release_pages", held)
    resident = Resident([in_file(tmp_path, np.ones(1 << 20, np.float32))])
    for _ in range(20):
        assert resident.count_call() is None
    go_on.set()
    assert len(until_moved(resident)) == 1


def test_what_settles_waits_for_the_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", "1")
    for calls in range(5):
        resident = Resident([in_file(tmp_path, np.ones(1 << 20, np.float32))])
        taken = [resident.count_call() for _ in range(calls)]
        moved = [*taken, resident.settle()]
        assert len([m for m in moved if m is not None]) == 1, calls
        assert resident.settle() is None


@pytest.mark.parametrize(("value", "elements"), [("0", 1 << 20), ("1", 16)])
def test_small_arrays_or_a_setting_leave_them_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, elements: int
) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", value)
    mapped = in_file(tmp_path, np.zeros(elements, np.float32))
    resident = Resident([mapped])
    for _ in range(5):
        assert resident.count_call() is None
