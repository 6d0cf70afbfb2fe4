"""Dimensions computed by Python code, against `Sizes`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from clew.ir.dim_code import DimArrays, DimCode, DimLists
from clew.ir.dims import Dim, Sizes, SymDim, dim_max, dim_min

NAMES = ("n", "m", "k")


def drawn(draw: random.Random, depth: int) -> Dim:
    """A dimension of random operations; its divisors are at least 1."""
    if depth == 0:
        return SymDim.symbol(draw.choice(NAMES)) if draw.random() < 0.7 else draw.randint(-9, 9)
    a, b = drawn(draw, depth - 1), drawn(draw, depth - 1)
    by = dim_max(b, 1)
    return draw.choice([a + b, a - b, a * b, a // by, a % by, dim_min(a, b), dim_max(a, b)])


@pytest.mark.parametrize("seed", range(60))
def test_values_are_those_of_sizes(seed: int) -> None:
    draw = random.Random(seed)
    made = [drawn(draw, draw.randint(1, 4)) for _ in range(30)]
    dims = [dim for dim in made if isinstance(dim, SymDim)]
    code = DimCode(dims)
    for _ in range(10):
        by_name = {name: draw.choice([1, 2, 3, 7, 64, 1000, 1 << 40]) for name in NAMES}
        plain, fast = Sizes(by_name), code.at(by_name)
        assert [fast.value(dim) for dim in dims] == [plain.value(dim) for dim in dims]
        assert fast.by_name == by_name
        assert fast.value(SymDim.symbol("n") + 1) == by_name["n"] + 1  # not one of them


def test_a_division_by_zero() -> None:
    n = SymDim.symbol("n")
    dim = 12 // (n - 3)
    assert isinstance(dim, SymDim)
    code = DimCode([dim])
    assert code.at({"n": 5}).value(dim) == 6
    for _ in range(20):  # at first without compiled code
        with pytest.raises(ZeroDivisionError):
            code.at({"n": 3})
    assert code.at({"n": 5}).value(dim) == 6


def test_no_dimensions() -> None:
    assert DimCode([]).at({"n": 3}).value(SymDim.symbol("n")) == 3


def test_lists_of_dimensions() -> None:
    n, m = SymDim.symbol("n"), SymDim.symbol("m")
    lists = DimLists([n * m, 3], [], [(n + 1) // 2, m % n, dim_max(n, m)])
    assert lists.at({"n": 5, "m": 7, "other": 1}) == [[35, 3], [], [3, 2, 7]]
    with pytest.raises(KeyError):
        lists.at({"n": 5})


@pytest.mark.parametrize("seed", range(20))
def test_many_sizes_at_once(seed: int) -> None:
    draw = random.Random(seed)
    dims = [drawn(draw, draw.randint(1, 3)) for _ in range(20)]
    sizes = np.array([[draw.choice([1, 2, 3, 7, 64]) for _ in range(9)] for _ in range(2)])
    found = DimArrays(dims).at({"n": sizes[0], "m": 5, "k": sizes[1]}, 9)
    for column, (n, k) in enumerate(sizes.T.tolist()):
        at = Sizes({"n": n, "m": 5, "k": k})
        assert found[:, column].tolist() == [at.value(dim) for dim in dims]
