"""Splits of loops whose number of iterations only a run knows: what runs at given sizes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from visits import writes

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.ir.dims import Dim, SymDim, value_at
from clew.loop.in_place import in_place_pairs
from clew.loop.interpret import interpret
from clew.loop.ir import For, Nest, loops
from clew.loop.lower import lower
from clew.loop.primitives.loops import TAILS
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.loop.sizes import at_sizes
from clew.machine.target import host
from clew.support.errors import ScheduleError

N, M, Z = SymDim.symbol("n"), SymDim.symbol("m"), SymDim.symbol("z", least=0)
ONCE = ("once", "peel", "guard", "shrink", "exact", "overlap")
"""Tails that run each iteration once. The others may run some again."""
REPEATING = ("clamp",)
"""Tails with tiles whose iterations may repeat one of the same tile."""
FACTORS = (1, 2, 3, 4, 7, 8, 16)
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 40)
EXTENTS: dict[str, Dim] = {
    "n": N,
    "4*n": 4 * N,
    "2*n+1": 2 * N + 1,
    "n//2+1": N // 2 + 1,
    "n+7": N + 7,
    "n*m": N * M,
    "17": 17,
}


def copied(extent: Dim) -> Nest:
    x = te.placeholder((extent,), "f32", "x")
    return lower("copied", [x], [te.compute((extent,), lambda i: x[i] + 1.0, "out")])


def rows(m: Dim, n: Dim) -> Nest:
    x = te.placeholder((m, n), "f32", "x")
    k = te.reduce_axis(n, "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], k), "total")
    return lower("rows", [x], [te.compute((m,), lambda i: total[i] * 2.0, "out")])


def counted(nest: Nest, sizes: dict[str, int]) -> Counter[tuple[str, tuple[int, ...]]]:
    return Counter(writes(nest, sizes))


def all_once(found: Counter[Any], wanted: set[Any], tail: str) -> None:
    assert set(found) == wanted
    if tail in ONCE:
        assert set(found.values()) <= {1}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("extent", EXTENTS)
def test_every_iteration_runs(extent: str, tail: str) -> None:
    size = EXTENTS[extent]
    for factor in FACTORS:
        schedule = Schedule(copied(size))
        outer, inner = schedule.split("out.i", factor, tail=tail)
        if tail not in ("balance", "once"):
            whole = [n.size for n in loops(schedule.nest.body) if n.name == inner]
            assert all(isinstance(d, int) and d <= factor for d in whole)
        for n in SIZES:
            sizes = {"n": n, "m": 3}
            count = value_at(size, sizes)
            found = counted(schedule.nest, sizes)
            all_once(found, {("out", (i,)) for i in range(count)}, tail)
            most = -(-count // factor) * factor
            assert sum(found.values()) <= max(most, factor), (factor, sizes)
            tiles = [loop for loop in loops(schedule.nest.body) if loop.name == outer]
            assert all(value_at(loop.size, sizes) >= 0 for loop in tiles)


def test_a_remainder_of_small_tiles() -> None:
    schedule = Schedule(copied(N))
    outer, _ = schedule.split("out.i", 8, rest=3)
    nest = schedule.finished()
    for n in SIZES:
        assert counted(nest, {"n": n}) == Counter({("out", (i,)): 1 for i in range(n)})
        tiles = [value_at(loop.size, {"n": n}) for loop in loops(nest.body) if loop.name == outer]
        assert tiles == [n // 8, -(-(n % 8) // 3)]


@pytest.mark.parametrize("factor", [1, 2, 4, 16, 32])
def test_short_loops_are_shifted_without_guards(factor: int) -> None:
    schedule = Schedule(copied(N))
    schedule.split("out.i", factor, tail="shift")
    assert "if" not in print_nest(schedule.finished()).text.split()


FROM_ZERO: dict[str, Dim] = {"z": Z, "8*z": 8 * Z, "z+1": Z + 1, "z+n": Z + N, "z*n": Z * N}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("extent", FROM_ZERO)
def test_a_size_may_be_0(extent: str, tail: str) -> None:
    """Every iteration runs. If code would divide by a size of 0, a need rules this size out."""
    size = FROM_ZERO[extent]
    for factor in FACTORS:
        schedule = Schedule(copied(size))
        schedule.split("out.i", factor, tail=tail)
        nest = schedule.finished()
        needs = emit_kernel(nest, print_nest(nest), "k", host()).needs
        for z, n in itertools.product((0, 1, 2, 9), (1, 5)):
            sizes = {"z": z, "n": n}
            count = value_at(size, sizes)
            if any(value_at(need, sizes) < 0 for need in needs):
                assert count == 0
                assert tail in ("balance", "once"), "others do not divide by the number of tiles"
                continue
            assert count or extent != "z" or tail not in ("balance", "once") or factor == 1
            all_once(counted(nest, sizes), {("out", (i,)) for i in range(count)}, tail)


@pytest.mark.parametrize(("factor", "sizes"), [(14, [14, 7, 4]), (7, [7, 4, 2]), (2, [2, 1])])
def test_shrinking_tiles_have_few_sizes(factor: int, sizes: list[int]) -> None:
    """Each size is a copy of the loop's body, so their number decides the compile time."""
    schedule = Schedule(copied(N))
    _, inner = schedule.split("out.i", factor, tail="shrink")
    assert [n.size for n in loops(schedule.nest.body) if n.name == inner] == sizes
    tiles = [n.size for n in loops(schedule.nest.body) if n.name == "out.i.o"]
    for n in range(1, 4 * factor):
        smaller = sum(value_at(count, {"n": n}) for count in tiles[1:])
        assert smaller <= 2, n


def two_axes() -> Schedule:
    x = te.placeholder((M, N), "f32", "x")
    return Schedule(lower("two", [x], [te.compute((M, N), lambda i, j: x[i, j] + 1.0, "out")]))


def check_two_axes(schedule: Schedule, tail: str) -> None:
    for m, n in ((1, 1), (2, 9), (3, 16), (4, 5), (5, 8), (7, 7), (9, 31)):
        found = counted(schedule.finished(), {"m": m, "n": n})
        all_once(found, {("out", (i, j)) for i in range(m) for j in range(n)}, tail)


@pytest.mark.parametrize("first", TAILS)
@pytest.mark.parametrize("second", TAILS)
def test_both_axes_are_split(first: str, second: str) -> None:
    schedule = two_axes()
    row, _ = schedule.split("out.i", 4, tail=first)
    _, lane = schedule.split("out.j", 8, tail=second)
    schedule.split(lane, 3)
    if first not in REPEATING:
        schedule.parallel(row)
    check_two_axes(schedule, first if first not in ONCE else second)


@pytest.mark.parametrize("tail", TAILS)
def test_fused_axes_are_split(tail: str) -> None:
    schedule = two_axes()
    outer, _ = schedule.split(schedule.fuse("out.i", "out.j"), 8, tail=tail)
    if tail not in REPEATING:
        schedule.parallel(outer)
    check_two_axes(schedule, tail)


@pytest.mark.parametrize("tail", ["guard", "balance", "once"])
def test_tiles_are_fused(tail: str) -> None:
    schedule = two_axes()
    outer, _ = schedule.split("out.j", 4, tail=tail)
    schedule.reorder(outer, "out.i")
    schedule.parallel(schedule.fuse(outer, "out.i"))
    check_two_axes(schedule, tail)


@pytest.mark.parametrize("tail", TAILS)
def test_facts_of_a_loop_hold_in_its_tiles(tail: str) -> None:
    schedule = two_axes()
    fused = schedule.fuse("out.i", "out.j")
    (facts,) = {n.index.facts for n in loops(schedule.nest.body) if n.name == fused}
    assert set(facts) == {M - 1, N - 1}
    outer, _ = schedule.split(fused, 4, tail=tail)
    tiles = [n.index for n in loops(schedule.nest.body) if n.name == outer]
    assert tiles
    assert all(set(facts) <= set(tile.facts) for tile in tiles)


@pytest.mark.parametrize("tail", REPEATING)
def test_tiles_that_repeat_an_iteration_within_them_are_parallel(tail: str) -> None:
    schedule = Schedule(copied(N))
    outer, _ = schedule.split("out.i", 4, tail=tail)
    schedule.parallel(outer)
    for n in SIZES:
        given = np.arange(n, dtype=np.float32)
        (found,) = interpret(at_sizes(schedule.finished(), {"n": n}), [given])
        np.testing.assert_array_equal(found, given + 1)


@pytest.mark.parametrize("scope", ["scratch", "workspace"])
@pytest.mark.parametrize("tail", TAILS)
def test_stages_computed_at_tiles_stay_inside(tail: str, scope: str) -> None:
    schedule = Schedule(rows(M, N))
    outer, _ = schedule.split("out.i", 4, tail=tail)
    schedule.compute_at("total", outer, scope)
    schedule.split("total.k", 3)
    for m, n in ((1, 1), (2, 5), (3, 3), (4, 7), (5, 2), (6, 1), (7, 4), (13, 6)):
        found = counted(schedule.finished(), {"m": m, "n": n})
        assert {i for stage, i in found if stage == "out"} == {(i,) for i in range(m)}


@pytest.mark.parametrize("tail", ONCE)
@pytest.mark.parametrize("factor", FACTORS)
def test_reductions_add_each_element_once(tail: str, factor: int) -> None:
    schedule = Schedule(rows(2, N))
    schedule.split("total.k", factor, tail=tail)
    for n in SIZES:
        found = counted(schedule.nest, {"n": n})
        assert [found["total", (i,)] for i in range(2)] == [n + 1, n + 1]  # first it is set


@pytest.mark.parametrize("tail", sorted(set(TAILS) - set(ONCE)))
@pytest.mark.parametrize("extent", [N, 7])
def test_reductions_are_not_computed_twice(tail: str, extent: Dim) -> None:
    if tail == "balance" and extent == 7:
        return  # tiles of numbers do not overlap
    with pytest.raises(ScheduleError) as caught:
        Schedule(rows(2, extent)).split("total.k", 4, tail=tail)
    assert caught.value.code == "S071"
    assert "total changes what it reads" in caught.value.message


def test_multiples_have_no_tail() -> None:
    for tail in TAILS:
        schedule = Schedule(copied(8 * N))
        schedule.split("out.i", 4, tail=tail)
        assert [loop.size for loop in loops(schedule.nest.body)] == [2 * N, 4]
        assert not any(loop.index.facts for loop in loops(schedule.nest.body))


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (lambda s: s.vectorize("out.i"), "S007"),
        (lambda s: s.rfactor("total", "total.k"), "S070"),
        (lambda s: s.split("out.i", 0), "S004"),
        (lambda s: s.split("out.i", 4, tail="drop"), "S005"),
        (lambda s: s.parallel("out.i").split("out.i", 4), "S006"),
    ],
    ids=["vectorize", "rfactor", "factor", "tail", "parallel"],
)
def test_what_needs_numbers_is_refused(steps: Any, code: str) -> None:
    schedule = Schedule(rows(N, N))
    before = str(schedule)
    with pytest.raises(ScheduleError) as caught:
        steps(schedule)
    assert caught.value.code == code
    if code == "S070":
        assert "which only a run knows" in caught.value.message
        assert str(schedule) == before


def test_loops_without_conditions_are_not_partitioned() -> None:
    schedule = Schedule(copied(N))
    before = str(schedule)
    schedule.partition("out.i")
    assert str(schedule) == before


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (0, 3), (5, 0), (2, 9)])
def test_partition_of_a_free_size(before: int, after: int, vector: int) -> None:
    x = te.placeholder((N,), "f32", "x")
    padded = te.compute(
        (N + before + after,),
        lambda i: te.select(te.all_of(i >= before, i < te.size(N + before)), x[i - before], 7.0),
        "out",
    )
    schedule = Schedule(lower("padded", [x], [padded]))
    whole = schedule.split("out.i", vector)[0] if vector > 1 else "out.i"
    schedule.partition(whole)
    pieces = print_nest(schedule.finished()).text.split(f"for {whole} in")[1:]
    assert sum("select" not in text and "x[" in text for text in pieces) == 1
    if before and after:  # both ends are compared in an overlap and in a remainder of the vectors
        assert sum("&" in text for text in pieces) in ((1, 2) if vector > 1 else (0,))
        assert sum("select" in text and "&" not in text for text in pieces) == 2 * (vector > 1)
    for n in (1, 2, 3, 5, 8, 17, 40):
        given = np.arange(n, dtype=np.float32)
        wanted = np.pad(given, (before, after), constant_values=7)
        (found,) = interpret(at_sizes(schedule.finished(), {"n": n}), [given])
        np.testing.assert_array_equal(found, wanted)


def test_guards_of_a_free_size_are_partitioned_in_three() -> None:
    x = te.placeholder((N,), "f32", "x")
    k = te.reduce_axis(3, "k")
    padded = te.compute(
        (N + 2,),
        lambda i: te.select(te.all_of(i >= 1, i < te.size(N + 1)), x[i - 1], 0.0),
        "padded",
    )
    sums = te.compute((N,), lambda i: te.sum(padded[i + k], k), "sums")
    schedule = Schedule(lower("slid", [x], [sums]))
    schedule.inline("padded").skip_padding("sums").partition("sums.i")
    stmt = schedule.nest.body.stmts[-3:]
    assert [loop.name for loop in stmt if isinstance(loop, For)] == ["sums.i"] * 3
    for n in (1, 2, 3, 8, 21):
        given = np.arange(n, dtype=np.float32)
        wide = np.pad(given, 1)
        (found,) = interpret(at_sizes(schedule.finished(), {"n": n}), [given])
        np.testing.assert_array_equal(found, wide[:-2] + wide[1:-1] + wide[2:])


def test_remainders_of_a_free_size_share_partial_results() -> None:
    schedule = Schedule(rows(3, N))
    schedule.split("total.k", 8)
    parts, lane = schedule.split("total.k.i", 4, tail="guard")
    schedule.rfactor("total", parts, lane)
    assert [b.name for b in schedule.finished().temporaries].count("total.rf") == 1
    for n in SIZES:
        given = np.arange(3 * n, dtype=np.float32).reshape(3, n)
        (found,) = interpret(at_sizes(schedule.finished(), {"n": n}), [given])
        np.testing.assert_array_equal(found, given.sum(1) * 2)


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("size", [N, 40])
def test_partition_where_clamps_change_their_operand(size: Dim, vector: int) -> None:
    x = te.placeholder((size,), "f32", "x")

    def clamped(i: te.Scalar) -> te.Scalar:
        below = te.minimum(te.maximum(i - 3, 0), te.size(size - 1))
        return x[below] + x[te.minimum(i, te.size(size - 1))]

    schedule = Schedule(lower("edges", [x], [te.compute((size + 5,), clamped, "out")]))
    whole = schedule.split("out.i", vector)[0] if vector > 1 else "out.i"
    schedule.partition(whole, clamps=True)
    loops = print_nest(schedule.finished()).text.split(f"for {whole} in")[1:]
    assert any("min(" not in text and "max(" not in text for text in loops)
    for n in (1, 2, 3, 5, 8, 17, 40) if isinstance(size, SymDim) else (40,):
        given = np.arange(n, dtype=np.float32)
        at = np.arange(n + 5)
        wanted = given[np.clip(at - 3, 0, n - 1)] + given[np.clip(at, 0, n - 1)]
        (found,) = interpret(at_sizes(schedule.finished(), {"n": n}), [given])
        np.testing.assert_array_equal(found, wanted)


def test_clamps_stay_unless_they_are_asked_for() -> None:
    x = te.placeholder((N,), "f32", "x")
    out = te.compute((N,), lambda i: x[te.maximum(i - 1, 0)], "out")
    schedule = Schedule(lower("edges", [x], [out]))
    before = str(schedule)
    schedule.partition("out.i")
    assert str(schedule) == before


@pytest.mark.parametrize("tail", TAILS)
def test_tiles_that_overlap_do_not_run_in_place(tail: str) -> None:
    plain = copied(N)
    assert in_place_pairs(plain) == ((0, 0),)
    schedule = Schedule(plain)
    schedule.split("out.i", 4, tail=tail)
    assert in_place_pairs(schedule.nest) == (((0, 0),) if tail in ONCE else ())
    whole = Schedule(copied(4 * N))
    whole.split("out.i", 4, tail=tail)
    assert in_place_pairs(whole.nest) == ((0, 0),)


def test_two_sizes_that_happen_to_be_equal_are_not_in_place() -> None:
    """An input of m elements may have the memory of n only if they are always as many."""
    x, y = te.placeholder((M,), "f32", "x"), te.placeholder((N,), "f32", "y")
    out = te.compute((N,), lambda i: x[i % M] + y[i], "out")
    assert in_place_pairs(lower("mixed", [x, y], [out])) == ((1, 0),)


def test_facts_hold_where_their_loop_runs() -> None:
    for tail in TAILS:
        for factor in (3, 4, 8):
            schedule = Schedule(copied(2 * N + 1))
            schedule.split("out.i", factor, tail=tail)
            for loop in loops(schedule.nest.body):
                check_facts(loop)


def check_facts(loop: For) -> None:
    for n in range(1, 40):
        if value_at(loop.size, {"n": n}) > 0:
            assert all(value_at(fact, {"n": n}) >= 0 for fact in loop.index.facts), (loop, n)
