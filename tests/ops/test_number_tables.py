"""Hash tables of numbers: kernels and NumPy find all of their numbers, and no others."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.ops.one_operator import Array, results

from clew.ops.data.lookup import hashed, places_among
from clew.ops.data.number_tables import NumberTable

_MANY = np.random.default_rng(0).permutation(60_000)
KEYS = {
    "one": np.array([7]),
    "two halves": np.array([1, 1 << 32]),
    "far apart": np.arange(-300, 300) << 40,
    "limits": np.array([-(2**63), 2**63 - 1, 0, -1]),
    "shorts": np.arange(-900, 900, 3, "i2"),
    "integers as f64": np.arange(-500.0, 500),
    "steps of f32": np.arange(500, dtype="f4") / 8,
    "tiny and infinite": np.array([5e-324, -5e-324, 0, np.inf, -np.inf]),
    "many": _MANY * 7,
}


def strangers(keys: Array) -> Array:
    if keys.dtype.kind == "f":
        nearby = np.nextafter(keys, keys.dtype.type(1))
        return np.append(nearby[~np.isin(nearby, keys)], keys.dtype.type(np.nan))
    nearby = np.concatenate([keys ^ 1, keys ^ (1 << (8 * keys.itemsize - 2))])
    return nearby[~np.isin(nearby, keys)]


@pytest.mark.parametrize("name", KEYS)
def test_all_numbers_are_found_and_no_others(name: str) -> None:
    keys = KEYS[name]
    table, others = NumberTable(keys), strangers(keys)
    assert others.size
    np.testing.assert_array_equal(table.places(keys), np.arange(keys.size))
    assert (table.places(others) == keys.size).all()


@pytest.mark.parametrize("name", [name for name in KEYS if name != "many"])
def test_kernels_find_the_same(name: str) -> None:
    keys = KEYS[name]
    slots, values, factor = hashed(keys, np.arange(keys.size), -1)
    x = np.concatenate([keys, strangers(keys)])
    (found,) = results("lookup", [x, slots, values], False, 1, factor=factor)
    np.testing.assert_array_equal(found, np.where(np.isin(x, keys), np.arange(x.size), -1))


def test_zeros_of_both_signs_are_one_number() -> None:
    table = NumberTable(np.array([0.0, 1.0]))
    np.testing.assert_array_equal(table.places(np.array([-0.0, 0.0, 1.0])), [0, 0, 1])


def test_tables_stay_small() -> None:
    assert NumberTable(_MANY).keys.size <= 5 * _MANY.size


def test_single_numbers_do_not_warn() -> None:
    table = NumberTable(np.array([3, 1 << 50]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert table.places(np.array(1 << 50)) == 1


def test_the_last_of_equal_keys_counts_and_nan_is_no_key() -> None:
    places = places_among(np.array([2.5, np.nan, 2.5, -0.0, 0.0]))
    np.testing.assert_array_equal(places(np.array([2.5, 0.0, np.nan, 1.0])), [2, 4, 5, 5])
    assert (places_among(np.array([np.nan]))(np.array([np.nan, 1.0])) == 1).all()
