"""Code for sizes that follow from counts computes what `Sizes` does, within its intervals."""

from __future__ import annotations

import random

import pytest

from clew.codegen.driver import sizes as native
from clew.ir.dims import Dim, Sizes, SymDim, ceil_div, dim_max, dim_min
from clew.runtime.size_code import SizeCode, TooLarge

OPERATIONS = {
    native.ADD: lambda a, b: a + b,
    native.MULTIPLY: lambda a, b: a * b,
    native.DIVIDE: lambda a, b: a // b,
    native.REMAINDER: lambda a, b: a % b,
    native.LEAST: min,
    native.MOST: max,
}
N, COUNT, OTHER = (SymDim.symbol(name, 0) for name in ("n", "?1", "?2"))


def drawn(rng: random.Random, depth: int) -> Dim:
    """Returns an expression of a size and two counts."""
    if depth == 0:
        return rng.choice([N, COUNT, OTHER, rng.randrange(9)])
    a, b = drawn(rng, depth - 1), drawn(rng, depth - 1)
    match rng.randrange(6):
        case 0:
            return a + b
        case 1:
            return a - b
        case 2:
            return a * b
        case 3:
            return ceil_div(a, rng.randrange(1, 20))
        case 4:
            return a % rng.randrange(1, 20)
    return rng.choice([dim_min, dim_max])(a, b)


def run(code: SizeCode, counts: list[int]) -> list[int]:
    """Returns the registers after all stages."""
    registers = list(code.initial)
    registers[: len(counts)] = counts
    for stage in code.stages:
        for one in stage:
            left, right = registers[one.left], registers[one.right]
            registers[one.result] = OPERATIONS[one.operation](left, right)
    return registers


@pytest.mark.parametrize("seed", range(20))
def test_code_and_intervals(seed: int) -> None:
    rng = random.Random(seed)
    limits, size = [rng.randrange(1, 90) for _ in range(2)], rng.randrange(20)
    dims = [drawn(rng, 3) for _ in range(6)]
    code = SizeCode({"n": size}, [{"?1": limits[0]}, {"?2": limits[1]}])
    places = [code.register(dim) for dim in dims]
    for _ in range(30):
        counts = [rng.randint(0, limit) for limit in limits]
        registers = run(code, counts)
        sizes = Sizes({"n": size, "?1": counts[0], "?2": counts[1]})
        assert [registers[p] for p in places] == [sizes.value(dim) for dim in dims]
        for value, (low, high) in zip(registers, code.intervals, strict=True):
            assert low <= value <= high


def test_a_stage_needs_only_counts_that_are_known() -> None:
    code = SizeCode({}, [{"?1": 9}, {"?2": 9}])
    code.register(COUNT * 3 + 1)
    code.register(COUNT * OTHER)
    known = {0}
    for stage, instructions in enumerate(code.stages[1:], 1):
        known |= {code.first[stage - 1]} | {n for n, s in enumerate(code.stage_of) if s == 0}
        for one in instructions:
            assert {one.left, one.right} <= known
            known.add(one.result)


@pytest.mark.parametrize("dim", [COUNT * COUNT * COUNT, 7 // COUNT, COUNT % (COUNT - 3)])
def test_values_that_may_not_fit(dim: Dim) -> None:
    with pytest.raises(TooLarge):
        SizeCode({}, [{"?1": 1 << 40}]).register(dim)
