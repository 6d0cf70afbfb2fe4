"""When kernels of sizes that only the data tell are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest

import clew
from clew.backends.cpu import deferred_kernel
from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.rows import rounded_up
from clew.backends.cpu.stand_ins import stand_ins
from clew.build.specialized import KernelBuilder
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.passes.specialize import Specialize
from clew.runtime import counted
from clew.runtime.counted import CountedSegment
from clew.runtime.native_loop import NativeLoop
from clew.runtime.program import RunHost
from clew.support.errors import ClewError

POSITIVE = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[8] x) => (float[m] y) {
    zero = Constant <value = float {0}> ()
    positive = Greater (x, zero)
    few = Compress (x, positive)
    y = Exp (few)
}"""


def collects(kernel: DeferredKernel) -> bool:
    """Whether a kernel collects elements, so that the kernel after it has their number."""
    return any(call.op_name == "compressed" for call in operator_calls(kernel.function))


def compilations(
    counts: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    model: str = POSITIVE,
    expected: Callable[[Any], Any] = np.exp,
) -> list[int]:
    """Returns the calls in which the kernel of the elements above 0 got a program for new sizes, of
    calls with so many of them.
    """
    made: list[int] = []
    for_all = DeferredKernel._for_all

    def noted(self: DeferredKernel, *args: Any) -> Any:
        program = for_all(self, *args)
        if program is not None and not collects(self):
            made.append(call)
        return program

    monkeypatch.setattr(DeferredKernel, "_for_all", noted)
    monkeypatch.setattr(CountedSegment, "run", lambda *_: None)  # the instructions run one by one
    compiled = clew.compile(onnx.parser.parse_model(model), threads=1)
    for call, count in enumerate(counts):
        x = np.where(np.arange(8) < count, call + 1.0, -1.0).astype(np.float32) / 8
        np.testing.assert_allclose(compiled(x), expected(x[:count]), rtol=1e-5)
    return made


def test_a_size_that_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations([5] * 4, monkeypatch) == [0]


def test_counts_that_are_rounded_up_to_one_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [3, 2, 4, 3, 2, 8, 5, 7, 6, 0, 1]
    assert compilations(counts, monkeypatch) == [0, counts.index(0)]


# Where much is computed for each row, there are kernels for 4 rows, for 8, ...
WIDE = POSITIVE.replace(
    "y = Exp (few)",
    """
    shape = Constant <value = int64[2] {-1, 1}> ()
    column = Reshape (few, shape)
    width = Constant <value = int64[2] {1, 5000}> ()
    rows = Expand (column, width)
    e = Exp (rows)
    last = Constant <value = int64[1] {1}> ()
    y = ReduceMax <keepdims = 0> (e, last)""",
)


def test_wide_rows_are_rounded_up_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [3, 2, 4, 3, 2, 8, 5, 7, 6]
    assert compilations(counts, monkeypatch, WIDE) == [0, 5]


LARGEST = POSITIVE.replace("y = Exp (few)", "y = ReduceMax <keepdims = 0> (few)").replace(
    "float[m] y", "float y"
)


def test_a_maximum_over_all_rows_is_for_many_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations([3, 2, 4, 3, 2, 8, 5], monkeypatch, LARGEST, np.max) == [0]


FIRST_OF_MORE = """clew 1
def @main(
  %p0: f32[?1, 4], %p1: i64[max(min(20, ?0), 0)], %p2: f32[?2 + ?3]
) -> f32[max(min(20, ?0), 0), 4, 1] {
  %0: f32[max(min(20, ?0), 0), 4] = gather(%p0, %p1)
  %1: f32[max(min(20, ?0), 0), 4, 1] = reshape(%0, shape=[max(min(20, ?0), 0), 4, 1])
  return %1
}"""


def test_sizes_known_only_in_an_expression() -> None:
    function = parse_module(FIRST_OF_MORE).main
    arrays = [np.zeros(s, np.float32) for s in ((350, 4), (20,), (5,))]
    found = {s.param: s.sizes(arrays) for s in stand_ins(function)}
    # Any number of boxes of which 20 are the first does.
    assert found == {1: {"?0": 20}, 2: {"?2": 5, "?3": 0}}
    told = parse_module(FIRST_OF_MORE.replace("?2 + ?3", "?0")).main
    assert stand_ins(told) == ()


def test_passes_of_a_deferred_kernel_are_seen_by_instruments() -> None:
    seen: list[str] = []

    class Seen:
        def before_pass(self, name: str, module: Any) -> None:
            seen.append(name)

    compiled = clew.compile(
        onnx.parser.parse_model(POSITIVE),
        threads=1,
        passes=clew.Passes(instruments=[Seen()], disabled=["PlaceParts"]),
    )
    passes = ["Specialize", "FoldEmpty", "DecomposeOps", "FoldConstant", "FuseOps"]
    # Of the kernel that collects elements, and of the one after it, when the model is compiled.
    assert seen[-10:] == 2 * passes
    seen.clear()
    for _ in range(4):
        compiled(np.arange(8, dtype=np.float32) - 4)
    assert not seen


# The sum over all boxes is of no use for other counts; what is done box by box is.
ALL_BOXES = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[8] x) => (float s) {
    zero = Constant <value = float {0}> ()
    positive = Greater (x, zero)
    few = Compress (x, positive)
    s = ReduceSum <keepdims = 0> (few)
}"""

# Rows of a table whose size the data decide, by numbers that they decide as well.
TABLE = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[40, 3] x, bool[40] kept, int64[40] numbers, bool[40] wanted) => (float[m, 3] y) {
    table = Compress <axis = 0> (x, kept)
    few = Compress (numbers, wanted)
    rows = Gather (table, few)
    y = Exp (rows)
}"""


def kernels(compiled: clew.CompiledModel) -> list[DeferredKernel]:
    """Returns the deferred kernels of a program's host steps."""
    steps = [s.function for s in compiled.build.program.instructions if isinstance(s, RunHost)]
    return [f for f in steps if isinstance(f, DeferredKernel) and not collects(f)]


def test_a_sum_over_all_rows_has_a_program_for_each_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [3, *[5] * 18, 3, 3]
    assert compilations(counts, monkeypatch, ALL_BOXES, np.sum) == [0, 1]


def test_one_kernel_serves_all_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeferredKernel, "_is_rare", lambda *args: False)
    alone: list[Specialize] = []
    program = KernelBuilder.program

    def noted(self: KernelBuilder, specialize: Specialize, module: Module) -> Any:
        alone.append(specialize)
        return program(self, specialize, module)

    monkeypatch.setattr(KernelBuilder, "program", noted)
    compiled = clew.compile(onnx.parser.parse_model(ALL_BOXES), threads=1)
    for count in (3, 8, 1, 5, 0, 7):
        x = np.where(np.arange(8) < count, np.arange(8) + 1, -1).astype(np.float32)
        np.testing.assert_allclose(compiled(x), x[:count].sum())
    assert alone == []  # not even for none


# The width of the result is a size of the model, which no argument of the deferred kernel has.
WIDTH = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[n] x) => (float[m, n] y) {
    zero = Constant <value = float {0}> ()
    one = Constant <value = int64[1] {1}> ()
    positive = Greater (x, zero)
    few = Compress (x, positive)
    column = Unsqueeze (few, one)
    width = Shape (x)
    rows = Shape (few)
    shape = Concat <axis = 0> (rows, width)
    wide = Expand (column, shape)
    y = Exp (wide)
}"""


@pytest.mark.parametrize("is_rare", [True, False])
def test_sizes_of_the_model_in_a_deferred_kernel(
    monkeypatch: pytest.MonkeyPatch, is_rare: bool
) -> None:
    monkeypatch.setattr(DeferredKernel, "_is_rare", lambda *args: is_rare)
    compiled = clew.compile(onnx.parser.parse_model(WIDTH), threads=1)
    rng = np.random.default_rng(1)
    for width in (5, 9, 5, 1, 17, 33, 9):
        x = rng.standard_normal(width).astype(np.float32)
        few = x[x > 0]
        expected = np.exp(np.broadcast_to(few[:, None], (few.size, width)))
        np.testing.assert_allclose(compiled(x), expected, rtol=1e-5)


def test_a_table_is_read_by_numbers_of_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "COUNTED_BYTES", 0)  # kernels run one by one
    monkeypatch.setattr(DeferredKernel, "_is_rare", lambda *args: False)
    monkeypatch.setattr(CountedSegment, "run", lambda *_: None)
    compiled = clew.compile(onnx.parser.parse_model(TABLE), threads=1, cache=False)
    (kernel,) = kernels(compiled)
    assert {bool(r.indices) for r in kernel._rows} == {True, False}
    rng = np.random.default_rng(0)
    x, places = rng.standard_normal((40, 3)).astype(np.float32), np.arange(40)

    def run(rows: int, numbers: Sequence[int]) -> Any:
        given = np.zeros(40, np.int64)
        given[: len(numbers)] = numbers
        return compiled(x, places < rows, given, places < len(numbers))

    for rows, numbers in [(9, [8, 0, 3]), (30, [29] * 2), (12, [0]), (5, []), (7, [6, 6, 1, 2])]:
        np.testing.assert_allclose(run(rows, numbers), np.exp(x[:rows][numbers]), rtol=1e-5)
    assert len(kernel._known) == 2  # for no number, and for up to 64
    # From the end, and beyond it: the copies of the last row are none of the table's.
    np.testing.assert_allclose(run(9, [-1, -9]), np.exp(x[[8, 0]]), rtol=1e-5)
    for number in (9, 12, -10):
        with pytest.raises(ClewError, match=f"index {number} is out of range .* of size 9"):
            run(9, [number])


def test_counts_of_kernels() -> None:
    counts = [rounded_up(n) for n in range(2000)]
    assert all(n <= c for n, c in enumerate(counts))
    assert counts == sorted(counts)
    assert all(c <= 1.5 * n for n, c in enumerate(counts) if n > 8)
    assert len(set(counts)) < 24


GROWING = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[k, 3] first, int64 n) => (float[m, 3] y) {
    y = Loop (n, , first) <body = inner
        (int64 i, bool c, float[m, 3] s) => (bool c2, float[m, 3] s2) {
        c2 = Identity (c)
        one = Constant <value = int64[1] {0}> ()
        row = Gather (s, one)
        t = Neg (row)
        s2 = Concat <axis = 0> (s, t)
    }>
}"""


def test_more_sizes_than_a_kernel_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more size costs one program, not those of all sizes."""
    made: list[int] = []
    for_all = DeferredKernel._for_all

    def noted(self: DeferredKernel, arrays: Any, given: Any) -> Any:
        if any(call.op_name == "concatenate" for call in operator_calls(self.function)):
            made.append(arrays[0].shape[0])
        return for_all(self, arrays, given)

    monkeypatch.setattr(DeferredKernel, "_for_all", noted)
    monkeypatch.setattr(counted, "COUNTED_BYTES", 0)  # kernels run one by one
    monkeypatch.setattr(NativeLoop, "run", lambda *_: None)
    monkeypatch.setattr(CountedSegment, "run", lambda *_: None)
    compiled = clew.compile(onnx.parser.parse_model(GROWING), threads=1)
    first = np.ones((1, 3), np.float32)

    def run(count: int) -> int:
        made.clear()
        y = compiled(first, np.array(count))
        np.testing.assert_array_equal(y[:, 0], [1, *[-1] * count])
        return len(made)

    assert run(200) == 200
    assert run(200) == 0  # all are kept
    monkeypatch.setattr(deferred_kernel, "_KEPT_SHAPES", 100)
    assert run(201) == 1
    assert compiled(np.ones((190, 3), np.float32), np.array(2)).shape == (192, 3)
    assert not made[1:]  # the most recently used sizes are still there
