"""Lanes at positions of a table, which mostly ascend: two vectors are permuted, not gathered."""

from __future__ import annotations

import re

import numpy as np
import pytest
from guarded import run

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.ir.types import to_numpy
from clew.loop.interpret import interpret
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.machine.target import host, target_of
from clew.runtime.guard import GuardSide
from clew.schedules.plan import schedule_kernel
from clew.te.roles import TABLE


def selected(size: int, out: int, dtype: str) -> Nest:
    """Reads the elements of a line at positions that a table computes from an input."""
    x, at = te.placeholder((3, size), dtype, "x"), te.placeholder((out,), "i64", "at")

    def held(o: te.Scalar) -> te.Scalar:
        return te.minimum(te.maximum(at[o], 0), size - 1)

    places = te.compute((out,), held, "places", role=TABLE)
    return lower("near", [x, at], [te.compute((3, out), lambda i, j: x[i, places[j]], "y")])


@pytest.mark.parametrize("dtype", ["f32", "i32", "f64", "u8"])
@pytest.mark.parametrize(
    ("size", "out", "way"),
    [
        (40, 80, "up"), (61, 37, "down"), (33, 32, "down"), (400, 50, "down"), (9, 100, "up"),
        (70, 70, "back"), (70, 48, "any"), (1, 33, "up"), (64, 3, "down"),
    ],
)  # fmt: skip
def test_elements_in_any_order(size: int, out: int, way: str, dtype: str) -> None:
    """Only the elements between the first and the last lane are read."""
    rng = np.random.default_rng(size + out)
    at = np.arange(out) * size // out
    if way == "back":
        at = at[::-1].copy()
    elif way == "any":
        at = rng.integers(0, size, out)
        at[16:32] = [30, *rng.integers(0, 40, 14), 40]  # not all between the first and the last
    nest, target = selected(size, out, dtype), host()
    x = rng.integers(0, 100, (3, size)).astype(to_numpy(dtype))
    scheduled = schedule_kernel(nest, target).schedule.finished()
    (wanted,) = interpret(nest, [x, at])
    for side in GuardSide:
        np.testing.assert_array_equal(run(scheduled, [x, at], target, side, 1), wanted)


@pytest.mark.parametrize(("name", "permutes"), [("cpu-avx512", True), ("cpu-avx2", False)])
def test_a_permutation_where_there_is_one(name: str, permutes: bool) -> None:
    target = target_of(name)
    nest = schedule_kernel(selected(50, 100, "f32"), target).schedule.finished()
    made = emit_kernel(nest, print_nest(nest), "near", target)
    assert bool(re.search(r"call .*vpermi2var\.ps", made.llvm)) == permutes
    assert "masked.gather" in made.llvm
