"""Reductions whose results are the lanes of a few vectors, as in images in blocks of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import te
from clew.codegen.kernel import emit_kernel
from clew.loop.interpret import interpret
from clew.loop.ir import For, Nest
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.machine.target import target_of
from clew.schedules import NO_REQUEST, RULES, schedule_kernel

WIDE = target_of("cpu-avx512")
ROWS, DEPTH, LANES = 3, 7, 16


def scheduled(nest: Nest) -> Nest:
    finished = schedule_kernel(nest, WIDE, RULES, NO_REQUEST).schedule.finished()
    emit_kernel(finished, print_nest(finished), "k", WIDE)
    return finished


def sums(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(DEPTH, "k")
    return te.compute((ROWS, 1, LANES), lambda b, o, j: te.sum(x[b, k, j], k), "sums")


def centered(x: te.Tensor) -> te.Tensor:
    total = sums(x)
    mean = te.compute((ROWS, 1, LANES), lambda *i: te.call("tanh", total[i]), "mean")
    return te.compute(x.shape, lambda b, k, j: x[b, k, j] - mean[b, 0, j], "centered")


def total_of_sums(x: te.Tensor) -> te.Tensor:
    """Adds up the columns, across the lanes."""
    columns, j = sums(x), te.reduce_axis(LANES, "j")
    return te.compute((ROWS,), lambda b: te.sum(columns[b, 0, j], j), "total")


def turned(x: te.Tensor) -> te.Tensor:
    """Reads the columns in another order."""
    columns = sums(x)
    back = te.compute((ROWS, 1, LANES), lambda b, o, j: columns[b, o, 15 - j] * 2.0, "back")
    return te.compute(x.shape, lambda b, k, j: x[b, k, j] - back[b, 0, j], "turned")


def expected(x: Any, result: Any) -> Any:
    columns = x.sum(axis=1, keepdims=True, dtype=np.float64)
    return {
        centered: x - np.tanh(columns),
        total_of_sums: columns.sum(axis=(1, 2)),
        turned: x - columns[..., ::-1] * 2,
    }[result]


@pytest.mark.parametrize("result", [centered, total_of_sums, turned])
def test_columns_are_read_as_they_are_kept(result: Any) -> None:
    x = te.placeholder((ROWS, DEPTH, LANES), "f32", "x")
    nest = scheduled(lower("columns", [x], [result(x)]))
    data = np.random.default_rng(0).standard_normal((ROWS, DEPTH, LANES)).astype(np.float32)
    (found,) = interpret(nest, [data])
    np.testing.assert_allclose(found, expected(data, result), rtol=1e-5, atol=1e-5)


def test_columns_read_lane_by_lane_stay_in_registers() -> None:
    x = te.placeholder((ROWS, DEPTH, LANES), "f32", "x")
    nest = scheduled(lower("columns", [x], [centered(x)]))
    assert "register sums: f32[1, 1, 16]" in print_nest(nest).text


def test_blocks_of_a_normalized_image_are_shared_by_threads() -> None:
    """All stages of a block of channels are computed together, apart from those of other blocks."""
    blocks, pixels = 6, 50
    x = te.placeholder((1, blocks, 1, pixels, LANES), "f32", "x")
    k, m = te.reduce_axis(pixels, "k"), te.reduce_axis(pixels, "m")
    k2, m2 = te.reduce_axis(1, "k2"), te.reduce_axis(1, "m2")
    shape = (1, blocks, 1, 1, LANES)
    mean = te.compute(shape, lambda n, b, h, o, j: te.sum(x[n, b, k2, k, j], [k2, k]), "mean")
    half = te.compute(shape, lambda *i: mean[i] * 0.5, "half")
    wide = te.compute(
        shape,
        lambda n, b, h, o, j: te.sum(
            te.call("exp", x[n, b, m2, m, j] - half[n, b, 0, 0, j]), [m2, m]
        ),
        "wide",
    )
    y = te.compute(x.shape, lambda n, b, h, i, j: x[n, b, h, i, j] * wide[n, b, 0, 0, j], "y")
    nest = scheduled(lower("norm", [x], [y]))
    (phase,) = nest.body.stmts
    assert isinstance(phase, For)
    assert (phase.kind, phase.size) == ("parallel", blocks)
    data = (
        np.random.default_rng(0).standard_normal((1, blocks, 1, pixels, LANES)).astype(np.float32)
        / pixels
    )
    (found,) = interpret(nest, [data])
    total = data.sum(axis=3, keepdims=True, dtype=np.float64)
    scale = np.exp(data - total / 2).sum(axis=3, keepdims=True)
    np.testing.assert_allclose(found.reshape(data.shape), data * scale, rtol=1e-4)
