"""The lines that loops touch, and those that come from beyond a cache."""

from __future__ import annotations

import numpy as np
import pytest

from clew.predict.addresses import Address, Addresses, Counter
from clew.predict.footprints import LINE_BYTES, Nest, footprint

_ALL = 1 << 40


def _nest(*loops: tuple[int, int], accesses: list[tuple[Address, int]]) -> Nest:
    """Returns nested loops, given by numbers and trips, with accesses in the innermost."""
    root = at = Nest(0)
    for number, trips in loops:
        inner = Nest(number, trips)
        at.inner.append(inner)
        at = inner
    at.accesses.extend(accesses)
    return root


def _address(argument: int, offset: int = 0, **strides: int) -> Address:
    """Returns an address that moves by strides with the loops `i1`, `i2` ..."""
    terms = tuple((Counter(int(name[1:])), stride) for name, stride in strides.items())
    return Address(argument, terms, offset)


def test_a_stream_touches_each_line_once() -> None:
    root = _nest((1, 256), accesses=[(_address(0, i1=32), 32)])
    found = footprint([root], [256 * 32], (1 << 10, _ALL))
    assert found.lines.sum(axis=1).tolist() == [128, 128]
    assert found.lines[0, -1] == 128  # one long run
    assert found.runs[0].tolist() == [0, 0, 1]


def test_what_does_not_fit_is_fetched_in_each_iteration() -> None:
    """The second loop reads 16 KiB, and the first repeats it."""
    root = _nest((1, 10), (2, 256), accesses=[(_address(0, i2=64), 64)])
    fits, not_ = footprint([root], [1 << 14], (1 << 15, 1 << 12)).lines.sum(axis=1)
    assert (fits, not_) == (256, 2560)


def test_columns_of_a_matrix_are_short_runs() -> None:
    """Each iteration of the first loop reads 64 bytes of each of 100 rows of 4 KiB."""
    root = _nest((1, 64), (2, 100), accesses=[(_address(0, i1=64, i2=4096), 64)])
    found = footprint([root], [100 * 4096], (_ALL,))
    assert found.lines[0].tolist() == [6400, 0, 0]


def test_windows_that_overlap_share_lines() -> None:
    """Three rows above each other, for each of 20 rows of 64 bytes: 22 rows."""
    reads = [(_address(0, offset=64 * row, i1=64), 64) for row in range(3)]
    found = footprint([_nest((1, 20), accesses=reads)], [22 * 64], (_ALL,))
    assert found.lines.sum() == 22


def test_a_divided_counter_is_two_loops() -> None:
    """A loop of 12 iterations over 3 rows and 4 columns: weights move with rows only."""
    weights = Address(0, ((Counter(1, 4), 64),), 0)
    values = Address(1, ((Counter(1, 1, 4), 640),), 0)
    found = footprint(
        [_nest((1, 12), accesses=[(weights, 64), (values, 64)])], [192, 9999], (_ALL,)
    )
    assert found.lines.sum() == 3 + 4


def test_nothing_exceeds_the_argument() -> None:
    root = _nest((1, 1000), accesses=[(_address(0, i1=LINE_BYTES), LINE_BYTES)])
    assert footprint([root], [640], (_ALL,)).lines.sum() == 10


@pytest.mark.parametrize(
    ("lines", "terms", "offset"),
    [
        (["  %v2 = mul i64 %i1, 48", "  %v3 = add i64 %v2, 5"], {Counter(1): 4 * 48}, 20),
        (["  %v2 = urem i64 %i1, 7", "  %v3 = mul i64 3, %v2"], {Counter(1, 1, 7): 12}, 0),
        (["  %v2 = udiv i64 %i1, 8", "  %v3 = udiv i64 %v2, 4"], {Counter(1, 32): 4}, 0),
        (["  %v2 = udiv i64 %i1, 8", "  %v3 = urem i64 %v2, 4"], {Counter(1, 8, 4): 4}, 0),
        (["  %v3 = sub i64 %i1, 2"], {Counter(1): 4}, -8),
    ],
)
def test_addresses_are_sums_of_counters(
    lines: list[str], terms: dict[Counter, int], offset: int
) -> None:
    read = Addresses()
    read.counts("%i1", "0", 1, 1)
    for line in (
        "  %p1 = getelementptr i64, ptr %args, i64 2",
        "  %p2 = load ptr, ptr %p1, align 8",
        *lines,
        "  %p3 = getelementptr float, ptr %p2, i64 %v3",
    ):
        read.read(line)
    found = read.of("%p3")
    assert (found.argument, dict(found.terms), found.offset) == (2, terms, offset)


def test_a_step_of_a_counter_is_a_factor() -> None:
    read = Addresses()
    read.counts("%i1", "16", 1, 8)
    read.read("  %p1 = getelementptr <8 x float>, ptr %scratch, i64 %i1")
    found = read.of("%p1")
    assert dict(found.terms) == {Counter(1): 256}
    assert found.offset == 512
    assert np.isfinite(found.argument)
