"""Comparisons that bounds decide."""

from __future__ import annotations

import math
import operator

import pytest

from clew.ir.dims import SymDim
from clew.loop.bounds import decided

N = SymDim.symbol("n")
HOLDS = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("op", HOLDS)
def test_numbers_decide_what_holds_for_all_of_them(op: str) -> None:
    for low in range(-2, 3):
        for high in range(low, 3):
            found = {HOLDS[op](value, 0) for value in range(low, high + 1)}
            wanted = found.pop() if len(found) == 1 else None
            assert decided(op, low, high, ()) == wanted


def test_sizes_decide_by_their_bounds_and_facts() -> None:
    assert decided("lt", -N, N * -1, ()) is True
    assert decided("ge", N - 2, N, ()) is None
    assert decided("ge", N - 2, N, (N - 2,)) is True
    assert decided("ne", N, math.inf, ()) is True
    assert decided("eq", N, math.inf, ()) is False
    assert decided("le", -math.inf, math.inf, ()) is None
