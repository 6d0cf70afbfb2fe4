"""Tables that operators make of constants."""

from __future__ import annotations

import gc

import numpy as np

from clew.ops.data.made_once import made_once


def read_only(*values: int) -> np.ndarray:
    array = np.array(values)
    array.flags.writeable = False
    return array


def test_tables_of_constants_are_made_once() -> None:
    calls = []

    def make(*arrays: np.ndarray) -> int:
        calls.append(arrays)
        return len(calls)

    first, second = read_only(1), read_only(2)
    assert made_once(make, first, second) == made_once(make, first, second) == 1
    assert made_once(make, second, first) == 2
    del first
    calls.clear()
    gc.collect()
    for value in range(100):  # one of these may get the place of the first
        made_once(make, read_only(value), second)
    assert len(calls) == 100


def test_tables_of_arrays_that_may_change_are_not_kept() -> None:
    keys = np.array([1, 2])
    assert made_once(np.sum, keys) == 3
    keys[0] = 5
    assert made_once(np.sum, keys) == 7
