"""Kernels of few outermost iterations divide inner loops, but only loops whose iterations are
independent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import clew
import zoo
from clew import te
from clew.cost.policy.threads import PARTS_FOR_THREADS
from clew.loop.interpret import interpret
from clew.loop.ir import For, loops, parallel_lines
from clew.loop.lower import lower
from clew.loop.phase_cost import cost_fs, ns_of
from clew.loop.schedule import Schedule
from clew.machine.costs import DEFAULTS, Costs
from clew.schedules.library.shared_work import _is_independent, share_work


def loop_of(schedule: Schedule, name: str) -> For:
    return next(loop for loop in loops(schedule.nest.body) if loop.name == name)


def doubled(*shape: int) -> Schedule:
    x = te.placeholder(shape, "f32", "x")
    return Schedule(lower("kernel", [x], [te.compute(shape, lambda *i: x[i] * 2.0, "y")]))


def sums(rows: int, columns: int) -> Schedule:
    x = te.placeholder((rows, columns), "f32", "x")
    k = te.reduce_axis(columns, "k")
    y = te.compute((rows,), lambda i: te.sum(x[i, k], k), "y")
    return Schedule(lower("kernel", [x], [y]))


def parts(schedule: Schedule) -> int:
    phase = schedule.nest.body.stmts[-1]
    assert isinstance(phase, For)
    lines = sum(line.size for line in parallel_lines(phase)) or 1  # type: ignore[misc]
    return phase.size * lines if phase.kind == "parallel" else 1  # type: ignore[return-value]


def test_loops_inside_few_iterations_are_divided() -> None:
    schedule = doubled(2, 512, 4096)
    schedule.parallel("y.i0")
    share_work(schedule, DEFAULTS)
    assert parts(schedule) >= PARTS_FOR_THREADS


def test_serial_loops_are_divided() -> None:
    schedule = doubled(1 << 20)
    share_work(schedule, DEFAULTS)
    assert parts(schedule) >= PARTS_FOR_THREADS


def test_an_axis_of_one_iteration_is_passed_over() -> None:
    schedule = doubled(2, 1, 512, 4096)
    schedule.parallel("y.i0")
    share_work(schedule, DEFAULTS)
    assert parts(schedule) >= PARTS_FOR_THREADS


def in_lines(columns: int) -> tuple[Schedule, Costs]:
    """Four lines of so many iterations, of which 50 are worth claiming."""
    schedule = doubled(1, 4, columns, 64)
    schedule.parallel("y.i0")
    schedule.parallel("y.i1")
    schedule.vectorize("y.i3")
    one = ns_of(cost_fs(loop_of(schedule, "y.i2").body, DEFAULTS))
    return schedule, replace(DEFAULTS, least_chunk=49.5 * one)


def test_short_iterations_inside_lines_are_divided_in_runs() -> None:
    schedule, costs = in_lines(600)
    share_work(schedule, costs)
    assert loop_of(schedule, "y.i2.i").extent == 50
    assert parts(schedule) == 4 * 12
    x = np.arange(4 * 600 * 64, dtype=np.float32).reshape(1, 4, 600, 64)
    np.testing.assert_array_equal(interpret(schedule.nest, [x])[0], 2 * x)


def test_a_number_of_iterations_without_even_runs_is_not_divided() -> None:
    schedule, costs = in_lines(601)
    before = schedule.steps.copy()
    share_work(schedule, costs)
    assert schedule.steps == before


def test_little_work_and_many_parts_stay_as_they_are() -> None:
    for shape in ((2, 16), (4096, 4096)):
        schedule = doubled(*shape)
        schedule.parallel("y.i0")
        before = schedule.steps.copy()
        share_work(schedule, DEFAULTS)
        assert schedule.steps == before


def test_sums_are_not_divided_along_their_terms() -> None:
    schedule = sums(2, 1 << 20)
    share_work(schedule, DEFAULTS)
    assert parts(schedule) == 2
    assert not _is_independent(loop_of(schedule, "y.k"))


def test_iterations_that_share_memory_of_a_thread_are_dependent() -> None:
    x = te.placeholder((8, 64), "f32", "x")
    s = te.compute((8, 64), lambda i, j: x[i, j] + 1.0, "s")
    y = te.compute((8, 64), lambda i, j: s[i, 63 - j] * s[i, j], "y")
    schedule = Schedule(lower("kernel", [x], [y]))
    schedule.compute_at("s", "y.i", "scratch")
    assert _is_independent(loop_of(schedule, "y.i"))
    assert not _is_independent(loop_of(schedule, "y.j"))


@pytest.mark.parametrize("threads", [2, 5])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    feed = zoo.inputs("vocoder")
    one = clew.compile(zoo.path("vocoder"), threads=1).run(feed)
    more = clew.compile(zoo.path("vocoder"), threads=threads).run(feed)
    assert all(np.array_equal(one[name], more[name]) for name in one)
