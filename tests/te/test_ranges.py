"""Ranges of integers in tensor expressions."""

from __future__ import annotations

import pytest

from clew import te
from clew.ir.dims import Dim, SymDim
from clew.te.ranges import UNKNOWN, Range, range_of
from clew.te.tensor import Tensor

N = SymDim.symbol("n")


def _of(body: te.Scalar, given: Range = UNKNOWN) -> Range:
    return range_of(te.compute((), lambda: body, "made"), lambda _: given)


X = te.placeholder((N, 3), "bool", "x")
K = te.placeholder((), "i64", "k")
AXES = [te.reduce_axis(N, "a"), te.reduce_axis(3, "b")]


def _counted() -> te.Scalar:
    return te.reduce("sum", te.cast("i64", X[tuple(AXES)]), AXES)


@pytest.mark.parametrize(
    ("body", "given", "wanted"),
    [
        (_counted(), UNKNOWN, Range(0, 3 * N)),
        (K[()], Range(2, 9), Range(2, 9)),
        (K[()] + 1, Range(2, 9), Range(3, 10)),
        (5 - K[()], Range(2, 9), Range(-4, 3)),
        (te.minimum(K[()], te.size(N)), UNKNOWN, Range(None, N)),
        (te.maximum(K[()], 0), UNKNOWN, Range(0, None)),
        (te.minimum(te.maximum(K[()], 0), 7), UNKNOWN, Range(0, 7)),
        (te.select(K[()] > 4, K[()], te.as_scalar(-1)), Range(0, 6), Range(-1, 6)),
        (te.maximum(K[()], 0) // 2, Range(-3, 9), Range(0, 4)),
        (K[()] // 2, Range(-3, 9), UNKNOWN),
        (K[()] * 2, Range(2, 9), UNKNOWN),
        (te.cast("i64", te.cast("i8", K[()])), Range(0, 1000), UNKNOWN),
        (te.cast("i64", te.cast("bool", K[()])), UNKNOWN, Range(0, 1)),
    ],
)
def test_ranges(body: te.Scalar, given: Range, wanted: Range) -> None:
    assert _of(body, given) == wanted


def test_stages_and_floats() -> None:
    counts = te.compute((4,), lambda i: te.select(i < 2, te.as_scalar(3), te.as_scalar(5)), "c")
    place = te.reduce_axis(4, "place")
    total = te.compute((), lambda: te.sum(counts[(place,)], place), "total")
    assert range_of(total, lambda _: UNKNOWN) == Range(0, 20)
    floats = te.placeholder((), "f32", "f")

    def never(_: Tensor) -> Range:
        raise AssertionError

    assert range_of(floats, never) == UNKNOWN


def test_bounds_are_dimensions() -> None:
    high: Dim | None = _of(_counted()).high
    assert high == 3 * N
