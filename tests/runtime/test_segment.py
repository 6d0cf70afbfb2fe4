import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from handmade import (
    ARENA,
    CONSTANT,
    INPUT,
    OUTPUT,
    PARALLEL,
    chain,
    code,
    f32,
    library,
    ref,
    single,
    step,
)

from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferSpec, SegmentPlan
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
from clew.runtime.timing import Round, Timings
from clew.runtime.watch import Watch
from clew.support.errors import InputError


def segment_of(plan: SegmentPlan, threads: int = 1) -> NativeSegment:
    return NativeSegment(plan, library(), shared_pool(threads))


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("elements", [1, 3, 64, 1000])
def test_a_chain_of_steps(threads: int, elements: int) -> None:
    segment = segment_of(chain(elements, 20), threads)
    x = np.arange(elements, dtype=np.float32)
    for shift in range(5):
        (out,) = segment([x + shift, x])
        np.testing.assert_array_equal(out, 2 * x + shift + 19)


def test_outputs_are_fresh_and_aligned() -> None:
    segment = segment_of(chain(16, 3))
    x = np.ones(16, np.float32)
    (first,) = segment([x, x])
    (second,) = segment([2 * x, x])
    assert first.tolist() == [4] * 16
    assert second.tolist() == [5] * 16
    assert first.ctypes.data % 64 == second.ctypes.data % 64 == 0


@pytest.mark.parametrize("elements", [1, 128, 129, 5000])
def test_kept_results_stay_as_they_are(elements: int) -> None:
    """Small ones share allocations: of 4096 bytes, which several hundred calls fill."""
    segment = segment_of(chain(elements, 3))
    x = np.ones(elements, np.float32)
    kept = [segment([x * n, x])[0] for n in range(200)]
    assert [one.max() for one in kept] == [one.min() for one in kept] == [n + 3 for n in range(200)]
    assert all(one.ctypes.data % 64 == 0 and one.flags.writeable for one in kept)


def test_outputs_may_be_given_even_over_inputs() -> None:
    segment = segment_of(chain(16, 3))
    x, out = np.ones(16, np.float32), np.empty(16, np.float32)
    assert segment([x, x], [out])[0] is out
    assert out.tolist() == [4] * 16
    buffer = np.arange(20, dtype=np.float32)
    expected = buffer[:16] + 1 + 2
    segment([buffer[:16], x], [buffer[4:]])  # in place this would read what it has written
    np.testing.assert_array_equal(buffer[4:], expected)


def test_views_and_read_only_and_unaligned_inputs() -> None:
    segment = segment_of(chain(16, 3))
    x = np.arange(32, dtype=np.float32)
    frozen = np.ones(16, np.float32)
    frozen.flags.writeable = False
    unaligned = np.zeros(65, np.uint8)[1:].view(np.float32)
    unaligned[:] = x[:16]
    np.testing.assert_array_equal(segment([x[::2], frozen])[0], x[::2] + 3)
    np.testing.assert_array_equal(segment([unaligned, frozen])[0], x[:16] + 3)


def test_wrong_inputs_and_outputs() -> None:
    segment = segment_of(chain(16, 3))
    x = np.ones(16, np.float32)
    cases: list[tuple[str, str, list[np.ndarray], list[np.ndarray] | None]] = [
        ("I030", "the call passes 1 inputs, but the model has 2", [x], None),
        ("I031", r"'y' has shape \[4, 4\], expected \[16\]", [x, x.reshape(4, 4)], None),
        ("I032", "'x' has dtype float64, expected float32", [x.astype("f8"), x], None),
        ("I032", "has dtype >f4", [x.astype(">f4"), x], None),
        ("I030", "the call passes 0 outputs", [x, x], []),
        ("I031", r"output 'out' has shape \[15\]", [x, x], [x[1:].copy()]),
        ("I033", "'out' is not a writable", [x, x], [np.ones(32, np.float32)[::2]]),
    ]
    for error_code, message, inputs, outputs in cases:
        with pytest.raises(InputError, match=message) as caught:
            segment(inputs, outputs)
        assert caught.value.code == error_code
    assert segment([x, x])[0].tolist() == [4] * 16


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_scratch_memory_is_each_threads_own(threads: int) -> None:
    kernel = code("through_scratch", grid=256, cost=PARALLEL, scratch=256)
    segment = segment_of(single(kernel, [f32("a", 256, 64)], [f32("out", 256, 64)]), threads)
    rng = np.random.default_rng(1)
    for _ in range(50):
        a = rng.standard_normal((256, 64)).astype(np.float32)
        np.testing.assert_array_equal(segment([a])[0], a)


@pytest.mark.parametrize("threads", [1, 2])
def test_phases_of_a_kernel_run_one_after_another(threads: int) -> None:
    entries = code("total.0", "total.1", cost=PARALLEL).entries
    kernel = code("total.0", cost=PARALLEL)
    kernel = type(kernel)("00", (type(entries[0])("total.0", 8, PARALLEL), entries[1]), 0, (32,))
    plan = plan_segment(
        [step(kernel, ref(INPUT), ref(OUTPUT), ref(ARENA))], [f32("a", 16)], [f32("out")], [], [32]
    )
    segment = segment_of(plan, threads)
    a = np.arange(16, dtype=np.float32)
    for _ in range(50):
        assert segment([a])[0] == 120
    assert segment.n_entries == 2
    assert segment.entries_of(0) == (0, 2)
    assert segment.by_step(np.array([[1.0, 2.0]])).tolist() == [[3.0]]


def test_references_with_offsets() -> None:
    kernel = code("add", grid=4)
    plan = plan_segment(
        [
            step(kernel, ref(INPUT, 0, 16), ref(CONSTANT, 0, 32), ref(ARENA, 0, 64)),
            step(kernel, ref(ARENA, 0, 64), ref(INPUT), ref(OUTPUT, 0, 8)),
        ],
        [f32("a", 8)],
        [f32("out", 6)],
        [np.arange(12, dtype=np.float32)],
        [128],
    )
    a = np.arange(8, dtype=np.float32)
    out = segment_of(plan)([a])[0]
    np.testing.assert_array_equal(out[2:], a[4:] + np.arange(8, 12) + a[:4])


def test_bfloat16_buffers() -> None:
    spec = BufferSpec("a", (2, 64), "bfloat16")
    kernel = code("through_scratch", grid=1, scratch=256)
    plan = single(kernel, [spec], [BufferSpec("out", (2, 64), "bfloat16")])
    a = np.arange(128).reshape(2, 64).astype(ml_dtypes.bfloat16)
    out = segment_of(plan)([a])[0]
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(out, a)


def test_kernels_reach_the_c_library() -> None:
    segment = segment_of(single(code("call_exp"), [f32("a")], [f32("out")]))
    assert segment([np.array(1, np.float32)])[0] == pytest.approx(np.e, rel=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_calls_from_several_python_threads(threads: int) -> None:
    segment = segment_of(chain(512, 12), threads)
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.full(512, number, np.float32)
        for _ in range(200):
            if not (segment([x, x])[0] == 2 * number + 11).all():
                wrong.append(number)

    callers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_profile_and_single_steps() -> None:
    kernel = code("slow", grid=20, cost=100.0, scratch=64)
    plan = plan_segment(
        [
            step(code("nothing"), ref(OUTPUT)),
            step(kernel, ref(OUTPUT)),
            step(code("nothing"), ref(OUTPUT)),
        ],
        [],
        [f32("out", 20)],
        [],
        [],
    )
    segment = segment_of(plan)
    watch = Watch(3)
    watched = segment.watched(watch)
    rows = []
    for _ in range(40):
        watch.clear()
        watched([])
        rows.append(watch.ns())
        assert watch.calls == 1
        assert watch.whole_ns >= watch.ns().sum()
    times = np.array(rows)
    assert (times[:, 1] > 20_000).all()
    # The least of many: another process may have had the core.
    assert (times.min(axis=0)[[0, 2]] < 20_000).all()
    assert (segment.time_step(1, [], 3) > 20_000).all()
    assert segment.time_step(2, [], 40).min() < 20_000


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ends", [[], [1], [3, 4, 19]])
def test_a_run_in_pieces(threads: int, ends: list[int]) -> None:
    segment, x = segment_of(chain(64, 20), threads), np.arange(64, dtype=np.float32)
    seen: list[bool] = []
    for shift in range(3):  # of other inputs and outputs
        (out,), times = segment.in_pieces([x + shift, x], ends, seen.append)
        np.testing.assert_array_equal(out, segment([x + shift, x])[0])
        assert times.shape == (20,)
        assert (times > 0).all()
    assert seen == [*[True] * (len(ends) + 1), False] * 3


def test_a_watch_times_a_range_and_sums_up_over_calls() -> None:
    segment = segment_of(chain(64, 8))
    x = np.ones(64, np.float32)
    watch = Watch(segment.n_entries)
    watched = segment.watched(watch)
    for first, last in ((0, 8), (0, 3), (3, 4), (5, 8), (2, 2)):
        watch.clear()
        watch.time(first, last)
        for _ in range(2):
            assert watched([x, x])[0].tolist() == [9.0] * 64
        timed = [n for n, ns in enumerate(watch.ns()) if ns > 0]
        assert timed == list(range(first, last))
        assert watch.calls == 2
    before = watch.ns()
    segment([x, x])  # is not watched
    assert (watch.ns() == before).all()
    assert watch.calls == 2


def test_empty_plans_and_empty_arrays() -> None:
    assert segment_of(plan_segment([], [], [], [], []))([]) == []
    assert segment_of(plan_segment([], [], [], [], [])).by_step(np.zeros((2, 0))).shape == (2, 0)
    empty = single(code("add", grid=0), [f32("a", 0), f32("b", 0)], [f32("out", 0)])
    nothing = np.empty(0, np.float32)
    assert segment_of(empty, 2)([nothing, nothing])[0].shape == (0,)


def test_nothing_keeps_a_dropped_segment_alive() -> None:
    segment = segment_of(chain(16, 3))
    x = np.ones(16, np.float32)
    segment([x, x])
    gone = weakref.ref(segment)
    del segment
    gc.collect()
    assert gone() is None


def test_an_interrupted_round_leaves_no_kernel_without_time() -> None:
    """Of three rounds one was interrupted: the median kernel keeps a time above nothing."""
    kernels = [np.array([20.0, 30.0]), np.array([21.0, 30.0]), np.array([5000.0, 31.0])]
    rounds = [Round([k], [1.0], [10.0], [], []) for k in kernels]
    timed = SimpleNamespace(
        measures_stamps=True, stamps=lambda taken: 2.0, entries=lambda segment: np.ones(2)
    )
    timings = Timings(cast(Any, timed), rounds, [], [])
    assert (np.median(timings.kernel_ns(0), axis=0) > 0).all()
