import ctypes
import os
import sys
import time
from random import Random
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from handmade import ARENA, INPUT, OUTPUT, code, f32, ref, step
from hypothesis import given
from hypothesis import strategies as st

from clew.runtime import memory
from clew.runtime.memory import (
    HUGE_PAGE_BYTES,
    Lifetime,
    aligned_bytes,
    arena_lifetimes,
    check_plan,
    most_alive_bytes,
    plan_arena,
    plan_segment,
)
from clew.runtime.plan import ArenaBuffer, Flow, FlowKind, SegmentPlan, Step
from clew.support.addresses import address_of, write_addresses
from clew.support.arrays import aligned_copy

lifetimes_strategy = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 30), st.integers(0, 12)).map(
        lambda t: Lifetime(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


def test_a_long_lived_buffer_is_placed_before_larger_ones_that_come_and_go() -> None:
    """DenseNet's block buffer beside its kernels' results, largest first, would leave a hole."""
    lifetimes = [Lifetime(3 * 64, 0, 9), *(Lifetime(64 * n, n, n + 1) for n in range(1, 9))]
    offsets, total = plan_arena(lifetimes)
    assert total == most_alive_bytes(lifetimes) == (3 + 8 + 7) * 64
    assert len(offsets) == len(lifetimes)


@given(lifetimes_strategy)
def test_no_arena_is_smaller_than_what_is_alive(lifetimes: list[Lifetime]) -> None:
    assert plan_arena(lifetimes)[1] >= most_alive_bytes(lifetimes)


@given(lifetimes_strategy)
def test_no_two_live_buffers_overlap(lifetimes: list[Lifetime]) -> None:
    offsets, total = plan_arena(lifetimes)
    for one, (a, start) in enumerate(zip(lifetimes, offsets, strict=True)):
        assert start % 64 == 0
        assert start + a.size_bytes <= total
        for b, other_start in zip(lifetimes[:one], offsets[:one], strict=True):
            together = a.first_step <= b.last_step and b.first_step <= a.last_step
            if together and a.size_bytes and b.size_bytes:
                assert start + a.size_bytes <= other_start or other_start + b.size_bytes <= start


@given(lifetimes_strategy)
def test_the_arena_is_no_larger_than_all_buffers_and_no_smaller_than_any_step(
    lifetimes: list[Lifetime],
) -> None:
    _, total = plan_arena(lifetimes)
    assert total <= sum(-(-x.size_bytes // 64) * 64 for x in lifetimes)
    for step_index in range(45):
        alive = [x for x in lifetimes if x.first_step <= step_index <= x.last_step]
        assert total >= sum(x.size_bytes for x in alive)


def test_a_chain_needs_two_buffers() -> None:
    lifetimes = [Lifetime(640, index, index + 1) for index in range(100)]
    assert plan_arena(lifetimes)[1] == 2 * 640


def test_a_gap_is_filled_best_fit_first() -> None:
    offsets, total = plan_arena(
        [Lifetime(1024, 0, 9), Lifetime(512, 0, 1), Lifetime(448, 3, 9), Lifetime(64, 1, 3)]
    )
    assert offsets[:3] == [0, 1024, 1024]
    assert offsets[3] == 1536
    assert total == 1600


def test_lifetimes_come_from_uses() -> None:
    kernel = code("add")
    steps = [
        step(kernel, ref(INPUT), ref(ARENA, 0)),
        step(kernel, ref(ARENA, 0), ref(ARENA, 2)),
        step(kernel, ref(ARENA, 0), ref(ARENA, 2), ref(OUTPUT)),
    ]
    assert arena_lifetimes(steps, [8, 16, 24]) == [
        Lifetime(8, 0, 2),
        Lifetime(0, 0, 0),
        Lifetime(24, 1, 2),
    ]


def test_check_plan_finds_mistakes() -> None:
    kernel = code("add")
    steps = (step(kernel, ref(INPUT), ref(ARENA, 0), ref(ARENA, 1), ref(OUTPUT)),)
    specs = (f32("x", 4),)

    def plan(*arena: ArenaBuffer, total: int = 256) -> SegmentPlan:
        return SegmentPlan(steps, specs, specs, (), total, arena)

    check_plan(plan(ArenaBuffer(64, 0), ArenaBuffer(64, 64)))
    for message, wrong in (
        ("overlap at step 0", plan(ArenaBuffer(65, 0), ArenaBuffer(64, 64))),
        ("misaligned", plan(ArenaBuffer(64, 0), ArenaBuffer(64, 72))),
        ("outside the arena", plan(ArenaBuffer(64, 0), ArenaBuffer(64, 256))),
        ("outside the arena", plan(ArenaBuffer(64, -64), ArenaBuffer(64, 0))),
        ("no arena 1", plan(ArenaBuffer(64, 0))),
    ):
        with pytest.raises(AssertionError, match=message):
            check_plan(wrong)
    with pytest.raises(AssertionError, match="is outside"):
        plan_segment([step(kernel, ref(INPUT, 0, 17))], specs, [], [], [])
    with pytest.raises(AssertionError, match="no output 1"):
        plan_segment([step(kernel, ref(OUTPUT, 1))], specs, specs, [], [])


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
@pytest.mark.parametrize("zero", [False, True])
def test_aligned_bytes(size: int, zero: bool) -> None:
    data = aligned_bytes(size, zero=zero)
    assert data.shape == (size,)
    if size:
        assert data.ctypes.data % 64 == 0
        assert not zero or not data.any()
        data[:] = 7
        assert (data == 7).all()


def test_aligned_copy_copies_only_if_it_must() -> None:
    good = aligned_bytes(256).view(np.float32)
    good[:] = np.arange(64)
    assert aligned_copy(good) is good
    for array in (good[1:], good.reshape(8, 8).T, good[::2]):
        copy = aligned_copy(array)
        assert copy is not array
        assert copy.ctypes.data % 64 == 0
        assert copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, array)


def test_address_of_any_array() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = array.copy()
    frozen.flags.writeable = False
    cases = [array, array[1:], array.T, array[:, 1:], frozen, np.array(1.0)]
    cases.append(np.zeros(3, ml_dtypes.bfloat16))
    for case in cases:
        assert address_of(case) == case.ctypes.data
    words = (ctypes.c_int64 * 9)()
    assert write_addresses(cases, words) == len(cases)
    assert list(words) == [*(case.ctypes.data for case in cases), 0, 0]


def test_planning_does_not_grow_with_the_length_of_lifetimes() -> None:
    """A thousand values that all live to the end: seconds, were each step looked at."""
    count = 1000
    kernel = code("add")
    steps = [step(kernel, ref(INPUT), ref(ARENA, index)) for index in range(count)]
    steps.append(step(kernel, *(ref(ARENA, index) for index in range(count)), ref(OUTPUT)))
    start = time.process_time()
    plan = plan_segment(steps, [f32("x", 16)], [f32("out", 16)], [], [100] * count)
    assert plan.arena_bytes == 128 * count
    assert time.process_time() - start < 2


@pytest.mark.parametrize("size", [1000, 3 * HUGE_PAGE_BYTES])
def test_a_forked_child_writes_into_memory_of_its_own(size: int) -> None:
    data = aligned_bytes(size, zero=True)
    child = os.fork()
    if child == 0:
        data[:] = 1
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not data.any()


@given(lifetimes_strategy)
def test_planning_from_pairs_gives_the_plan_of_planning_from_all(lifetimes: list[Lifetime]) -> None:
    order = [n for n, lifetime in enumerate(lifetimes) if lifetime.size_bytes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_FEW_BESIDE", len(lifetimes))
        from_pairs = memory._place_in_order(lifetimes, order)
        patch.setattr(memory, "_FEW_BESIDE", 0)
        assert memory._place_in_order(lifetimes, order) == from_pairs


@given(lifetimes_strategy, st.randoms(use_true_random=False))
def test_buffers_beside_each_other(lifetimes: list[Lifetime], random: Random) -> None:
    order = tuple(random.sample(range(len(lifetimes)), len(lifetimes)))
    overlapping = [
        tuple(
            other
            for other in order[:place]
            if lifetimes[other].first_step <= lifetimes[number].last_step
            and lifetimes[other].last_step >= lifetimes[number].first_step
        )
        for place, number in enumerate(order)
    ]
    assert list(memory._beside(lifetimes, order)) == overlapping


def test_a_chain_is_planned_in_linear_time() -> None:
    """A buffer is compared only with those that are live at the same time."""

    def compared(length: int) -> int:
        chain = [Lifetime(64, step, step + 1) for step in range(length)]
        return len(list(memory._live_together(chain, range(length))))

    assert compared(2000) == 1999
    assert compared(4000) == 3999


def loops_in_turn(count: int) -> list[Flow | Step]:
    """Returns the entries of loops after each other, each with a step that uses a new buffer."""
    entries: list[Flow | Step] = []
    for n in range(count):
        entries.append(Flow(FlowKind.BEGIN, (ref(ARENA, n),), loop=n))
        entries.append(step(code("add"), ref(ARENA, n), ref(ARENA, n + 1)))
        entries.append(Flow(FlowKind.END, (), loop=n))
    return entries


def test_buffers_from_before_a_loop_live_until_it_ends() -> None:
    assert arena_lifetimes(loops_in_turn(2), [8, 8, 8]) == [
        Lifetime(8, 0, 2),
        Lifetime(8, 1, 5),
        Lifetime(8, 4, 4),
    ]


def test_lifetimes_around_loops_take_linear_time() -> None:
    """At the end of a loop, only the buffers that it uses are looked at."""

    def lines(count: int) -> int:
        entries, seen = loops_in_turn(count), [0]

        def trace(frame: FrameType, event: str, _: object) -> Any:
            seen[0] += frame.f_code.co_filename == memory.__file__
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            arena_lifetimes(entries, [8] * (count + 1))
        finally:
            sys.settrace(before)
        return seen[0]

    assert lines(400) < 2.3 * lines(200)
