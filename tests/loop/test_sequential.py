"""Stages that visit positions in order: plain and scheduled nests against NumPy, and what schedules
may not do with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from clew import te
from clew.loop.interpret import interpret
from clew.loop.ir import loops
from clew.loop.lower import lower
from clew.loop.schedule import Schedule
from clew.machine.target import target_of
from clew.schedules import schedule_kernel
from clew.support.errors import ScheduleError
from clew.te import Tensor
from clew.te.interpret import evaluate

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
TARGETS = [target_of(name) for name in ("cpu-avx2", "cpu-avx512", "cpu-neon")]


def results(inputs: Sequence[Tensor], output: Tensor, *arrays: Array) -> list[Array]:
    """Returns the values of a computation: by te, by the plain nest, and by schedules."""
    nest = lower("kernel", inputs, [output])
    found = evaluate([output], dict(zip(inputs, arrays, strict=True)))
    found += interpret(nest, arrays)
    for target in TARGETS:
        plan = schedule_kernel(nest, target)
        assert "sequential" in plan.rules
        found += interpret(plan.schedule.finished(), arrays)
    return found


def agree(found: Sequence[Array], expected: Array) -> None:
    for value in found:
        np.testing.assert_array_equal(value, expected)


def collected(n: int, m: int, count: int) -> tuple[Tensor, Tensor]:
    x = te.placeholder((n, m), "f32", "x")
    i, j = te.reduce_axis(n, "i"), te.reduce_axis(m, "j")
    place = i * m + j
    return x, te.compute(
        (count,), lambda _: te.collect(x[i, j].not_equal(0.0), place, [i, j]), "places"
    )


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("room", [0.5, 1.0, 2.0])
def test_collect(share: float, room: float) -> None:
    values = (RNG.random((7, 11)) < share).astype(np.float32)
    places = np.flatnonzero(values)
    count = max(int(len(places) * room), 1)
    x, output = collected(7, 11, count)
    expected = np.zeros(count, np.int64)
    expected[: len(places)] = places[:count]
    agree(results([x], output, values), expected)


def test_collect_from_nothing() -> None:
    x, output = collected(0, 3, 2)
    nest = lower("kernel", [x], [output])
    agree(interpret(nest, [np.zeros((0, 3), np.float32)]), np.zeros(2, np.int64))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_scan(axis: int, reverse: bool, exclusive: bool, combiner: str) -> None:
    x = te.placeholder((3, 20, 5), "i32", "x")
    values = RNG.integers(-9, 9, (3, 20, 5)).astype(np.int32)
    output = te.compute(
        x.shape,
        lambda *i: te.scan(combiner, x[i], i[axis], exclusive=exclusive, reverse=reverse),
        "scan",
    )
    turned = np.flip(values, axis) if reverse else values
    total = (np.cumsum if combiner == "sum" else np.maximum.accumulate)(turned, axis)
    if exclusive:
        start = 0 if combiner == "sum" else np.iinfo(np.int32).min
        first = np.full_like(np.take(total, [0], axis), start)
        total = np.concatenate([first, np.delete(total, -1, axis)], axis)
    agree(results([x], output, values), np.flip(total, axis) if reverse else total)


@pytest.mark.parametrize("combiner", ["", "sum", "max"])
def test_scatter_of_slices(combiner: str) -> None:
    table, places = te.placeholder((6, 40), "i32", "table"), te.placeholder((9,), "i64", "places")
    rows, update = te.placeholder((9, 40), "i32", "rows"), te.reduce_axis(9, "update")

    def updated(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        place = te.minimum(te.maximum(places[update], 0), 5)
        at = (place, j)
        return te.scatter(table[i, j], at, rows[update, j], [update], combiner=combiner)

    values, at = RNG.integers(-9, 9, (6, 40)), np.array([2, 0, 2, 5, 5, 5, 1, 2, 0])
    new = RNG.integers(-9, 9, (9, 40))
    expected = values.copy()
    for place, row in zip(at, new, strict=True):
        before = expected[place]
        expected[place] = {"": row, "sum": before + row, "max": np.maximum(before, row)}[combiner]
    arrays = (values.astype(np.int32), at, new.astype(np.int32))
    output = te.compute((6, 40), updated, "updated")
    agree(results([table, places, rows], output, *arrays), expected)


def test_scatter_where_a_condition_holds() -> None:
    x, update = te.placeholder((12,), "i32", "x"), te.reduce_axis(12, "update")
    odd = (update % 2).equal(1)
    output = te.compute(
        (6,),
        lambda _: te.scatter(te.as_scalar(-1, "i32"), [update // 2], x[update], [update], odd),
        "odd",
    )
    values = np.arange(12, dtype=np.int32)
    agree(results([x], output, values), values[1::2])


@pytest.mark.parametrize("dtype", ["u32", "u64"])
@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (17, 9), (128, 3), (128, 128), (129, 9), (150, 1), (150, 150)]
)
def test_sort(dtype: str, size: int, count: int) -> None:
    x, over = te.placeholder((3, size), dtype, "x"), te.reduce_axis(size, "over")
    output = te.compute((3, count), lambda i, _: te.sort(x[i, over], [over]), "order")
    most = np.iinfo(dtype.replace("u", "uint")).max
    values = RNG.integers(0, most, (3, size), dtype=dtype.replace("u", "uint"), endpoint=True)
    values[1] %= 7
    values[2, :40] = most
    expected = np.argsort(values, -1, kind="stable")[:, :count]
    agree(results([x], output, values), expected)


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_sort_of_those_that_take_part(share: float) -> None:
    x, take = te.placeholder((2, 160), "u32", "x"), te.placeholder((2, 160), "bool", "take")
    group, one = te.reduce_axis(10, "group"), te.reduce_axis(16, "one")

    def sorted_(i: te.Scalar, _: te.Scalar) -> te.Scalar:
        place = group * 16 + one
        return te.sort(x[i, place], [group, one], te.all_of(take[i, place], place < 155))

    values = RNG.integers(0, 9, (2, 160)).astype(np.uint32)
    values[:, 40:] += np.uint32((1 << 32) - 9)
    chosen = RNG.random((2, 160)) < share
    chosen[:, 3:8] = True
    output = te.compute((2, 5), sorted_, "order")
    inside = np.flatnonzero
    expected = [
        (at := inside(c[:155]))[np.argsort(v[at], kind="stable")][:5]
        for v, c in zip(values, chosen, strict=True)
    ]
    agree(results([x, take], output, values, chosen), np.array(expected))


def distant(rows: int, n: int, room: int, dtype: str) -> tuple[list[Tensor], Tensor]:
    """Numbers that are at least 1 from each one kept before, and their places."""
    x = te.placeholder((rows, n), dtype, "x")
    count, most = te.placeholder((rows,), "i64", "count"), te.placeholder((), "i64", "most")
    one, other = te.reduce_axis(n, "one"), te.reduce_axis(n, "other")

    def kept(i: te.Scalar, _: te.Scalar) -> te.Scalar:
        difference = x[i, one] - x[i, other]
        clash = te.maximum(difference, -difference) < te.as_scalar(1, dtype)
        return te.greedy(one, clash, count[i], most[()], [one, other])

    return [x, count, most], te.compute((rows, room), kept, "distant")


@pytest.mark.parametrize("dtype", ["f64", "f32", "i32"])
@pytest.mark.parametrize(("room", "most"), [(1, 9), (70, 65), (70, 200), (70, 0), (150, 150)])
def test_greedy(dtype: str, room: int, most: int) -> None:
    inputs, output = distant(4, 150, room, dtype)
    values = (RNG.random((4, 150)) * 200).astype(dtype.replace("f", "float").replace("i", "int"))
    counts = np.array([150, 0, 70, 1])
    expected = np.full((4, room), -1)
    for row, count, out in zip(values, counts, expected, strict=True):
        kept: list[int] = []
        for place in range(count):
            if len(kept) < min(most, room) and all(abs(row[place] - row[k]) >= 1 for k in kept):
                kept.append(place)
        out[: len(kept)] = kept
    agree(results(inputs, output, values, counts, np.array(most)), expected)


def test_greedy_of_rows_and_positions() -> None:
    """Values other than positions, and a comparison that reads only positions."""
    x, (one, other) = te.placeholder((3, 90), "f32", "x"), (te.reduce_axis(90, n) for n in "pq")
    near = (one - other) < 4

    def kept(i: te.Scalar, _: te.Scalar) -> te.Scalar:
        return te.greedy(x[i, one], near & (i > 0), 90, 40, [one, other])

    values = RNG.random((3, 90)).astype(np.float32)
    expected = np.full((3, 50), -1, np.float32)
    expected[0, :40], expected[1:, :23] = values[0, :40], values[1:, ::4]
    agree(results([x], te.compute((3, 50), kept, "kept"), values), expected)


def test_a_greedy_comparison_stores_what_it_reads_of_kept_candidates() -> None:
    inputs, output = distant(1, 9, 9, "f64")
    nest = lower("kernel", inputs, [output])
    assert {b.name for b in nest.temporaries if b.scope == "scratch"} == {"distant.stored0"}


def chains(shape: tuple[int, int], most: int) -> tuple[list[Tensor], Tensor]:
    starts, links = te.placeholder(shape, "i32", "starts"), te.placeholder((100,), "i32", "links")
    step, place = te.reduce_axis(most, "step"), te.reduce_axis(100, "place")

    def end(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        following = te.cast("i64", links[te.minimum(te.maximum(place, 0), 99)])
        found = te.cast("i32", place * 2 + i)
        return te.follow(te.cast("i64", starts[i, j]), following, found, [step, place])

    return [starts, links], te.compute(shape, end, "ends")


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 9), (13, 2)])
@pytest.mark.parametrize("most", [1, 70])
def test_follow(shape: tuple[int, int], most: int) -> None:
    """Chains of up to 99 steps, some of which end at once, and some before others."""
    inputs, output = chains(shape, most)
    starts = RNG.integers(-3, 100, shape).astype(np.int32)
    links = np.where(np.arange(100) % 9 == 8, -1 - np.arange(100), np.arange(100) + 1)
    links[40:] = np.arange(39, 99)  # a long one, back to the first part
    expected = np.empty(shape, np.int32)
    for (i, j), place in np.ndenumerate(starts):
        for _ in range(most):
            place = place if place < 0 else links[place]
        expected[i, j] = place * 2 + i
    agree(results(inputs, output, starts, links.astype(np.int32)), expected)


def _schedules() -> dict[str, Schedule]:
    """Returns a schedule of each kind of stage."""
    x, over = te.placeholder((8, 16), "i32", "x"), te.reduce_axis(16, "over")
    other = te.reduce_axis(16, "other")
    keys, places = te.placeholder((8, 160), "u32", "keys"), te.placeholder((16,), "i64", "places")
    key = te.reduce_axis(160, "key")
    made = {
        "scan": te.compute((8, 16), lambda i, j: te.scan("sum", x[i, j], j), "out"),
        "sort": te.compute((8, 160), lambda i, _: te.sort(keys[i, key], [key]), "out"),
        "scatter": te.compute(
            (8, 16), lambda i, _: te.scatter(x[i, 0], [i, places[over]], x[i, over], [over]), "out"
        ),
        "collect": te.compute(
            (8,), lambda _: te.collect(x[0, over] > 0, x[0, over], [over]), "out"
        ),
        "greedy": te.compute(
            (8, 16),
            lambda i, _: te.greedy(over, x[i, over] < x[i, other], 16, 16, [over, other]),
            "out",
        ),
    }
    followed = te.cast("i64", x[te.minimum(te.maximum(other, 0), 7), 0])
    made["follow"] = te.compute(
        (8, 16), lambda i, j: te.follow(j, followed, other, [over, other]), "out"
    )
    inputs = {"sort": [keys], "scatter": [x, places]}
    return {name: Schedule(lower(name, inputs.get(name, [x]), [out])) for name, out in made.items()}


IN_ORDER = {
    "scan": "out.j", "sort": "out.element1", "scatter": "out.over", "collect": "out.over",
    "greedy": "out.over", "follow": "out.over",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "loop"), IN_ORDER.items())
@pytest.mark.parametrize("change", ["vectorize", "parallel"])
def test_iterations_in_order_stay_so(kind: str, loop: str, change: str) -> None:
    schedule = _schedules()[kind]
    with pytest.raises(ScheduleError):
        getattr(schedule, change)(loop)
    _, inner = schedule.split(loop, 4)
    with pytest.raises(ScheduleError):
        getattr(schedule, change)(inner)


@pytest.mark.parametrize(("kind", "loop"), IN_ORDER.items())
@pytest.mark.parametrize("tail", ["clamp", "balance"])
def test_iterations_in_order_run_once(kind: str, loop: str, tail: str) -> None:
    schedule = _schedules()[kind]
    if tail == "clamp":
        with pytest.raises(ScheduleError, match="cannot run twice"):
            schedule.split(loop, 3, tail=tail)
        return
    schedule.split(loop, 3, tail=tail)
    assert all(n.index.role == "in order" for n in loops(schedule.nest.body) if loop in n.name)


STAGES: list[Callable[[Schedule], object]] = [
    lambda s: s.inline("out"),
    lambda s: s.cache_write("out"),
    lambda s: s.rfactor("out", "out.over"),
]


@pytest.mark.parametrize("kind", IN_ORDER)
@pytest.mark.parametrize("change", STAGES)
def test_primitives_for_other_stages_are_refused(
    kind: str, change: Callable[[Schedule], object]
) -> None:
    with pytest.raises(ScheduleError):
        change(_schedules()[kind])


def test_loops_in_order_keep_their_order() -> None:
    schedule = Schedule(lower("kernel", *[[t] for t in collected(4, 6, 3)]))
    with pytest.raises(ScheduleError, match="must stay in this order"):
        schedule.reorder("places.j", "places.i")
