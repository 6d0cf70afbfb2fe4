import numpy as np
from handmade import ARENA, CONSTANT, INPUT, OUTPUT, chain, code, f32, library, ref, step

from clew.codegen.artifact import EntryPoint, KernelCode
from clew.codegen.driver import driver as native
from clew.ir.dims import Sizes, SymDim
from clew.runtime.bound import Bound
from clew.runtime.context import Constants, Context, plain_places
from clew.runtime.memory import aligned_bytes, plan_segment
from clew.runtime.segment_template import SegmentTemplate
from clew.support.addresses import address_of


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
    bound = Bound.of(plan, threads=1)
    assert bound.scratch_bytes == [0, 100]
    places = plain_places(bound, Constants(plan.constants), threads=3)
    assert places.scratch % 64 == 0
    assert places.scratch_stride_bytes == 128
    context = Context(bound, library(), places)
    assert context.first_entries == [0, 1]
    assert context.n_entries == 3
    steps, chunks = context._steps, context._chunks
    assert steps[0, native.STEP_SCRATCH // 8] == 0
    for row, symbol in ((1, "add"), (2, "nothing")):
        assert chunks[row, native.CHUNK_FUNCTION // 8] == library().address(symbol)
        table = address_of(chunks) + row * native.CHUNK_BYTES
        assert steps[row, native.STEP_TABLE // 8] == table
        assert steps[row, native.STEP_CHUNKS // 8] == 1
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
    bound, constants = Bound.of(plan, threads=1), Constants(plan.constants)
    one, other = (plain_places(bound, constants, 1) for _ in range(2))
    np.testing.assert_array_equal(one.constants, other.constants)
    assert not set(one.arena) & set(other.arena)


def test_steps_of_one_kernel_may_have_different_sizes() -> None:
    n, m = SymDim.symbol("n"), SymDim.symbol("m")
    kernel = KernelCode("00", (EntryPoint("add", 8, 1.0),), sizes=(n,))
    steps = (step(kernel), step(kernel.meaning({"n": m})), step(kernel))
    plan = SegmentTemplate(steps, (), (), (), ()).at(Sizes({"n": 2, "m": 5}))
    assert [s.code.size_values for s in plan.steps] == [(2,), (5,), (2,)]
