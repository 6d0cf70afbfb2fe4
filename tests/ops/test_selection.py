"""The largest elements of rows are those that a stable sort puts first."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from clew.ops.math.selection import largest_places, stable_order


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "u1", "i4", "u8"])
@pytest.mark.parametrize("n", [1, 5, 64, 700, 2000])
@pytest.mark.parametrize("special", ["", "ties", "nan", "infinite"])
def test_as_a_stable_sort(dtype: str, n: int, special: str) -> None:
    kind, rng = np.dtype(dtype), np.random.default_rng(n)
    rows = rng.integers(0, 3 if special == "ties" else 120, (3, n)).astype(kind)
    if kind.kind == "f" and special in ("nan", "infinite"):
        rows[1, rng.integers(0, n, 2)] = np.nan if special == "nan" else -np.inf
    for k in {0, 1, 2, n // 2, n}:
        if k <= n:
            expected = stable_order(rows, largest=True)[:, :k]
            np.testing.assert_array_equal(largest_places(rows, k), expected)


@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8", "f2", "i1", "u2", "i4", "u4", "i8", "bool"])
@pytest.mark.parametrize("largest", [False, True])
def test_a_stable_order_puts_the_first_of_equals_first(dtype: str, largest: bool) -> None:
    rng, kind = np.random.default_rng(0), np.dtype(dtype)
    rows = rng.integers(0, 90, (2, 3, 700)).astype(kind)
    if kind.kind == "f":
        special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, -5, 1e-45, -1e-45]
        rows[0].reshape(-1)[rng.integers(0, rows[0].size, 600)] = rng.choice(special, 600)
    elif kind.kind in "iu":
        ends = [np.iinfo(kind).min, np.iinfo(kind).max]
        rows.reshape(-1)[rng.integers(0, rows.size, 600)] = rng.choice(np.array(ends, kind), 600)
    order = stable_order(rows, largest=largest)
    if largest:  # NaN come first: sort what is left out backwards
        expected = 699 - np.argsort(rows[..., ::-1], -1, kind="stable")[..., ::-1]
    else:
        expected = np.argsort(rows, -1, kind="stable")
    assert order.dtype == np.int64
    np.testing.assert_array_equal(order, expected)


def test_rows_of_equal_elements_and_of_bf16() -> None:
    np.testing.assert_array_equal(largest_places(np.full((2, 900), -np.inf), 3), [[0, 1, 2]] * 2)
    rows = np.arange(20).reshape(2, 10).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(largest_places(rows, 2), [[9, 8]] * 2)
