"""Weights move to memory of the process's own once a segment has run a few times."""

from __future__ import annotations

import numpy as np
import pytest

from clew.runtime.resident import Resident


def test_arrays_are_copied_after_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", "1")
    arrays = [np.arange(1 << 20, dtype=np.float32), np.ones((3, 5), np.float64)]
    settled: list[list[np.ndarray]] = []
    resident = Resident(arrays, settled.append)
    for calls in (1, 2):
        resident.count_call()
        assert resident.thread is None, calls
    resident.count_call()
    assert resident.thread is not None
    resident.thread.join()
    (copies,) = settled
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)
        assert copy.dtype == array.dtype
        assert not np.shares_memory(copy, array)
        assert copy.ctypes.data % 64 == 0
    resident.count_call()
    assert len(settled) == 1


@pytest.mark.parametrize(("value", "elements"), [("0", 1 << 20), ("1", 16)])
def test_small_arrays_or_a_setting_leave_them_where_they_are(
    monkeypatch: pytest.MonkeyPatch, value: str, elements: int
) -> None:
    monkeypatch.setenv("CLEW_HUGE_PAGES", value)
    resident = Resident([np.zeros(elements, np.float32)], lambda copies: pytest.fail("copied"))
    for _ in range(5):
        resident.count_call()
    assert resident.thread is None
