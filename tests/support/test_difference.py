"""Differences of values of every kind."""

from __future__ import annotations

import math

import numpy as np

from clew.support.difference import largest, relative_error, relative_length

ROW = np.array([1, 2], np.float32)


def test_parts_are_compared_one_by_one() -> None:
    value = [{"a": ROW, "b": None}, (ROW, ROW)]
    assert relative_error(value, [{"a": ROW, "b": None}, [ROW, ROW]]) == 0
    assert relative_error([{"a": ROW, "b": None}, (ROW, 2 * ROW)], value) == 1
    for other in (ROW, None, [ROW], [{"a": ROW}, (ROW, ROW)], [{"a": ROW, "b": ROW}, (ROW, ROW)]):
        assert relative_error(other, value) == relative_error(value, other) == math.inf
    assert largest(None, None, lambda a, b: 1.0) == 0


def test_numbers_with_imaginary_parts_and_texts() -> None:
    assert relative_error(ROW + 2j, ROW + 1j) == 1 / abs(2 + 1j)
    assert relative_length(ROW + 2j, ROW + 1j) == math.sqrt(2) / math.sqrt(2 + 5)
    texts = np.array(["a", "b"], object)
    assert relative_error(texts.astype(np.dtypes.StringDType()), texts) == 0
    assert relative_error(texts[::-1], texts) == math.inf
