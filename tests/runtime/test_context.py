import numpy as np
from handmade import ARENA, CONSTANT, INPUT, OUTPUT, chain, code, f32, library, ref, step

from clew.codegen import native
from clew.codegen.artifact import EntryPoint, KernelCode
from clew.runtime.context import Context, plain_places, scratch_bytes, split_grid
from clew.runtime.memory import address_of, aligned_bytes, plan_segment


def test_chunks_cover_the_grid() -> None:
    for grid in (0, 1, 2, 7, 100, 12345, 1 << 20):
        for cost in (0.0, 5_000.0, 1e5, 1e9):
            for threads in (1, 2, 5, 64):
                chunk, chunks = split_grid(EntryPoint("f", grid, cost), threads)
                assert chunk * chunks >= grid
                assert chunk * (chunks - 1) < max(grid, 1)
                assert chunks == 1 or (threads > 1 and cost >= 8_000)


def test_small_work_stays_on_one_thread() -> None:
    assert split_grid(EntryPoint("f", 100, 7_999.0), 2) == (100, 1)
    assert split_grid(EntryPoint("f", 100, 1e6), 1) == (100, 1)
    assert split_grid(EntryPoint("f", 1, 1e9), 2) == (1, 1)
    assert split_grid(EntryPoint("f", 100, 8_000.0), 2) == (12, 9)
    assert split_grid(EntryPoint("f", 14, 1e6), 2) == (1, 14)
    assert split_grid(EntryPoint("f", 26, 1e6), 2) == (1, 26)


def test_tables_hold_addresses_of_constants_arena_and_scratch() -> None:
    kernel = KernelCode("00", (EntryPoint("add", 8, 1.0), EntryPoint("nothing", 1, 1.0)), 100)
    args = (ref(CONSTANT, 1, 16), ref(ARENA, 1, 4), ref(OUTPUT), ref(INPUT, 1, 8))
    small = code("nothing")
    plan = plan_segment(
        [step(small, ref(ARENA, 0), ref(ARENA, 1)), step(kernel, *args)],
        [f32("x", 8), f32("y", 8)],
        [f32("out", 8)],
        [aligned_bytes(64), aligned_bytes(128)],
        [64, 64],
    )
    assert scratch_bytes(plan) == 100
    places = plain_places(plan, plan.constants, threads=3)
    assert places.scratch % 64 == 0
    assert places.scratch_stride_bytes == 128
    context = Context(plan, library(), 1, places)
    assert context.first_entries == [0, 1]
    assert context.n_entries == 3
    steps = context._steps
    assert steps[0, native.STEP_SCRATCH // 8] == 0
    for row, symbol in ((1, "add"), (2, "nothing")):
        assert steps[row, native.STEP_FUNCTION // 8] == library().address(symbol)
        assert steps[row, native.STEP_ARGS // 8] == address_of(context._args) + 16
        assert steps[row, native.STEP_SCRATCH // 8] == places.scratch
        assert steps[row, native.STEP_SCRATCH_STRIDE // 8] == 128
    slots = context._args[2:]
    assert slots[0] == address_of(plan.constants[1]) + 16
    assert slots[1] == places.arena[1] + 4
    first = address_of(context._args) + 16
    np.testing.assert_array_equal(context._patches, [[first + 16, 2, 0], [first + 24, 1, 8]])


def test_contexts_do_not_share_memory() -> None:
    plan = chain(16, 4)
    one, other = (plain_places(plan, plan.constants, 1) for _ in range(2))
    assert one.constants == other.constants
    assert not set(one.arena) & set(other.arena)
