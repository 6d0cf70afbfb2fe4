"""Peaks of products: which unit multiplies which dtypes, and that the probes run."""

from __future__ import annotations

import pytest

from clew.machine.probes.peak import DotPeak
from clew.machine.probes.products import ProductPeaks, unit_of
from clew.machine.target import host


def test_dtypes_without_a_unit_are_multiplied_like_f32() -> None:
    peaks = ProductPeaks(123.0, 1)
    for pair in (("f32", "f32"), ("f32", "i8"), ("f64", "f64"), ("i32", "i32")):
        assert unit_of(*pair) is None
        assert peaks(*pair) == 123.0


def test_bytes_of_either_sign_have_the_same_unit() -> None:
    assert unit_of("u8", "i8") == unit_of("i8", "u8") == unit_of("i8", "i8")
    assert unit_of("u8", "i8") != unit_of("i16", "i16") or unit_of("u8", "i8") is None


@pytest.mark.parametrize("number", range(len(host().dot_units)))
@pytest.mark.parametrize("threads", [1, 2])
def test_dot_products_reach_a_rate(number: int, threads: int) -> None:
    unit = host().dot_units[number]
    rate = DotPeak(unit).gflops(threads, runs=1)
    # A core starts at most four instructions of full width in a cycle of at most 8 GHz.
    assert 0.1 < rate < threads * 4 * 8 * 2 * unit.lanes * unit.group
    peaks = ProductPeaks(1.0, threads)
    first = peaks(unit.data, unit.weight)
    assert first > 0.1
    assert peaks(unit.weight, unit.data) == first  # measured once
