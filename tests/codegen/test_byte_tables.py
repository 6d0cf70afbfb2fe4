"""Lookups of bytes in tables of 256, in whole vectors, remainders and tails of sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guarded import run

from clew import te
from clew.loop.lower import lower
from clew.machine.target import Target, host
from clew.ops.math.quantization import apply_table
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel


def without_permutations() -> Target:
    """Returns this machine as if it had no instruction for such lookups."""
    here = host()
    return replace(here, features=here.features.replace("+avx512vbmi", "-avx512vbmi"))


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("size", [1, 7, 64, 100, 257])
@pytest.mark.parametrize(("dtype", "to"), [("u8", "u8"), ("i8", "u8"), ("i8", "i8"), ("u8", "f32")])
@pytest.mark.parametrize("target", [host, without_permutations], ids=["host", "gathers"])
def test_tables(target: Any, dtype: str, to: str, size: int, side: GuardSide) -> None:
    x, table = te.placeholder((3, size), dtype, "x"), te.placeholder((256,), to, "table")
    nest = lower("look", [x, table], [apply_table.compute(x, table)])
    draw = np.random.default_rng(size)
    kinds = {"u8": np.uint8, "i8": np.int8, "f32": np.float32}
    values = draw.integers(0, 256, (3, size)).astype(np.uint8)
    entries = draw.integers(0, 256, 256).astype(np.uint8)
    found = entries.view(kinds[to]) if to != "f32" else entries.astype(np.float32)
    schedule = schedule_kernel(nest, target()).schedule
    arrays = [values.view(kinds[dtype]), found]
    got = run(schedule.nest, arrays, target(), side, 1)
    np.testing.assert_array_equal(got, found[values])
