import numpy as np
import pytest
from handmade import INPUT, OUTPUT, PARALLEL, chain, code, f32, library, ref, single, step

from clew.runtime.guard import PAGE_BYTES, GuardedBuffer, GuardSide
from clew.runtime.memory import plan_segment
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool

SIDES = [GuardSide.END, GuardSide.START]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("size", [0, 1, 4, 63, 64, 100, 4096, 4097, 10000])
@pytest.mark.parametrize("align", [1, 4, 64])
def test_place_of_a_buffer(side: GuardSide, size: int, align: int) -> None:
    buffer = GuardedBuffer(size, align_bytes=align, side=side, count=2)
    assert buffer.address % align == 0
    assert buffer.data.shape == (size,)
    assert (buffer.data == 0xFF).all()
    if side is GuardSide.START:
        assert buffer.address % PAGE_BYTES == 0
    else:
        assert -(buffer.address + size) % PAGE_BYTES < align
    buffer.data[:] = 1
    buffer.check("the buffer")
    buffer.poison()
    assert (buffer.data == 0xFF).all()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("threads", [1, 2])
def test_correct_kernels_run_guarded(side: GuardSide, threads: int) -> None:
    segment = NativeSegment(chain(100, 12), library(), shared_pool(threads), guard=side)
    x = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(segment([x, x])[0], 2 * x + 11)
    out = np.empty_like(x)
    assert segment([x, x], [out])[0] is out
    np.testing.assert_array_equal(out, 2 * x + 11)
    kernel = code("through_scratch", grid=30, cost=PARALLEL, scratch=256)
    rows = np.random.default_rng(0).standard_normal((30, 64)).astype(np.float32)
    plan = single(kernel, [f32("a", 30, 64)], [f32("out", 30, 64)])
    guarded = NativeSegment(plan, library(), shared_pool(threads), guard=side)
    np.testing.assert_array_equal(guarded([rows])[0], rows)


def test_what_nobody_wrote_is_poison() -> None:
    plan = plan_segment([step(code("nothing"), ref(OUTPUT))], [], [f32("out", 3)], [], [])
    out = NativeSegment(plan, library(), shared_pool(1), guard=True)([])[0]
    assert np.isnan(out).all()


def test_writes_into_padding_and_inputs_are_found() -> None:
    plan = plan_segment([step(code("write_before"), ref(OUTPUT))], [], [f32("out", 3)], [], [])
    with pytest.raises(AssertionError, match="output 0: written outside"):
        NativeSegment(plan, library(), shared_pool(1), guard=True)([])
    plan = plan_segment(
        [step(code("write_at_grid", grid=1), ref(INPUT))], [f32("x", 3)], [], [], []
    )
    with pytest.raises(AssertionError, match="input 0: overwritten"):
        NativeSegment(plan, library(), shared_pool(1), guard=True)([np.zeros(3, np.float32)])


PROGRAM = """
import sys
import numpy as np
from handmade import *
from clew.runtime.guard import GuardSide
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
if {kernel!r} == "write_at_grid":
    plan = plan_segment(
        [step(code("write_at_grid", grid=16), ref({kind}))],
        [f32("x", {elements})],
        [f32("out", {elements})],
        [np.zeros({elements}, np.float32)],
        [4 * {elements}],
    )
else:
    plan = single(code("read_before"), [f32("a", {elements})], [f32("out", 1)])
guard = {guard}
segment = NativeSegment(plan, library(), shared_pool(1), guard=guard)
segment([np.zeros({elements}, np.float32)])
print("lived")
"""


@pytest.mark.parametrize(
    ("kernel", "kind", "elements", "guard", "dies"),
    [
        ("write_at_grid", "OUTPUT", 16, "GuardSide.END", True),
        ("write_at_grid", "INPUT", 16, "GuardSide.END", True),
        ("write_at_grid", "ARENA", 16, "GuardSide.END", True),
        ("write_at_grid", "CONSTANT", 16, "GuardSide.END", True),
        ("write_at_grid", "OUTPUT", 17, "GuardSide.END", False),
        ("read_before", "", 17, "GuardSide.START", True),
        ("read_before", "", 17, "False", False),
    ],
)
def test_a_stray_access_kills_the_process(  # type: ignore[no-untyped-def]
    run_python, kernel: str, kind: str, elements: int, guard: str, dies: bool
) -> None:
    program = PROGRAM.format(kernel=kernel, kind=kind, elements=elements, guard=guard)
    result = run_python(program)
    assert (result.returncode == -11) == dies, result.stderr
    assert ("lived" in result.stdout) == (not dies)
