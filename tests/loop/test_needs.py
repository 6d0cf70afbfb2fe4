"""Conditions on sizes under which a nest stays inside its buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from visits import writes

from clew import te
from clew.ir.dims import Dim, SymDim, value_at
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.loop.needs import needs_of
from clew.te.expr import Places

N, M, Z = SymDim.symbol("n"), SymDim.symbol("m"), SymDim.symbol("z", least=0)


def one(source: tuple[Dim, ...], shape: tuple[Dim, ...], element: Callable[..., Any]) -> Nest:
    """A nest of one stage that reads one input."""
    x = te.placeholder(source, "f32", "x")
    return lower("one", [x], [te.compute(shape, lambda *i: element(x, *i), "out")])


def padded(x: te.Tensor, i: Any) -> Any:
    return te.select(te.all_of(i >= 1, i < N + 1), x[i - 1], 0.0)


def chosen(x: te.Tensor, _: Any) -> Any:
    over = te.reduce_axis(N, "over")
    return te.greedy(x[over], x[over] > 0.0, N, M, [over, te.reduce_axis(N, "other")])


def joined(x: te.Tensor, i: Any) -> Any:
    return te.select(i < Z, x[i], 0.0)


def joined_after(x: te.Tensor, i: Any) -> Any:
    return te.select(i < N, 0.0, x[i - N])


def between(x: te.Tensor, i: Any) -> Any:
    return te.select(te.all_of(i >= 1, i < Z + 1), x[i - 1], 0.0)


def nearest(x: te.Tensor, i: Any) -> Any:
    return x[te.minimum(i, te.size(Z - 1))]


CASES: dict[str, tuple[Nest, list[Dim]]] = {
    "as_many": (one((N,), (N,), lambda x, i: x[i]), []),
    "transposed": (one((N, M), (M, N), lambda x, i, j: x[j, i]), []),
    "positions": (one((512,), (N,), lambda x, i: x[i]), [512 - N]),
    "offset": (one((512,), (N,), lambda x, i: x[i + 12]), [500 - N]),
    "window": (one((N + 2,), (N,), lambda x, i: x[i] + x[i + 2]), []),
    "every_other": (one((2 * N,), (N,), lambda x, i: x[i * 2 + 1]), []),
    "halves": (one((N,), (N // 2,), lambda x, i: x[i * 2 + 1]), []),
    "backwards": (one((N,), (N,), lambda x, i: x[te.size(N - 1) - i]), []),
    "from_the_end": (one((N,), (3,), lambda x, i: x[te.size(N - 3) + i]), [N - 3]),
    "padding": (one((N,), (N + 2,), padded), []),
    "other_name": (one((M,), (N,), lambda x, i: x[i]), [M - N]),
    "rest": (one((N,), (M,), lambda x, i: x[i % N]), []),
    "broadcast": (one((1, N), (M, N), lambda x, i, j: x[0, j]), []),
    "first": (one((N,), (M,), lambda x, i: x[0]), []),
    "chosen": (one((N,), (M,), chosen), []),
    "third": (one((N,), (M,), lambda x, i: x[2]), [N - 3]),
    "merged": (one((N, 8), (N * 8,), lambda x, i: x[i // 8, i % 8]), []),
    "of_none": (one((Z, 8), (Z * 8,), lambda x, i: x[i // 8, i % 8]), []),
    "joined_to_none": (one((Z,), (Z + N,), joined), []),
    "none_joined": (one((Z,), (Z + N,), joined_after), []),
    "none_between": (one((Z,), (Z + 2,), between), []),
    "first_of_none": (one((Z,), (M,), lambda x, i: x[0]), [Z - 1]),
    "nearest_of_none": (one((Z,), (M,), nearest), [Z - 1]),
    "rest_of_none": (one((Z,), (M,), lambda x, i: x[i % Z]), [Z - 1]),
    "test_of_another": (one((Z,), (M,), lambda x, i: te.select(i < N, x[0], 0.0)), [Z - 1]),
}
SIZES = (
    [{"n": n, "m": m, "z": 1} for n in (1, 2, 3, 4, 7, 12) for m in (1, 2, 5, 9)]
    + [{"n": n, "m": 3, "z": 1} for n in (499, 500, 501, 512, 513)]
    + [{"n": n, "m": m, "z": z} for z in (0, 2, 5) for n in (1, 3) for m in (1, 5)]
)


@pytest.mark.parametrize("case", CASES)
def test_conditions(case: str) -> None:
    nest, wanted = CASES[case]
    assert list(needs_of(nest)) == wanted


@pytest.mark.parametrize("case", CASES)
def test_conditions_are_enough_and_not_too_strict(case: str) -> None:
    """Where they hold, every access is inside; where they do not, some access is outside."""
    nest, _ = CASES[case]
    needs = needs_of(nest)
    for sizes in SIZES:
        holds = all(value_at(need, sizes) >= 0 for need in needs)
        try:
            list(writes(nest, sizes))
        except (AssertionError, ZeroDivisionError):
            assert not holds, sizes
        else:
            assert holds, sizes


def test_values_used_as_indices_need_nothing() -> None:
    """Their range is checked in the run."""
    table, at = te.placeholder((M,), "f32", "table"), te.placeholder((N,), "i64", "at")
    index = lambda i: te.minimum(te.maximum(at[i], 0), te.size(M - 1))  # noqa: E731
    nest = lower("gather", [table, at], [te.compute((N,), lambda i: table[index(i)], "out")])
    assert needs_of(nest) == ()


def test_updates_lie_inside_the_result() -> None:
    """Only the positions that are values are checked in the run."""
    x, at = te.placeholder((N, 4), "f32", "x"), te.placeholder((M, 4), "i64", "at")
    row, column = te.reduce_axis(M, "row"), te.reduce_axis(4, "column")

    def updated(*i: Any) -> Any:
        place = row, te.Checked(at[row, column], Places("x", 1, 4, 4))
        return te.scatter(x[i], place, te.as_scalar(1.0, "f32"), [row, column])

    nest = lower("scatter", [x, at], [te.compute((N, 4), updated, "out")])
    assert list(needs_of(nest)) == [N - M]


def test_values_used_as_indices_need_an_element() -> None:
    """Indices that are out of range become 0, or the nearest that is in range."""
    table, at = te.placeholder((Z,), "f32", "table"), te.placeholder((N,), "i64", "at")

    def clamped(i: Any) -> Any:
        return table[te.minimum(te.maximum(at[i], 0), te.size(Z - 1))]

    def checked(i: Any) -> Any:
        return table[te.Checked(te.cast("i64", at[i]), Places("table", 0, Z, Z))]

    for element in (clamped, checked):
        nest = lower("gather", [table, at], [te.compute((N,), element, "out")])
        assert needs_of(nest) == (Z - 1,)


def test_a_branch_that_tests_something_else_protects_nothing() -> None:
    nest = one((512,), (N, M), lambda x, i, j: te.select(j < 3, x[i], 0.0))
    assert list(needs_of(nest)) == [512 - N]


def test_reductions() -> None:
    x = te.placeholder((N, 7), "f32", "x")
    k = te.reduce_axis(M, "k")
    nest = lower("sums", [x], [te.compute((N,), lambda i: te.sum(x[i, k], k), "out")])
    assert list(needs_of(nest)) == [7 - M]
