"""Nests of several ways to compute the same results, of which sizes select one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.ir.dims import Dim, SymDim, dim_max, dim_min, value_at
from clew.loop.either import either
from clew.loop.interpret import interpret
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.loop.sizes import at_sizes
from clew.machine.target import host

N = SymDim.symbol("n")
M = SymDim.symbol("m")
LARGE = dim_max(dim_min(N * M - 11, 1), 0)
"""1 if n * m is at least 12, else 0."""


def scaled(factor: float, like: Nest | None = None, *, tile: int = 0) -> Nest:
    """The rows of x times a factor, by stages of their own, so that loops differ."""
    x = te.placeholder((M, N), "f32", "x")
    first = te.compute((M, N), lambda i, j: x[i, j] * 0.5, "half")
    result = te.compute((M, N), lambda i, j: first[i, j] * (2 * factor), "out")
    schedule = Schedule(lower("scaled", [x], [result], like))
    if tile:
        schedule.inline("half")
        schedule.split("out.j", tile, tail="shrink")
        schedule.parallel("out.i")
    return schedule.finished()


def run(nest: Nest, m: int, n: int) -> tuple[Any, Any]:
    x = np.arange(1, m * n + 1, dtype=np.float32).reshape(m, n)
    (found,) = interpret(at_sizes(nest, {"m": m, "n": n}), [x])
    return x, found


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 11), (1, 12), (3, 4), (2, 5), (11, 1), (7, 9)])
def test_sizes_select_the_way(m: int, n: int) -> None:
    """The ways differ in their results here, to tell them apart."""
    first = scaled(2.0, tile=4)
    nest = either([(first, LARGE), (scaled(3.0, first), 1 - LARGE)])
    x, found = run(nest, m, n)
    np.testing.assert_array_equal(found, x * (2.0 if m * n >= 12 else 3.0))


def test_there_may_be_more_than_two() -> None:
    first = scaled(2.0, tile=4)
    tiny = 1 - dim_min((N - 1) // 3, 1)  # n up to 3
    ways: list[tuple[Nest, Dim]] = [
        (first, (1 - tiny) * LARGE),
        (scaled(3.0, first), (1 - tiny) * (1 - LARGE)),
        (scaled(4.0, first, tile=3), tiny),
    ]
    nest = either(ways)
    for n, factor in ((1, 4.0), (3, 4.0), (4, 3.0), (5, 3.0), (6, 2.0), (40, 2.0)):
        x, found = run(nest, 2, n)
        np.testing.assert_array_equal(found, x * factor)


def test_one_way_is_its_nest() -> None:
    nest = scaled(2.0)
    assert either([(nest, 1)]) is nest


def test_a_way_may_see_its_arguments_in_other_shapes() -> None:
    first = scaled(2.0, tile=4)
    other = Schedule(scaled(3.0))
    other.flatten("half", "out", first=0)
    nest = either([(first, LARGE), (other.finished(), 1 - LARGE)])
    for m, n in ((1, 11), (3, 4), (2, 5), (7, 9)):
        x, found = run(nest, m, n)
        np.testing.assert_array_equal(found, x * (2.0 if m * n >= 12 else 3.0))


def test_ways_use_the_memory_of_the_first() -> None:
    nest = either([(scaled(2.0), LARGE), (scaled(3.0), 1 - LARGE)])
    for m, n in ((1, 3), (5, 9)):
        x, found = run(nest, m, n)
        np.testing.assert_array_equal(found, x * (2.0 if m * n >= 12 else 3.0))


def test_temporaries_need_no_memory_at_sizes_of_another_way() -> None:
    first, second = scaled(2.0), scaled(3.0, scaled(2.0))
    nest = either([(first, LARGE), (second, 1 - LARGE)])
    kept, other = (b for b in nest.temporaries if b.scope == "workspace")
    for n, used in ((3, (0, 1)), (12, (1, 0))):
        assert (
            value_at(kept.used, {"m": 1, "n": n}),
            value_at(other.used, {"m": 1, "n": n}),
        ) == used
    made = emit_kernel(nest, print_nest(nest), "scaled", host())
    assert [value_at(size, {"m": 1, "n": 12}) for size in made.workspace_bytes] == [48, 0]
