"""Division of lanes by a size: exact for every index and divisor up to `MOST`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sized import SizedKernel
from sized_cases import CASES, built

from clew.codegen.builder import Builder, Value
from clew.codegen.quotients import MOST, divisor_of, floor_quotient, floor_remainder
from clew.machine.target import target_of

LANES = 8
DIVISORS = (
    1, 2, 3, 5, 6, 7, 10, 49, 84, 127, 641, 4095, 4096, 65537, 10**6 + 3, 2**31 - 1, 2**31 + 11,
    2**40 + 1, 3**30, MOST // 3, MOST // 2 + 1, MOST - 1, MOST,
)  # fmt: skip


def indices_for(divisor: int) -> np.ndarray:
    """Returns indices around multiples of a divisor, including the largest, and random ones."""
    rng = np.random.default_rng(divisor)
    most = MOST // divisor
    factors = np.concatenate([[0, 1, 2, most - 1, most], rng.integers(0, most + 1, 500)])
    near = (factors[:, None] * divisor + np.arange(-2, 3)).ravel()
    few = rng.integers(0, min(4 * divisor, MOST) + 1, 499)
    found = np.concatenate([near, few, rng.integers(0, MOST + 1, 500), [MOST]])
    found = np.clip(np.concatenate([found, -found]), -MOST, MOST).astype(np.int64)
    return found[: found.size // LANES * LANES]


@pytest.mark.parametrize(
    ("divide", "reference"),
    [(floor_quotient, np.floor_divide), (floor_remainder, np.remainder)],
)
def test_lanes_divide_as_numpy(
    compile_lanes: Callable[..., Callable[..., np.ndarray]],
    divide: Callable[..., Value],
    reference: Callable[..., Any],
) -> None:
    def emit(b: Builder, args: Sequence[Value]) -> Value:
        indices, sizes = args
        size = b.value(f"extractelement {sizes.typed}, i64 0", "i64")
        return divide(b, indices, divisor_of(b, size, LANES))

    run = compile_lanes(emit, ["i64", "i64"], LANES)
    for divisor in DIVISORS:
        indices = indices_for(divisor)
        found = run(indices, np.full_like(indices, divisor))
        expected = reference(indices, divisor)
        wrong = np.flatnonzero(found != expected)
        assert not wrong.size, (divisor, indices[wrong[:4]], found[wrong[:4]], expected[wrong[:4]])


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("resize_like")])
def test_no_vector_of_indices_is_divided_lane_by_lane(case: str) -> None:
    text = SizedKernel(built(CASES[case]).function, target_of("cpu-avx512")).source.emitted.llvm
    assert not re.findall(r"= [us](?:div|rem) <", text)


def test_sizes_whose_products_are_too_large_fail_a_condition() -> None:
    kernel = SizedKernel(built(CASES["resize_like"]).function, target_of("cpu"))
    sizes = {"h": 1, "w": 1 << 24, "p": 1, "q": 1 << 24}
    assert kernel.is_valid(sizes)
    assert not kernel.is_valid({**sizes, "q": 1 << 26})
