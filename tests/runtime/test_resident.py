"""Weights move from files to memory of the process's own once a segment has run a few times."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

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
    for calls in (1, 2):
        assert resident.count_call() is None, calls
    moved = resident.count_call()
    assert moved is not None
    copy, same = moved
    assert same is own
    assert not np.shares_memory(copy, mapped)
    assert copy.ctypes.data % 64 == 0
    for array in (copy, mapped):  # what is read from the file again is there
        np.testing.assert_array_equal(array, values)
    assert resident.count_call() is None


@pytest.mark.parametrize(("value", "elements"), [("0", 1 << 20), ("1", 16)])
def test_small_arrays_or_a_setting_leave_them_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, elements: int
) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", value)
    mapped = in_file(tmp_path, np.zeros(elements, np.float32))
    resident = Resident([mapped])
    for _ in range(5):
        assert resident.count_call() is None
