"""When kernels of sizes that only the data tell are compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest

import clew
from clew.build.deferred_kernel import DeferredKernel
from clew.build.rows import rounded_up
from clew.runtime.program import RunHost
from clew.support.errors import ClewError

POSITIVE = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[8] x) => (float[m] y) {
    zero = Constant <value = float {0}> ()
    positive = Greater (x, zero)
    few = Compress (x, positive)
    y = Exp (few)
}"""


def compilations(
    counts: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    model: str = POSITIVE,
    expected: Callable[[Any], Any] = np.exp,
) -> list[int]:
    """Returns the calls in which a kernel was compiled, of calls with so many elements above 0."""
    made: list[int] = []
    specialize = DeferredKernel._specialize

    def noted(self: DeferredKernel, *args: Any) -> Any:
        made.append(call)
        return specialize(self, *args)

    monkeypatch.setattr(DeferredKernel, "_specialize", noted)
    compiled = clew.compile(onnx.parser.parse_model(model), threads=1)
    for call, count in enumerate(counts):
        x = np.where(np.arange(8) < count, call + 1.0, -1.0).astype(np.float32) / 8
        np.testing.assert_allclose(compiled(x), expected(x[:count]), rtol=1e-5)
    return made


def test_a_size_that_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations([5] * 4, monkeypatch) == [2]


def test_counts_that_are_rounded_up_to_one_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations([3, 2, 4, 3, 2, 8, 5, 7, 6, 0, 1], monkeypatch) == [2, 7]


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
    return [f for f in steps if isinstance(f, DeferredKernel)]


def test_a_sum_over_all_rows_is_for_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [3, *[5] * 18, 3, 3]
    assert compilations(counts, monkeypatch, ALL_BOXES, np.sum) == [17]


def test_a_table_is_read_by_numbers_of_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeferredKernel, "_is_rare", lambda *args: False)
    compiled = clew.compile(onnx.parser.parse_model(TABLE), threads=1)
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
    assert len(kernel._known) == 3  # for 0, 1, and 4 numbers
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
